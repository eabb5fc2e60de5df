# SPDX-License-Identifier: Apache-2.0
"""One switch, to which all hosts connect.

h1 ──┐
h2 ──┤
...  ├── s1
hN ──┘
"""

from __future__ import annotations

from p4reduce_topos.model import PLAIN, Link, LinkProperties, Topology


def build(workers: int = 4, edge: LinkProperties = PLAIN, *, others: int = 0) -> Topology:
    """Return the topology. Raises ValueError.

    edge: each host's link.
    others: the number of hosts besides the workers, called x1, x2 and so on.
    """
    if not 0 <= others <= 16:
        raise ValueError(f"others={others}: 0 to 16 are accepted")
    names = tuple(f"h{number}" for number in range(1, workers + 1))
    hosts = names + tuple(f"x{number}" for number in range(1, others + 1))
    return Topology("star", hosts, ("s1",), tuple(Link(host, "s1", edge) for host in hosts), names, ("s1",))
