# SPDX-License-Identifier: Apache-2.0
"""The non-zero elements of the ranks' tensors, as schedules need them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from p4reduce_simulator.workload import Workload

Blocks = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Support:
    """The numbers of non-zero elements of tensors and of sums, and the non-zero blocks of each rank.

    Sizes that depend on the data are averages over ranks, and over the parts of the tensor: it is as if non-zeros were
    spread evenly. `union` is for ranks 0 to n - 1.
    """

    workload: Workload
    ranks: int
    seed: int = 0

    @property
    def numel(self) -> int:
        return len(self._masks[0]) if self.workload.file else self.workload.numel

    @cached_property
    def nonzero(self) -> float:
        """The non-zero elements of a rank, on average."""
        return float(np.mean([mask.sum() for mask in self._masks])) * self._scale

    def union(self, ranks: int) -> float:
        """Return the non-zero elements of the sum of so many ranks, on average over groups of neighbours."""
        if ranks == 1:
            return self.nonzero
        groups = range(0, self.ranks - ranks + 1, ranks)
        found = [np.logical_or.reduce(self._masks[at : at + ranks]).sum() for at in groups]
        return float(np.mean(found)) * self._scale

    def blocks(self, size: int) -> list[Blocks]:
        """Return whether each block of `size` elements has a non-zero, for each rank."""
        width = round(self._scale)
        if size % width and width % size:
            raise ValueError(f"blocks of {size} elements: accepted are multiples and divisors of {width}")
        count = -(-self.numel // size)
        if size < width:
            return [np.repeat(mask, width // size)[:count] for mask in self._masks]
        return [np.logical_or.reduceat(mask, np.arange(0, len(mask), size // width)) for mask in self._masks]

    @cached_property
    def _masks(self) -> Sequence[Blocks]:
        return list(self.workload.masks(self.ranks, self.seed))

    @property
    def _scale(self) -> float:
        """The elements of each entry of a mask."""
        return float(self.workload.unit)
