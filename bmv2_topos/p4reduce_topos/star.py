# SPDX-License-Identifier: Apache-2.0
"""One switch.

h1 ──┐
h2 ──┤
...  ├── s1
hN ──┘
"""

from __future__ import annotations

from p4reduce_topos.model import PLAIN, Link, Topology, Wire


def build(workers: int = 4, edge: Wire = PLAIN) -> Topology:
    """`edge`: each worker's link."""
    hosts = tuple(f"h{number}" for number in range(1, workers + 1))
    return Topology("star", hosts, ("s1",), tuple(Link(host, "s1", edge) for host in hosts), hosts, ("s1",))


if __name__ == "__main__":
    from p4reduce_topos.cli import run_module

    run_module("star")
