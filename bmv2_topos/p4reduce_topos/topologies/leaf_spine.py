# SPDX-License-Identifier: Apache-2.0
"""Leaves that connect to every spine. Spines share a job's slots; other traffic is spread over them by destination.

2 leaves, 2 spines:

       spine1      spine2
         │ ╲      ╱ │
         │   ╲  ╱   │            core
         │   ╱  ╲   │
         │ ╱      ╲ │
       leaf1      leaf2
       ╱   ╲      ╱   ╲          edge
     h1     h2  h3     h4
"""

from __future__ import annotations

from p4reduce_topos.model import PLAIN, LinkProperties, Topology
from p4reduce_topos.topologies.parts import links, racks


def build(
    workers: int = 4, edge: LinkProperties = PLAIN, core: LinkProperties = PLAIN, *, leaves: int = 2, spines: int = 2
) -> Topology:
    """Return the topology. Raises ValueError.

    edge: the workers' links.
    core: the links between leaves and spines.
    """
    if not 1 <= leaves <= 32 or not 1 <= spines <= 16:
        raise ValueError(f"leaves={leaves}, spines={spines}: 1 to 32 and 1 to 16 are accepted")
    lower = tuple(f"leaf{number}" for number in range(1, leaves + 1))
    upper = tuple(f"spine{number}" for number in range(1, spines + 1))
    hosts, edges = racks(workers, lower, edge)
    return Topology("leaf-spine", hosts, lower + upper, edges + links(lower, upper, core), hosts, upper)
