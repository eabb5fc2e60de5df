# SPDX-License-Identifier: Apache-2.0
"""Two racks under a spine. Each leaf aggregates its rack, and the spine aggregates the leaves.

         spine1
        ╱      ╲          core
   leaf1        leaf2
  ╱ │ ╲        ╱ │ ╲      edge
h1 h2 ...    h5 h6 ...
"""

from __future__ import annotations

from p4reduce_topos.model import PLAIN, LinkProperties, Topology
from p4reduce_topos.topologies.parts import links, racks


def build(workers: int = 8, edge: LinkProperties = PLAIN, core: LinkProperties = PLAIN) -> Topology:
    """Return the topology, in which the first half of the workers is in the first rack. Raises ValueError.

    edge: the workers' links.
    core: the links of the leaves to the spine.
    """
    hosts, edges = racks(workers, ("leaf1", "leaf2"), edge)
    uplinks = links(("leaf1", "leaf2"), ("spine1",), core)
    return Topology("two-racks", hosts, ("leaf1", "leaf2", "spine1"), edges + uplinks, hosts, ("spine1",))
