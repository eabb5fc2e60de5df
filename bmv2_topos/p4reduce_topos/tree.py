# SPDX-License-Identifier: Apache-2.0
"""A tree of switches: `depth` levels of them, each with `fan_out` switches below, workers below the last.

depth 2, fan-out 3:

                s1
           ╱    │    ╲           core
        s2      s3      s4
       ╱ │      │ ╲     │ ╲      edge
     h1  h2    h3  h4  h5  h6
"""

from __future__ import annotations

from collections.abc import Sequence

from p4reduce_topos.model import PLAIN, Link, Topology, Wire


def build(workers: int = 6, edge: Wire = PLAIN, core: Wire = PLAIN, *, depth: int = 2, fan_out: int = 3) -> Topology:
    """`edge`: the workers' links, `core`: those between switches. Raises ValueError."""
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


def racks(workers: int, leaves: Sequence[str], edge: Wire) -> tuple[tuple[str, ...], tuple[Link, ...]]:
    """Hosts h1, h2 ... in racks of sizes that differ by one at most, the larger first; and their links."""
    if workers < len(leaves):
        raise ValueError(f"workers={workers}: {len(leaves)} leaves need as many workers, or more")
    hosts = tuple(f"h{number}" for number in range(1, workers + 1))
    return hosts, tuple(Link(host, leaves[rank * len(leaves) // workers], edge) for rank, host in enumerate(hosts))


def links(lower: Sequence[str], upper: Sequence[str], wire: Wire) -> tuple[Link, ...]:
    """Everyone below with everyone above."""
    return tuple(Link(one, other, wire) for one in lower for other in upper)


if __name__ == "__main__":
    from p4reduce_topos.cli import run_module

    run_module("tree")
