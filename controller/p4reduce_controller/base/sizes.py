# SPDX-License-Identifier: Apache-2.0
"""The limit of sizes: a client is told that its request or message is too large, instead of being cut off by gRPC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

LARGEST_REQUEST = 16 << 10  # bytes
LARGEST_MESSAGE = 72 << 10  # bytes of a rank's message; the longest is Rounds, with 16,384 slots
MOST_READ = 2 * LARGEST_MESSAGE  # bytes from which on gRPC refuses a message without reading it


@dataclass(frozen=True)
class TooLarge:
    """A stand-in for a message that is too large."""

    size: int
    limit: int

    def __str__(self) -> str:
        return f"a message has {self.size} bytes: must be at most {self.limit}"


class Sizes(grpc.aio.ServerInterceptor):
    """An interceptor that refuses too large requests; in streams, it replaces too large messages by TooLarge."""

    def __init__(self, count: Callable[[Any], None]) -> None:
        """Create the interceptor. `count`: is called with the context of each refused call."""
        self._count = count

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(details)
        if handler is None or handler.request_deserializer is None:
            return handler
        parse = handler.request_deserializer
        limit = LARGEST_MESSAGE if handler.request_streaming else LARGEST_REQUEST

        def read(wire: bytes) -> object:
            return TooLarge(len(wire), limit) if len(wire) > limit else parse(wire)

        if handler.request_streaming:
            make, behaviour = grpc.stream_stream_rpc_method_handler, handler.stream_stream
            return make(behaviour, read, handler.response_serializer)
        behaviour = handler.unary_unary

        async def checked(request: Any, context: Any) -> Any:
            if isinstance(request, TooLarge):
                self._count(context)
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, str(request))
            return await behaviour(request, context)

        return grpc.unary_unary_rpc_method_handler(checked, read, handler.response_serializer)
