# SPDX-License-Identifier: Apache-2.0
"""The topologies by name."""

from __future__ import annotations

from collections.abc import Callable

from p4reduce_topos import bottleneck, leaf_spine, star, tree, two_racks
from p4reduce_topos.model import Topology

TOPOLOGIES: dict[str, Callable[..., Topology]] = {
    "star": star.build,
    "two-racks": two_racks.build,
    "tree": tree.build,
    "leaf-spine": leaf_spine.build,
    "bottleneck": bottleneck.build,
}
