# SPDX-License-Identifier: Apache-2.0
"""Leaves that connect to every spine and add up their workers' packets. Each spine completes a share of a job's slots.

Each core link carries a share of one worker's packets: with 2 spines, half of them.

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

from dataclasses import replace

from p4reduce_topos.model import PLAIN, LinkProperties, Topology
from p4reduce_topos.topologies import leaf_spine


def build(
    workers: int = 4, edge: LinkProperties = PLAIN, core: LinkProperties = PLAIN, *, leaves: int = 2, spines: int = 2
) -> Topology:
    """Return the topology. Raises ValueError.

    edge: the workers' links.
    core: the links between leaves and spines.
    """
    forwarding = leaf_spine.build(workers, edge, core, leaves=leaves, spines=spines)
    return replace(forwarding, name="clos", hierarchical=True)
