# SPDX-License-Identifier: Apache-2.0
"""Measurement of reductions on an emulated network: their time, and their bytes on each link."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec

from p4reduce.errors import P4ReduceError
from p4reduce_bench.allreduce.grid import Case
from p4reduce_bench.allreduce.measuring import least_traffic
from p4reduce_bench.allreduce.report import Row, row
from p4reduce_bench.allreduce.systems import Setup, collect, rank_command
from p4reduce_bench.processes.children import Child
from p4reduce_bench.processes.switches import START_UP_S
from p4reduce_topos.emulation.network import Network

SYSTEMS = ("p4reduce", "gloo", "gloo-sparse", "server")
"""The systems to compare: switches, Gloo's ring, Gloo's sparse tensors, and one host that sums for all."""


def check_systems(systems: Sequence[str]) -> None:
    """Raise P4ReduceError if a system needs PyTorch, which is not installed. Only p4reduce does without it."""
    if (others := [one for one in systems if one != "p4reduce"]) and find_spec("torch") is None:
        raise P4ReduceError(
            f"the system {others[0]} needs PyTorch: pip install 'p4reduce[torch]'; p4reduce does without, as in "
            "`p4reduce topo experiment density --systems p4reduce`"
        )


@dataclass(frozen=True)
class Measurement:
    """The figures of one case.

    row: times and counters of the workers.
    carried: bytes per reduction on each link, by direction: "h1>s1". The bytes of joining are divided among them.
    """

    row: Row
    carried: dict[str, int] = field(default_factory=dict)

    def as_dict(self) -> dict[str, object]:
        return {**asdict(self.row), "carried": self.carried}


def measure(network: Network, system: str, case: Case, setup: Setup, *, late: float = 0.0) -> Measurement:
    """Run a case on the network and return its figures. Raises ChildFailed if a process of the network or a rank fails.

    late: the delay of the last worker's calls, in seconds.
    """
    topology = network.topology
    ways = [way for link in topology.links for way in (link.ends, (link.b, link.a))]
    before = {way: network.carried(*way) for way in ways}
    with _ranks(network, system, case, setup, late) as ranks:
        silence = START_UP_S + setup.timeout * (setup.repeat + setup.warm_up)
        (figures,) = collect(network.processes, ranks, len(ranks), 1, silence)
    turns = setup.repeat + setup.warm_up
    carried = {f"{a}>{b}": (network.carried(a, b) - before[a, b]) // turns for a, b in ways}
    rate = min((link.properties.rate for link in topology.links if link.properties.rate), default=0)
    limit = None
    if rate and system == "p4reduce":
        limit = least_traffic(case, setup).seconds(rate)
    return Measurement(row(system, setup.target, case, figures, limit, rate or None), carried)


@contextlib.contextmanager
def _ranks(network: Network, system: str, case: Case, setup: Setup, late: float) -> Iterator[Sequence[Child]]:
    topology = network.topology
    hosts = list(topology.workers[: case.workers])
    if case.workers > len(topology.workers):
        raise P4ReduceError(f"workers={case.workers}: {topology.name} has {len(topology.workers)} of them")
    if system == "server":
        others = [host for host in topology.hosts if host not in topology.workers]
        if not others:
            raise P4ReduceError(f"the system server needs a host that is not a worker, and {topology.name} has none")
        hosts.append(others[0])
    children = []
    try:
        for rank, host in enumerate(hosts):
            command = rank_command(system, [case], setup)
            command += ["--counted", topology.interface(host, topology.ports(host)[1])]
            if late and rank == case.workers - 1:
                command += ["--late", str(late)]
            environment = network.environment(host, rank=rank, world_size=len(hosts))
            children.append(network.start(host, f"{system} rank {rank}", command, environment))
        yield children
    finally:
        for child in children:
            network.stop(child)
