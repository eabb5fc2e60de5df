# SPDX-License-Identifier: Apache-2.0
"""A fake P4Runtime server whose behaviour a test controls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
from finsy.proto import p4r, p4r_grpc

from p4reduce_controller.p4runtime.program import load_schema
from p4reduce_controller.switches.aggregator import Heard
from p4reduce_controller.switches.frames import Endpoint

DEADLINE = 20.0
AT = Endpoint("02:00:0a:00:00:fe", "10.0.0.254", 31314)


class Server(p4r_grpc.P4RuntimeServicer):
    """A server that has the pipeline and no entries. It never answers calls that are named in `hangs`."""

    def __init__(self) -> None:
        self.schema = load_schema()
        self.hangs: set[str] = set()
        self.asked = asyncio.Queue[str]()
        self.drop = asyncio.Event()
        self.connections = 0

    async def _answer(self, what: str) -> None:
        self.asked.put_nowait(what)
        if what in self.hangs:
            await asyncio.Event().wait()

    async def StreamChannel(self, messages: Any, _: Any) -> AsyncIterator[p4r.StreamMessageResponse]:
        self.connections += 1
        drop = self.drop = asyncio.Event()
        async for message in messages:
            yield p4r.StreamMessageResponse(arbitration=message.arbitration)
            if message.arbitration.HasField("election_id"):
                await drop.wait()
                return

    async def Capabilities(self, *_: Any) -> p4r.CapabilitiesResponse:
        return p4r.CapabilitiesResponse(p4runtime_api_version="1.3.0")

    async def GetForwardingPipelineConfig(self, *_: Any) -> p4r.GetForwardingPipelineConfigResponse:
        if "cookie" in self.hangs:
            await asyncio.Event().wait()
        reply = p4r.GetForwardingPipelineConfigResponse()
        reply.config.cookie.cookie = self.schema.p4cookie
        return reply

    async def Write(self, *_: Any) -> p4r.WriteResponse:
        await self._answer("write")
        return p4r.WriteResponse()

    async def Read(self, *_: Any) -> AsyncIterator[p4r.ReadResponse]:
        await self._answer("read")
        yield p4r.ReadResponse()


@asynccontextmanager
async def serving(servicer: Server | None = None) -> AsyncIterator[tuple[Server, str]]:
    server, servicer = grpc.aio.server(), servicer or Server()
    p4r_grpc.add_P4RuntimeServicer_to_server(servicer, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield servicer, f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def until(condition: Callable[[], object]) -> None:
    async def work() -> None:
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(work(), DEADLINE)


class Ear:
    """A switch listener that may raise at the first connection."""

    def __init__(self, *, fails: bool = False) -> None:
        self.fails = fails

    def awaits(self, _: int) -> bool:
        return True

    def on_hello(self, hello: Heard) -> None: ...

    def connected(self, _: frozenset[int], **__: bool) -> None:
        fails, self.fails = self.fails, False
        if fails:
            raise ZeroDivisionError("a bug")

    def ports_changed(self) -> None: ...
