# SPDX-License-Identifier: Apache-2.0
"""A running controller whose switches change."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.grpc_channels import open_grpc_channel
from p4reduce_controller.fabric.changes import Changes, specs_of
from p4reduce_controller.p4runtime.switch_config import SwitchConfig
from p4reduce_controller.settings.settings import load
from tests.support.controller.fake_switch import FakeSwitch
from tests.support.controller.ranks import Rank
from tests.support.controller.running import Loop, Running


class Changing(Running):
    """One of two switches, to which others may come. `made`: those that did, by their targets."""

    def __init__(self, loop: Loop, **options: Any) -> None:
        self.made: dict[str, FakeSwitch] = {}
        super().__init__(loop, switches=2, **options)

    async def _start(self, rejoin_time: float) -> None:
        await super()._start(rejoin_time)
        one = [{"switch": switch.target, "address": [str(switch.address)]} for switch in self.switches]
        for part, switch in zip(one, self.switches, strict=True):
            part["name"] = str(switch.address)
        self.settings = load(None, {"switches": one, "switch_insecure": True})
        self.controller.open(self.settings, self._make, Changes().begin_with(specs_of(self.settings)))

    def _make(self, spec: SwitchConfig) -> FakeSwitch:
        switch = FakeSwitch(16)
        switch.target, switch.address = spec.target, spec.address
        self.made[spec.target] = switch
        self.switches.append(switch)
        return switch

    def ask(self, method: str, request: Any) -> list[str]:
        with open_grpc_channel(self.address) as channel:
            return list(getattr(rpc.JobsStub(channel), method)(request, timeout=10.0).said)

    def done(self, switch: FakeSwitch) -> list[str]:
        """But for looking at counters."""
        return [what for what in switch.log if what != "outcomes"]

    def add(self, called: str, **more: Any) -> list[str]:
        one = {"name": called, "switch": f"{called}:1", "address": ["127.0.0.1:40100"], **more}
        return self.ask("AddSwitch", pb.AddSwitchRequest(settings=json.dumps(one)))

    def refused(self, work: Callable[[], Any]) -> str:
        with pytest.raises(grpc.RpcError) as caught:
            work()
        assert isinstance(caught.value, grpc.Call)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        return caught.value.details() or ""

    def status(self) -> dict[str, pb.Switch]:
        return {one.name: one for one in self.loop.run(self.controller.status()).switches}


def leave(changing: Changing, *ranks: Rank) -> None:
    for rank in ranks:
        changing.loop.loop.run_in_executor(None, rank.session.leave)


FIRST, SECOND = "127.0.0.1:31314", "127.0.0.1:31315"
UP = 9


def filed(name: str, address: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "switch": f"{name}:1", "address": [address], **more}
