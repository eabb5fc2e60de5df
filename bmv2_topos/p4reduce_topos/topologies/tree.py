# SPDX-License-Identifier: Apache-2.0
"""A tree of switches with `depth` levels. Each switch has `fan_out` switches below it; the last level has workers.

depth 2, fan-out 3:

                s1
           ╱    │    ╲           core
        s2      s3      s4
       ╱ │      │ ╲     │ ╲      edge
     h1  h2    h3  h4  h5  h6
"""

from __future__ import annotations

from p4reduce_topos.model import PLAIN, Link, LinkProperties, Topology
from p4reduce_topos.topologies.parts import links, racks


def build(
    workers: int = 6, edge: LinkProperties = PLAIN, core: LinkProperties = PLAIN, *, depth: int = 2, fan_out: int = 3
) -> Topology:
    """Return the topology. Raises ValueError.

    edge: the workers' links.
    core: the links between switches.
    """
    if not 1 <= depth <= 4 or not 1 <= fan_out <= 16:
        raise ValueError(f"depth={depth}, fan_out={fan_out}: 1 to 4 and 1 to 16 are accepted")
    levels = [["s1"]]
    cables: list[Link] = []
    named = 1
    for _ in range(depth - 1):
        lower = []
        for upper in levels[-1]:
            made = [f"s{named + number}" for number in range(1, fan_out + 1)]
            named += fan_out
            cables += links(made, (upper,), core)
            lower += made
        levels.append(lower)
    hosts, edges = racks(workers, levels[-1], edge)
    switches = tuple(switch for level in levels for switch in level)
    return Topology("tree", hosts, switches, edges + tuple(cables), hosts, ("s1",))
