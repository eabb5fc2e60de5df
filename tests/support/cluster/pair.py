# SPDX-License-Identifier: Apache-2.0
"""Switches and two controllers as processes: one controller serves, the other stands by."""

from __future__ import annotations

import signal
import time
from itertools import pairwise
from typing import Any

import grpc

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.grpc_channels import open_grpc_channel
from p4reduce_bench.processes.children import Child
from tests.support.waiting import wait_until

from .stack import START_UP_S, Ranks, Stack


class Pair(Stack):
    """A stack with two controllers. Leaving the block ends every process.

    `controller` contains the addresses of both.
    """

    def __init__(self, store: str, *options: str, target: str = "native", aggregators: int = 1) -> None:
        self.controller_addresses = ["127.0.0.1:0"] * 2
        self.said: list[dict[str, Any]] = [{}, {}]  # the first line that each printed
        self.controllers: list[Child | None] = [None] * 2
        super().__init__(
            target, ["1=udp:127.0.0.1:0"], options=["--store", store, "--standby", *options], aggregators=aggregators
        )

    def start_controller(self) -> None:
        for number in range(len(self.controller_addresses)):
            self.start_one(number)
        self.controller = ",".join(self.controller_addresses)

    def start_one(self, number: int) -> dict[str, Any]:
        """Start a controller, wait until it serves or stands by, and return the line that it prints then."""
        options = [*self._controller_options, "--listen", self.controller_addresses[number], "--json", "--verbose"]
        child = self.controllers[number] = self.start(f"controller {number}", "p4reduce", "controller", *options)
        said = self.said[number] = child.first(START_UP_S)
        self.controller_addresses[number] = said["listen"]
        return said

    def end_one(self, number: int, how: signal.Signals = signal.SIGKILL) -> None:
        child = self.controllers[number]
        assert child is not None
        self.controllers[number] = None
        self._end(child, how)

    def signal_one(self, number: int, what: signal.Signals) -> None:
        child = self.controllers[number]
        assert child is not None
        child.process.send_signal(what)

    def status(self, number: int) -> pb.StatusReply | None:
        """Return the status that a controller reports, or None if it does not serve."""
        with open_grpc_channel(self.controller_addresses[number]) as channel:
            try:
                reply: pb.StatusReply = rpc.JobsStub(channel).Status(pb.StatusRequest(), timeout=0.5)
            except grpc.RpcError:
                return None
            return reply

    def serving(self) -> int:
        """Wait until a controller serves, and return its number."""
        return self.wait_until_serves(*range(len(self.controller_addresses)))[0]

    def wait_until_serves(self, *numbers: int, within: float = 30.0) -> tuple[int, float]:
        """Wait until one of these controllers serves. Return its number and the seconds that it took."""
        began = time.monotonic()

        def serving() -> list[int]:
            return [one for one in numbers if self.controllers[one] is not None and self.status(one) is not None]

        return wait_until(serving, self.tails, within)[0], time.monotonic() - began

    def wait_until_all_are_back(self, number: int, ranks: int) -> float:
        """Wait until `ranks` ranks have rejoined the controller, and return the seconds that it took."""
        began = time.monotonic()

        def are_back() -> bool:
            reply = self.status(number)
            members = [member for job in reply.jobs for member in job.members] if reply is not None else []
            return len(members) == ranks and not any(member.away for member in members)

        wait_until(are_back, self.tails, 10.0)
        return time.monotonic() - began

    def tails(self) -> str:
        return "\n".join(f"{one.name}:\n{one.tail(30)}" for one in self.controllers if one is not None)


def longest_pause(ranks: Ranks, since: float) -> float:
    """Return the longest time between two results of a rank after the time `since`, over all ranks, in seconds."""
    ranks.wait_until("a call", lambda rank: "done" in ranks.events[rank][-1])
    gaps = [0.0]
    for events in ranks.events.values():
        times = [event["at"] for event in events if event.get("at", 0.0) >= since]
        gaps += [after - before for before, after in pairwise(times)]
    return max(gaps)
