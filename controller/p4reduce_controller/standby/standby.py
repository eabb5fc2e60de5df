# SPDX-License-Identifier: Apache-2.0
"""The server of a standby controller: it tells callers that another one serves. Ranks that rejoin may wait here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import grpc
import grpc.aio

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.base.listening import ServiceConfig, bound_server
from p4reduce_controller.tenants.gate import Guard


def says(other: str) -> str:
    """Return the text for callers. `other`: the controller that serves, if it is known."""
    where = f"; the one that serves is {other}" if other else ""
    return f"this controller stands by{where}"


class Standby:
    """A server at the service's address, until it stops and releases the port."""

    def __init__(self, config: ServiceConfig, other: Callable[[], str], guard: Guard) -> None:
        """Bind the port. Raises ListenError.

        `other`: returns the controller that serves, if it is known.
        `guard`: admits calls.
        """
        self._server, self.listen = bound_server(config, [guard])
        self._other = other
        self._server.add_generic_rpc_handlers((_Everything(self._session, self._refuse),))

    async def start(self) -> None:
        await self._server.start()

    async def close(self) -> None:
        await self._server.stop(None)

    async def _session(self, _: object, context: Any) -> None:
        message = await context.read()
        if isinstance(message, pb.ClientMessage) and message.WhichOneof("message") == "rejoin":
            while await context.read() != grpc.aio.EOF:  # until the rank or this server is gone; the rank tries again
                pass
        await self._refuse(b"", context)

    async def _refuse(self, _: bytes, context: Any) -> NoReturn:
        await context.abort(grpc.StatusCode.UNAVAILABLE, says(self._other()))
        raise AssertionError


class _Everything(grpc.GenericRpcHandler):
    def __init__(self, session: Callable[..., Any], other: Callable[..., Any]) -> None:
        self._session = session
        self._other = other

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        if str(details.method).endswith("/Session"):
            return grpc.stream_stream_rpc_method_handler(self._session, pb.ClientMessage.FromString)
        return grpc.unary_unary_rpc_method_handler(self._other)
