# SPDX-License-Identifier: Apache-2.0
"""Networks in Mininet: topologies, the experiments that run on them, and faults.

Topologies of your own are made of what is named here, and run with `p4reduce topo run FILE.py:FUNCTION`.
"""

from p4reduce_topos.model import Link, Topology, Wire

__all__ = ["Link", "Topology", "Wire"]
