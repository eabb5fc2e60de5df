# SPDX-License-Identifier: Apache-2.0
"""The ranks that reduce on a network, as processes, and the events that they report."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

from p4reduce.errors import P4ReduceError
from p4reduce_bench.processes.children import Child
from p4reduce_topos.emulation.network import Network

Event = dict[str, Any]


class Ranks:
    """A process of the module `rank` at each worker, and the events that each has printed."""

    def __init__(self, network: Network, *options: str, job: str = "topo") -> None:
        self.network = network
        self.job = job
        self.events: dict[int, list[Event]] = {}
        self.children: dict[int, Child] = {}
        topology = network.topology
        command = [sys.executable, "-m", "p4reduce_topos.faults.rank", "--job", job, *options]
        for rank, host in enumerate(topology.workers):
            environment = network.environment(host, rank=rank, world_size=len(topology.workers))
            self.children[rank] = network.start(host, f"rank {rank}", command, environment)
            self.events[rank] = []

    def wait(self, settled: Callable[[int], object], seconds: float, what: str) -> None:
        """Wait until `settled` is true of every rank. Raises P4ReduceError, which names the ranks where it is not."""
        deadline = time.monotonic() + seconds
        while True:
            over = {rank for rank, child in self.children.items() if child.process.poll() is not None}
            for rank, child in self.children.items():
                self.events[rank] += child.read()
            missing = [rank for rank in self.children if not settled(rank)]
            if not missing:
                return
            dead = over & set(missing)
            if dead or time.monotonic() > deadline:
                first = min(dead or missing)
                tail = self.children[first].tail()
                raise P4ReduceError(
                    f"no {what} of ranks {missing} within {seconds:g} s; rank {first}: {self.events[first][-1:]} {tail}"
                )
            time.sleep(0.01)

    def wait_calls(self, more: int) -> None:
        """Wait until every rank has completed `more` calls since now."""
        for rank, child in self.children.items():
            self.events[rank] += child.read()
        wanted = {rank: self._calls(rank) + more for rank in self.children}
        self.wait(lambda rank: self._calls(rank) >= wanted[rank], 60.0, "call")

    def _calls(self, rank: int) -> int:
        return max((event.get("done", 0) for event in self.events[rank]), default=0)

    def wait_ends(self, seconds: float) -> dict[int, Event]:
        """Wait until all ranks have ended, and return the last event of each. Raises P4ReduceError."""
        self.wait(lambda rank: self.children[rank].process.poll() is not None, seconds, "end")
        for rank, child in self.children.items():
            self.events[rank] += child.read()
        return {rank: self.events[rank][-1] if self.events[rank] else {} for rank in self.children}

    def forget(self, rank: int) -> None:
        """End the process of a rank, if it still runs, and stop following it."""
        self.network.stop(self.children.pop(rank))

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in list(self.children):
            self.forget(rank)
