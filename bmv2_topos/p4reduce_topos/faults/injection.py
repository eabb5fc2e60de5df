# SPDX-License-Identifier: Apache-2.0
"""Execution of a fault on a network while ranks reduce, and the check that each rank ends as it must."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from p4reduce.errors import P4ReduceError
from p4reduce_topos.emulation.network import Network
from p4reduce_topos.faults import messages
from p4reduce_topos.faults.catalogue import CALLS_BEFORE_FAULT, VICTIM, Fault
from p4reduce_topos.faults.ranks import Event, Ranks
from p4reduce_topos.model import Topology
from p4reduce_topos.topologies.parts import with_extra_host

_CALLS = 60


def prepare_topology(fault: Fault, topology: Topology) -> Topology:
    """Return the topology with the fault's impairments of host links, and with the host that causes it.

    Raises P4ReduceError if the fault cannot happen on this topology.
    """
    if len(topology.workers) <= VICTIM:
        raise P4ReduceError(
            f"a fault on {topology.name} with {len(topology.workers)} worker: accepted are {VICTIM + 1} workers or more"
        )
    links = []
    for link in topology.links:
        properties = replace(link.properties, **fault.impairments)  # type: ignore[arg-type]
        links.append(replace(link, properties=properties) if set(link.ends) & set(topology.hosts) else link)
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
    return with_extra_host(made, worker)


def inject(network: Network, fault: Fault, *, job: str = "topo", calls: int = _CALLS) -> dict[int, Event]:
    """Run the ranks, cause the fault, and return the last event of each remaining rank.

    calls: the number of calls of each rank, if the fault must end in right sums.

    Raises P4ReduceError if a rank does not end in time.
    """
    many = calls if fault.outcome == "sums" else 1_000_000
    with Ranks(network, "--pause", str(fault.pause), "--calls", str(many), *fault.options, job=job) as ranks:
        if not fault.options:
            ranks.wait_calls(CALLS_BEFORE_FAULT)
            fault.act(network, ranks)
        return ranks.wait_ends(fault.seconds)


def violations(fault: Fault, ends: Mapping[int, Event]) -> list[str]:
    """Return a line for each rank that did not end as the fault requires."""
    if fault.outcome == "sums":
        return [f"rank {rank}: {messages.describe_end(end)}" for rank, end in ends.items() if "right" not in end]
    return [
        f"rank {rank}: {messages.describe_end(end)}"
        for rank, end in ends.items()
        if end.get("error") != fault.outcome or fault.says not in end.get("message", "")
    ]
