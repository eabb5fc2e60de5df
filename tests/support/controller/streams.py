# SPDX-License-Identifier: Apache-2.0
"""A fake gRPC stream from a rank to a controller, in memory."""

from __future__ import annotations

import asyncio

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.service.controller import Controller
from p4reduce_controller.switches.aggregator import Heard
from p4reduce_controller.switches.frames import Endpoint
from tests.support.controller.fake_switch import FakeSwitch


class FakeStream:
    """A fake of gRPC's context for a Session whose first message is `first`.

    The switch hears the rank's HELLO as soon as the rank is assigned.
    """

    def __init__(self, controller: Controller, switch: FakeSwitch, first: pb.ClientMessage) -> None:
        self.told: list[pb.ServerMessage] = []
        self.said: asyncio.Queue[pb.ClientMessage] = asyncio.Queue()
        self.said.put_nowait(first)
        self._switch = switch
        self.call = asyncio.create_task(controller.service.Session(None, self))  # type: ignore[arg-type]

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def invocation_metadata(self) -> tuple[()]:
        return ()

    async def read(self) -> pb.ClientMessage:
        await asyncio.sleep(0)
        return await self.said.get()

    async def write(self, message: pb.ServerMessage) -> None:
        await asyncio.sleep(0)
        self.told.append(message)
        if message.HasField("assigned"):
            one = message.assigned
            sender = Endpoint("02:00:00:00:00:01", "10.0.0.1", 5000 + 100 * one.job + one.worker)
            self._switch.hear(Heard(1, sender, one.job, one.generation, one.worker, one.hello_nonce))

    @property
    def kinds(self) -> list[str]:
        return [message.WhichOneof("message") or "" for message in self.told]
