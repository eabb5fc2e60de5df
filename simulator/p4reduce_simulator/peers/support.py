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
        return self.workload.numel

    @cached_property
    def nonzero(self) -> float:
        """The non-zero elements of a rank, on average."""
        return float(np.mean([self._elements(mask) for mask in self._masks]))

    def union(self, ranks: int) -> float:
        """Return the non-zero elements of the sum of so many ranks, on average over groups of neighbours."""
        if ranks == 1:
            return self.nonzero
        groups = range(0, self.ranks - ranks + 1, ranks)
        found = [self._elements(np.logical_or.reduce(self._masks[at : at + ranks])) for at in groups]
        return float(np.mean(found))

    def blocks(self, size: int) -> list[Blocks]:
        """Return whether each block of `size` elements has a non-zero, for each rank."""
        width = self.workload.unit
        starts = np.arange(0, self.numel, size)
        first, end = starts // width, -(-np.minimum(starts + size, self.numel) // width)
        found = []
        for mask in self._masks:
            before = np.concatenate(([0], np.cumsum(mask)))  # non-zero units before each
            found.append(before[end] > before[first])
        return found

    @cached_property
    def _masks(self) -> Sequence[Blocks]:
        return list(self.workload.masks(self.ranks, self.seed))

    def _elements(self, mask: Blocks) -> int:
        """Return the elements of the units in a mask. The last unit may have fewer than the others."""
        unit = self.workload.unit
        return int(mask.sum()) * unit - int(mask[-1]) * (len(mask) * unit - self.numel)
