# SPDX-License-Identifier: Apache-2.0
"""What can go wrong in a network, done on purpose while ranks reduce, and how each rank comes out of it.

Every fault ends in the right sums or in an error that says what happened, within its deadline: see `Fault.outcome`.
"""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from p4reduce.errors import P4ReduceError
from p4reduce_bench.processes.children import Child
from p4reduce_bench.processes.switches import START_UP_S
from p4reduce_controller.leases import LEASES_TO_RETURN
from p4reduce_topos.model import Topology
from p4reduce_topos.network import Network

LEASE_S = 5.0
_TO_COME = 10**6  # rounds
VICTIM = 1  # the rank that faults are done to
_UNDER_WAY = 3  # calls that every rank has done before
_CALLS = 60

Event = dict[str, Any]


class Ranks:
    """`rank` at each worker, and what they have said."""

    def __init__(self, network: Network, *options: str) -> None:
        self.network = network
        self.events: dict[int, list[Event]] = {}
        self.children: dict[int, Child] = {}
        topology = network.topology
        command = [sys.executable, "-m", "p4reduce_topos.rank", *options]
        for rank, host in enumerate(topology.workers):
            environment = network.environment(host, rank=rank, world_size=len(topology.workers))
            self.children[rank] = network.start(host, f"rank {rank}", command, environment)
            self.events[rank] = []

    def wait(self, settled: Callable[[int], object], seconds: float, what: str) -> None:
        """Until that holds for every rank. Raises P4ReduceError naming those of which it does not."""
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
        """Until every rank has made so many more calls."""
        for rank, child in self.children.items():
            self.events[rank] += child.read()
        wanted = {rank: self._calls(rank) + more for rank in self.children}
        self.wait(lambda rank: self._calls(rank) >= wanted[rank], 60.0, "call")

    def _calls(self, rank: int) -> int:
        return max((event.get("done", 0) for event in self.events[rank]), default=0)

    def wait_ends(self, seconds: float) -> dict[int, Event]:
        """What each rank said last."""
        self.wait(lambda rank: self.children[rank].process.poll() is not None, seconds, "end")
        for rank, child in self.children.items():
            self.events[rank] += child.read()
        return {rank: self.events[rank][-1] if self.events[rank] else {} for rank in self.children}

    def forget(self, rank: int) -> None:
        """The rank is no longer followed."""
        self.network.stop(self.children.pop(rank))

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for rank in list(self.children):
            self.forget(rank)


@dataclass(frozen=True)
class Fault:
    """`act` is called when all ranks reduce. `outcome`: "sums", or the class of the error at every rank that is left.

    says: what the errors' texts have in them. seconds: from the act until the last rank has ended. wire: what every
    host's link does, from the start. options: of the ranks. pause: seconds between a rank's calls, so that the fault is
    over before the last.
    """

    summary: str
    act: Callable[[Network, Ranks], None] = lambda _, __: None
    outcome: str = "sums"
    says: str = ""
    seconds: float = 30.0
    wire: Mapping[str, float] = field(default_factory=dict)
    options: Sequence[str] = ()
    pause: float = 0.02


def kill_worker(_: Network, ranks: Ranks) -> None:
    ranks.children[VICTIM].process.kill()
    ranks.forget(VICTIM)


def pause_worker(_: Network, ranks: Ranks) -> None:
    process = ranks.children[VICTIM].process
    process.send_signal(signal.SIGSTOP)
    time.sleep(3.0)
    process.send_signal(signal.SIGCONT)


def cut_link(network: Network, _: Ranks) -> None:
    host = network.topology.workers[VICTIM]
    switch = network.topology.ports(host)[1]
    network.set_link(host, switch, up=False)
    time.sleep(2.0)
    network.set_link(host, switch, up=True)


def restart_switch(network: Network, _: Ranks) -> None:
    network.restart_switch(network.topology.roots[0])


def restart_controller(network: Network, ranks: Ranks) -> None:
    """Returns when all ranks are back, and go on."""
    network.stop_controller(kill=True)
    network.start_controller()
    deadline = time.monotonic() + LEASES_TO_RETURN * LEASE_S
    while any(member["away"] for job in network.status()["jobs"] for member in job["members"]):
        if time.monotonic() > deadline:
            raise P4ReduceError(f"not all ranks are back: {network.status()['jobs']}")
    ranks.wait_calls(_UNDER_WAY)


def kill_controller(network: Network, _: Ranks) -> None:
    network.stop_controller(kill=True)


def partition_worker(network: Network, _: Ranks) -> None:
    network.partition_controller([network.topology.workers[VICTIM]], apart=True)


def partition_all(network: Network, _: Ranks) -> None:
    network.partition_controller(network.topology.workers, apart=True)


def forge(network: Network, ranks: Ranks) -> None:
    """From a host that is in no job, with all that a member knows: as itself, and with a worker's addresses."""
    topology = network.topology
    (rogue,) = [host for host in topology.hosts if host not in topology.workers]
    switch = topology.roots[0]
    (job,) = network.status()["jobs"]
    udp_port = job["members"][VICTIM]["places"][0]["udp_port"]
    senders = [(topology.ip(host), topology.mac(host), udp_port) for host in (rogue, topology.workers[VICTIM])]
    command = [
        sys.executable, "-m", "p4reduce_topos.forger",
        "--interface", topology.interface(rogue, topology.ports(rogue)[1]),
        "--switch", topology.ip(switch), topology.mac(switch), "--senders", json.dumps(senders),
        "--workers", str(len(topology.workers)), "--job", str(job["number"]), "--generation", str(job["generation"]),
        "--slots", str(job["slots"]), "--seq", str((ranks.events[VICTIM][0]["first_seq"] + _TO_COME) % 2**32),
    ]  # fmt: skip
    network.start(rogue, "forger", command).first(START_UP_S)


FAULTS: dict[str, Fault] = {
    "worker-killed": Fault("A worker's process is killed.", kill_worker, "JobAborted", "rank 1", 10.0),
    "worker-paused": Fault("A worker stands still for 3 s, and goes on.", pause_worker),
    "link-down": Fault("A worker's link is down for 2 s.", cut_link),
    "switch-restarted": Fault(
        "The switch is restarted, and has lost all its state.", restart_switch, "JobAborted", "restarted", 20.0
    ),
    "controller-restarted": Fault(
        "The controller is killed and started again.", restart_controller, seconds=60.0, pause=0.2
    ),
    "controller-killed": Fault(
        "The controller is killed and not started again.", kill_controller, "JobAborted", "controller", 20.0
    ),
    "worker-partitioned": Fault(
        "A worker cannot reach the controller any more.", partition_worker, "JobAborted", seconds=15.0
    ),
    "controller-partitioned": Fault(
        "No worker can reach the controller any more.", partition_all, "JobAborted", seconds=15.0
    ),
    "corrupted": Fault("Bits flip in 5 % of the packets.", wire={"corrupt": 0.05}),
    "duplicated": Fault("20 % of the packets arrive twice.", wire={"duplicate": 0.2}),
    "delayed": Fault("Every packet takes 20 ms on every link.", wire={"delay": 0.02}, seconds=60.0),
    "reordered": Fault(
        "Packets are overtaken by many others, some arrive twice, some never.",
        wire={"jitter": 0.1, "duplicate": 0.3, "loss": 0.03}, seconds=100.0,
    ),
    "forged": Fault("A host that is in no job forges its packets.", forge),
    "other-shape": Fault(
        "A rank calls with another shape.", outcome="MismatchError", says="different operations",
        options=("--odd", str(VICTIM)),
    ),
}  # fmt: skip


def prepared(fault: Fault, topology: Topology) -> Topology:
    """The topology with what the fault does to its hosts' links."""
    links = []
    for link in topology.links:
        wire = replace(link.wire, **fault.wire)  # type: ignore[arg-type]
        links.append(replace(link, wire=wire) if set(link.ends) & set(topology.hosts) else link)
    return replace(topology, links=tuple(links))


def suffer(network: Network, fault: Fault) -> dict[int, Event]:
    """How each rank ended that is left. Raises P4ReduceError where one did not in time."""
    calls = _CALLS if fault.outcome == "sums" else 1_000_000
    with Ranks(network, "--pause", str(fault.pause), "--calls", str(calls), *fault.options) as ranks:
        if not fault.options:
            ranks.wait_calls(_UNDER_WAY)
            fault.act(network, ranks)
        return ranks.wait_ends(fault.seconds)


def verdict(fault: Fault, ends: Mapping[int, Event]) -> list[str]:
    """What is not as it should be: a line for each rank."""
    if fault.outcome == "sums":
        return [f"rank {rank}: {end}" for rank, end in ends.items() if "right" not in end]
    return [
        f"rank {rank}: {end}"
        for rank, end in ends.items()
        if end.get("error") != fault.outcome or fault.says not in end.get("message", "")
    ]


__all__ = ["FAULTS", "Fault", "Ranks", "prepared", "suffer", "verdict"]
