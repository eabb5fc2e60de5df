# SPDX-License-Identifier: Apache-2.0
"""Several systems' times of one allreduce on one network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from p4reduce.protocol.operation import Zeros
from p4reduce_simulator.network import Network
from p4reduce_simulator.peers.algorithms import SYSTEMS
from p4reduce_simulator.peers.player import MTU, play
from p4reduce_simulator.peers.support import Support
from p4reduce_simulator.running import LinkUse, simulate
from p4reduce_simulator.workload import Workload

IN_SWITCHES: Mapping[str, Zeros] = {"p4reduce": "skipped", "switchml": "sent"}
"""Systems that run as p4reduce's workers and switches, and the treatment of blocks of zeros in each."""

BY_ELEMENTS = "p4reduce-elements"
"""p4reduce with its layout by elements."""

KNOWN = (*IN_SWITCHES, BY_ELEMENTS, *SYSTEMS)


@dataclass(frozen=True)
class Run:
    """One system's time in seconds, and the bytes on the wire of the rank with the most."""

    system: str
    time: float
    sent: int
    received: int
    links: tuple[LinkUse, ...]
    events: int
    wall: float


@dataclass(frozen=True)
class Comparison:
    """The systems' runs with one workload, in the order in which they were named.

    density: the share of non-zero blocks or elements.
    """

    workload: Workload
    numel: int
    density: float
    runs: tuple[Run, ...]

    def time(self, system: str) -> float:
        return next(run.time for run in self.runs if run.system == system)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def compare(
    network: Network,
    workload: Workload,
    systems: Sequence[str],
    *,
    seed: int = 0,
    slots: int = 64,
    mtu: int = MTU,
    until: float = 3600.0,
    wall_limit: float = 86400.0,
    done: Callable[[], None] = lambda: None,
) -> Comparison:
    """Simulate one allreduce by each system. Raises TimeoutError as `simulate` does. `done` is called after each.

    Peers have no losses, and their ranks start together. The workers of `IN_SWITCHES` have the network as it is.
    """
    if workload.operations > 1 or workload.late or workload.jitter:
        raise ValueError("systems are compared by one allreduce which all ranks start together")
    support = Support(workload, len(network.ranks), seed)
    runs = []
    for system in systems:
        if system in IN_SWITCHES or system == BY_ELEMENTS:
            result = simulate(
                network, workload, seed=seed, slots=slots, until=until, wall_limit=wall_limit,
                zeros=IN_SWITCHES.get(system, "skipped"), layout="elements" if system == BY_ELEMENTS else "blocks",
            )  # fmt: skip
            if not result.right:
                raise ValueError(f"{system}: a sum is wrong")
            runs.append(_run(system, result.times[0], result.links, result.events, result.wall))
        elif system in SYSTEMS:
            played = play(network, SYSTEMS[system](support), mtu=mtu, until=until, wall_limit=wall_limit)
            runs.append(_run(system, played.time, played.links, played.events, played.wall))
        else:
            raise ValueError(f"system {system}: accepted are {', '.join(KNOWN)}")
        done()
    return Comparison(workload, support.numel, support.nonzero / support.numel, tuple(runs))


def _run(system: str, time: float, links: tuple[LinkUse, ...], events: int, wall: float) -> Run:
    sent = max(link.bytes for link in links if link.source.startswith("rank"))
    received = max(link.bytes for link in links if link.destination.startswith("rank"))
    return Run(system, time, sent, received, links, events, wall)
