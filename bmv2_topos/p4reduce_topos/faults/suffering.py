# SPDX-License-Identifier: Apache-2.0
"""Does a fault to a network while ranks reduce on it, and says whether each rank came out as it must."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from p4reduce_topos.emulation.network import Network
from p4reduce_topos.faults import words
from p4reduce_topos.faults.catalogue import UNDER_WAY, Fault
from p4reduce_topos.faults.ranks import Event, Ranks
from p4reduce_topos.model import Topology

_CALLS = 60


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
