# SPDX-License-Identifier: Apache-2.0
"""A small sum of floats, of which all ranks' values fit into one packet.

Each rank has a part of the int32 words that switches add, where the others have zeros, so that its values arrive as
they are, as float32, whatever each rank has them as. All ranks then have all values, and give them the sum that they
would have had in rounds of their own: by the same exponents, in the same integers.
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
    """Whether the ranks of a job gather such values: a rule by what all of them know. Who shares a stream does not."""
    room = 0 if membership.hosts else membership.lanes * membership.block_size
    return data.dtype != np.int32 and 0 < data.size * membership.world_size <= room


class Gather:
    """The values of all ranks."""

    def __init__(
        self, data: npt.NDArray[Any], residual: npt.NDArray[np.float32] | None, membership: Membership
    ) -> None:
        """`data`: this rank's values. `residual`: for what the wire would lose of them."""
        self._data, self._residual, self._membership = data, residual, membership
        values = np.zeros((membership.world_size, data.size), np.float32)
        self._parts = list(values)
        self._parts[membership.rank][:] = self._own = widened(data).copy()
        self.words = values.reshape(-1).view(np.int32)
        """What is added."""

    def finish(self, divisor: int, wire: Wire, fingerprint: int, *, read_only: bool) -> bool:
        """Make of all ranks' values the sum, in `data`, and the residual. False where this rank's have come back other
        than it sent them."""
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
        """Write the residual of this rank's blocks that are not zero."""
        assert self._residual is not None
        size = self._membership.block_size * numbers.per_word
        exponents = np.max([Blocks(part, size).scan() for part in self._parts], axis=0).tolist()
        own, residual = Blocks(self._own, size), Blocks(self._residual, size)
        blocks = np.flatnonzero(own.scan() != ZERO).tolist()
        if blocks:
            values, agreed = own.gather(blocks), [exponents[block] for block in blocks]
            left = values - numbers.dequantise(numbers.quantise(values, agreed, blocks, seed), agreed)
            left[~np.isfinite(left)] = 0  # of what is infinite or NaN for all
            residual.scatter(blocks, left)
