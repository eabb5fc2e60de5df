# SPDX-License-Identifier: Apache-2.0
"""Requests and messages that are too large: told so, and counted, instead of being cut off by gRPC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

LARGEST_REQUEST = 16 << 10  # bytes; the longest is a Join, with two names
MOST_READ = 4 * LARGEST_REQUEST  # beyond which gRPC refuses it unread


@dataclass(frozen=True)
class TooLarge:
    """In the place of a message."""

    size: int

    def __str__(self) -> str:
        return f"a message has {self.size} bytes: must be at most {LARGEST_REQUEST}"


class Sizes(grpc.aio.ServerInterceptor):
    """Streams are given TooLarge by their context; other calls are refused."""

    def __init__(self, count: Callable[[Any], None]) -> None:
        """`count`: is given the context of each call that is refused."""
        self._count = count

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(details)
        if handler is None or handler.request_deserializer is None:
            return handler
        parse = handler.request_deserializer

        def read(wire: bytes) -> object:
            return TooLarge(len(wire)) if len(wire) > LARGEST_REQUEST else parse(wire)

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
