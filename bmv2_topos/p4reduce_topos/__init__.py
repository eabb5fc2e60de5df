# SPDX-License-Identifier: Apache-2.0
"""Emulated networks in Mininet: topologies, experiments on them, and faults.

The names exported here are those that a topology of your own needs; `p4reduce topo run FILE.py:FUNCTION` runs it.
"""

from p4reduce_topos.model import Link, LinkProperties, Topology

__all__ = ["Link", "Topology", "LinkProperties"]
