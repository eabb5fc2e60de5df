# SPDX-License-Identifier: Apache-2.0
"""A small sum of floats: the values of all ranks fit into one packet.

Each rank owns a part of the int32 words that switches add, and the others send zeros there. So its values arrive
unchanged, as float32. All ranks then have all values, and compute the same sum that rounds of their own would have
given: with the same exponents, in the same integers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.protocol.blocks import ZERO, Blocks
from p4reduce.protocol.halves import narrowed, widened
from p4reduce.protocol.membership import Membership
from p4reduce.protocol.numbers import Numbers, Wire, added, numbers_for


def fits(data: npt.NDArray[Any], membership: Membership) -> bool:
    """Return whether the ranks of a job gather such values. All ranks decide alike, by what all of them know.

    Ranks that share a stream with others of their host do not gather.
    """
    room = 0 if membership.hosts else membership.lanes * membership.block_size
    return data.dtype != np.int32 and 0 < data.size * membership.world_size <= room


class Gather:
    """One gather: the words that carry the values of all ranks, and the sum that this rank computes from them."""

    def __init__(
        self, data: npt.NDArray[Any], residual: npt.NDArray[np.float32] | None, membership: Membership
    ) -> None:
        """Prepare the words. `data`: this rank's values. `residual`: receives what the wire would lose of them."""
        self._data, self._residual, self._membership = data, residual, membership
        values = np.zeros((membership.world_size, data.size), np.float32)
        self._parts = list(values)
        self._parts[membership.rank][:] = self._own = widened(data).copy()
        self.words = values.reshape(-1).view(np.int32)
        """The words that switches add."""

    def finish(self, divisor: int, wire: Wire, fingerprint: int, *, read_only: bool) -> bool:
        """Compute the sum into `data`, and the residual. Return False if this rank's values came back changed."""
        member = self._membership
        if self._parts[member.rank].tobytes() != self._own.tobytes():
            return False
        if self._residual is not None:
            self._lose(numbers_for(self._own.dtype, member.world_size, wire), fingerprint | member.rank)
        if not read_only:
            self._data[:] = narrowed(
                added(self._parts, divisor, member.block_size, wire, fingerprint), self._data.dtype
            )
        return True

    def _lose(self, numbers: Numbers, seed: int) -> None:
        """Write the residual of this rank's non-zero blocks."""
        assert self._residual is not None
        size = self._membership.block_size * numbers.per_word
        exponents = np.max([Blocks(part, size).scan() for part in self._parts], axis=0).tolist()
        own, residual = Blocks(self._own, size), Blocks(self._residual, size)
        blocks = np.flatnonzero(own.scan() != ZERO).tolist()
        if blocks:
            values, agreed = own.gather(blocks), [exponents[block] for block in blocks]
            left = values - numbers.dequantise(numbers.quantise(values, agreed, blocks, seed), agreed)
            left[~np.isfinite(left)] = 0  # nothing is left of values whose sum is infinite or NaN
            residual.scatter(blocks, left)
