# SPDX-License-Identifier: Apache-2.0
"""One slow link, which the aggregation shares with other traffic: from x1 to y1, x2 to y2 and so on.

       h1 ──┐                     ┌── hN
       h2 ──┤        core         ├── ...
            s1 ══════════════════ s2
       x1 ──┤                     ├── y1
       x2 ──┘                     └── y2

The right switch is the root. So the sums of the left workers cross the slow link, and the results come back over it.
"""

from __future__ import annotations

from p4reduce_topos.model import PLAIN, Link, LinkProperties, Topology
from p4reduce_topos.topologies.parts import racks

SLOW = LinkProperties(rate=100_000_000)


def build(workers: int = 4, edge: LinkProperties = PLAIN, core: LinkProperties = SLOW, *, pairs: int = 1) -> Topology:
    """Return the topology. Raises ValueError.

    edge: every host's link.
    core: the link between the switches.
    pairs: the number of host pairs with other traffic.
    """
    if not 0 <= pairs <= 16:
        raise ValueError(f"pairs={pairs}: 0 to 16 are accepted")
    hosts, edges = racks(workers, ("s1", "s2"), edge)
    numbers = range(1, pairs + 1)
    others = tuple(f"{side}{number}" for side in "xy" for number in numbers)
    cables = tuple(Link(host, "s1" if host.startswith("x") else "s2", edge) for host in others)
    return Topology(
        "bottleneck", hosts + others, ("s1", "s2"), (*edges, *cables, Link("s1", "s2", core)), hosts, ("s2",)
    )
