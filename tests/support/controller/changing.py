# SPDX-License-Identifier: Apache-2.0
"""A running controller whose switches are added, drained and removed."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.fabric.changes import Changes, specs_of
from p4reduce_controller.p4runtime.switch_config import SwitchConfig
from p4reduce_controller.settings.settings import Settings, load
from tests.support.controller.fake_switch import FakeSwitch
from tests.support.controller.ranks import Rank
from tests.support.controller.running import Loop, Running
from tests.support.waiting import wait_until


class Changing(Running):
    """A controller with two switches at first.

    made: the switches that were added, by their targets.
    """

    def __init__(self, loop: Loop, **options: Any) -> None:
        self.made: dict[str, FakeSwitch] = {}
        super().__init__(loop, switches=2, **options)

    async def _start(self, rejoin_time: float) -> None:
        await super()._start(rejoin_time)
        self.settings = settings(
            *(filed(str(one.address), str(one.address), switch=one.target) for one in self.switches)
        )
        self.controller.open(self.settings, self._make, Changes().begin_with(specs_of(self.settings)))

    def _make(self, spec: SwitchConfig) -> FakeSwitch:
        switch = FakeSwitch(16)
        switch.target, switch.address = spec.target, spec.address
        self.made[spec.target] = switch
        self.switches.append(switch)
        return switch

    def drain(self, name: str, *, undo: bool = False) -> list[str]:
        return list(self.ask("DrainSwitch", pb.DrainSwitchRequest(name=name, undo=undo)).said)

    def remove(self, name: str, *, now: bool = False) -> list[str]:
        return list(self.ask("RemoveSwitch", pb.RemoveSwitchRequest(name=name, now=now)).said)

    def reload(self, after: Settings) -> list[str]:
        return self.loop.run(self.controller.operations.reload(after))

    def wait_for(self, *names: str) -> None:
        """Wait until the controller has exactly these switches, in any order."""
        wait_until(lambda: sorted(one.name for one in self.look().switches) == sorted(names), f"{names} alone")

    def done(self, switch: FakeSwitch) -> list[str]:
        """Return the calls to a switch, except reads of its counters."""
        return [what for what in switch.log if what != "outcomes"]

    def add(self, called: str, **more: Any) -> list[str]:
        one = {"name": called, "switch": f"{called}:1", "address": ["127.0.0.1:40100"], **more}
        return list(self.ask("AddSwitch", pb.AddSwitchRequest(settings=json.dumps(one))).said)

    def refused(self, work: Callable[[], Any]) -> str:
        with pytest.raises(grpc.RpcError) as caught:
            work()
        assert isinstance(caught.value, grpc.Call)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        return caught.value.details() or ""

    def status(self) -> dict[str, pb.Switch]:
        return {one.name: one for one in self.look().switches}


def leave(changing: Changing, rank: Rank) -> None:
    changing.loop.loop.run_in_executor(None, rank.session.leave)


FIRST, SECOND = "127.0.0.1:31314", "127.0.0.1:31315"
UP = 9


def filed(name: str, address: str, **more: Any) -> dict[str, Any]:
    """Return the entry of a switch in a configuration file."""
    return {"name": name, "switch": f"{name}:1", "address": [address], **more}


def settings(*switches: dict[str, Any], **more: Any) -> Settings:
    return load(None, {"switches": list(switches), "switch_insecure": True, **more})


FIRST_FILED = filed(FIRST, FIRST, switch="fake")
