# SPDX-License-Identifier: Apache-2.0
"""Hosts in racks, and links between layers of switches: what several topologies are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from p4reduce_topos.model import Link, Topology, Wire


def racks(workers: int, leaves: Sequence[str], edge: Wire) -> tuple[tuple[str, ...], tuple[Link, ...]]:
    """Hosts h1, h2 ... in racks of sizes that differ by one at most, the larger first; and their links."""
    if workers < len(leaves):
        raise ValueError(f"workers={workers}: {len(leaves)} leaves need as many workers, or more")
    hosts = tuple(f"h{number}" for number in range(1, workers + 1))
    return hosts, tuple(Link(host, leaves[rank * len(leaves) // workers], edge) for rank, host in enumerate(hosts))


def links(lower: Sequence[str], upper: Sequence[str], wire: Wire) -> tuple[Link, ...]:
    """Everyone below with everyone above."""
    return tuple(Link(one, other, wire) for one in lower for other in upper)


def with_other_host(topology: Topology, beside: str) -> Topology:
    """Return the topology; where all its hosts are workers, with one more, which has a link like that of host
    `beside`."""
    if set(topology.hosts) != set(topology.workers):
        return topology
    nodes = {*topology.hosts, *topology.switches}
    name = next(name for number in count(1) if (name := f"x{number}") not in nodes)
    switch = topology.ports(beside)[1]
    link = Link(name, switch, topology.link(beside, switch).wire)
    return replace(topology, hosts=(*topology.hosts, name), links=(*topology.links, link))
