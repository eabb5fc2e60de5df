# SPDX-License-Identifier: Apache-2.0
"""Does a fault to a network while ranks reduce on it, and says whether each rank came out as it must."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from p4reduce.errors import P4ReduceError
from p4reduce_topos.emulation.network import Network
from p4reduce_topos.faults import words
from p4reduce_topos.faults.catalogue import UNDER_WAY, VICTIM, Fault
from p4reduce_topos.faults.ranks import Event, Ranks
from p4reduce_topos.model import Topology
from p4reduce_topos.topologies.parts import with_other_host

_CALLS = 60


def prepared(fault: Fault, topology: Topology) -> Topology:
    """Return the topology with what the fault does to its hosts' links, and with the host that does it. Raises
    P4ReduceError where nobody is there to suffer it."""
    if len(topology.workers) <= VICTIM:
        raise P4ReduceError(
            f"a fault on {topology.name} with {len(topology.workers)} worker: accepted are {VICTIM + 1} workers or more"
        )
    links = []
    for link in topology.links:
        wire = replace(link.wire, **fault.wire)  # type: ignore[arg-type]
        links.append(replace(link, wire=wire) if set(link.ends) & set(topology.hosts) else link)
    made = replace(topology, links=tuple(links))
    if not fault.needs_outsider:
        return made
    worker = topology.workers[VICTIM]
    if (switch := topology.ports(worker)[1]) not in topology.aggregating:
        raise P4ReduceError(
            f"forged packets on {topology.name}: {switch}, where {worker} is, only forwards, so {topology.roots[0]} "
            "hears all hosts behind it at one port and cannot tell them apart; accepted are topologies whose workers "
            "are at a switch that adds up"
        )
    return with_other_host(made, worker)


def suffer(network: Network, fault: Fault, *, job: str = "topo", calls: int = _CALLS) -> dict[int, Event]:
    """How each rank ended that is left, of `calls` calls where all is to end well. Raises P4ReduceError where one did
    not in time."""
    many = calls if fault.outcome == "sums" else 1_000_000
    with Ranks(network, "--pause", str(fault.pause), "--calls", str(many), *fault.options, job=job) as ranks:
        if not fault.options:
            ranks.wait_calls(UNDER_WAY)
            fault.act(network, ranks)
        return ranks.wait_ends(fault.seconds)


def verdict(fault: Fault, ends: Mapping[int, Event]) -> list[str]:
    """What is not as it should be: a line for each rank."""
    if fault.outcome == "sums":
        return [f"rank {rank}: {words.end(end)}" for rank, end in ends.items() if "right" not in end]
    return [
        f"rank {rank}: {words.end(end)}"
        for rank, end in ends.items()
        if end.get("error") != fault.outcome or fault.says not in end.get("message", "")
    ]
