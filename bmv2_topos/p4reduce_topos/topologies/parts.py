# SPDX-License-Identifier: Apache-2.0
"""Parts that several topologies share: hosts in racks, and links between layers of switches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from p4reduce_topos.model import Link, LinkProperties, Topology


def racks(workers: int, leaves: Sequence[str], edge: LinkProperties) -> tuple[tuple[str, ...], tuple[Link, ...]]:
    """Return hosts h1, h2 ... in racks, and their links. Sizes of racks differ by one at most. Raises ValueError."""
    if workers < len(leaves):
        raise ValueError(f"workers={workers}: {len(leaves)} leaves need as many workers, or more")
    hosts = tuple(f"h{number}" for number in range(1, workers + 1))
    return hosts, tuple(Link(host, leaves[rank * len(leaves) // workers], edge) for rank, host in enumerate(hosts))


def links(lower: Sequence[str], upper: Sequence[str], properties: LinkProperties) -> tuple[Link, ...]:
    """Return links from every lower switch to every upper one."""
    return tuple(Link(one, other, properties) for one in lower for other in upper)


def with_extra_host(topology: Topology, beside: str) -> Topology:
    """Return the topology with at least one host that is no worker.

    If all hosts are workers, a host is added. Its link is like that of the host `beside`, at the same switch.
    """
    if set(topology.hosts) != set(topology.workers):
        return topology
    nodes = {*topology.hosts, *topology.switches}
    name = next(name for number in count(1) if (name := f"x{number}") not in nodes)
    switch = topology.ports(beside)[1]
    link = Link(name, switch, topology.link(beside, switch).properties)
    return replace(topology, hosts=(*topology.hosts, name), links=(*topology.links, link))
