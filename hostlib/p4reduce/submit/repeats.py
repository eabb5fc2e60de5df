# SPDX-License-Identifier: Apache-2.0
"""Sums of small NumPy arrays that are like one before: they need no plan, and most of their time is not Python's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from p4reduce.collectives.choice import LEAST, Layout, why_blocks
from p4reduce.collectives.plan import Plan
from p4reduce.collectives.sites import Key, Sites
from p4reduce.tensors.dense import WireChoice

if TYPE_CHECKING:
    from p4reduce.engine.carrier import Carrier, Prepared

MOST = 256
"""Kinds of sums that are remembered."""


class _Kind(NamedTuple):
    """Of sums that have the same size, dtype, operation, form and layout."""

    prepared: Prepared
    site: Key
    why: str


class Repeats:
    """What a communicator remembers of its sums, added up where they are, which nothing is written back of.

    Its methods may be called from any thread.
    """

    def __init__(self, engine: Carrier, sites: Sites) -> None:
        self._engine = engine
        self._sites = sites
        self._kinds: dict[tuple[Any, ...], _Kind] = {}

    def learn(self, plan: Plan[Any], op: str, wire: WireChoice, layout: Layout) -> None:
        """A sum that went by blocks, as the same call will again."""
        array, operation = plan.result, plan.operation
        if operation is None or not _is_plain(array) or not np.may_share_memory(array, operation.data):
            return
        prepared = self._engine.prepare(operation, plan.name)
        if prepared is not None:
            if len(self._kinds) >= MOST:
                self._kinds.clear()
            site = Key(op, array.size, array.dtype.name, operation.wire)
            why = why_blocks(layout, array.size, residual=False)
            self._kinds[op, wire, layout, array.dtype, array.size] = _Kind(prepared, site, why)

    def carry(self, array: Any, op: str, wire: WireChoice, layout: Layout, limit: float) -> bool:
        """Sums up an array as one before, where there was one like it: else returns False, and has done nothing.

        limit: seconds. Raises what the engine does.
        """
        kind = self._kinds.get((op, wire, layout, array.dtype, array.size)) if _is_plain(array) else None
        if kind is None:
            return False
        self._engine.carry_again(kind.prepared, array, limit)
        self._sites.went(kind.site, wire, "blocks", kind.why)
        return True


def _is_plain(array: Any) -> bool:
    """Whether it is a small array of numbers whose own memory the protocol can add up, if it has that dtype."""
    return type(array) is np.ndarray and 0 < array.size < LEAST and array.dtype.kind in "fi" and array.flags.carray
