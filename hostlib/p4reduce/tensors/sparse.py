# SPDX-License-Identifier: Apache-2.0
"""torch.sparse_coo tensors as what the protocol moves: the numbers of their rows, and the rows' values.

A row is what one index names: a single element, or a slice of the dense dimensions, as in the gradient of
`torch.nn.Embedding(sparse=True)`. Ranks exchange the numbers of their rows, and then reduce one dense tensor of the
rows that any of them has, in order. It is the case of key-value pairs in OmniReduce (SIGCOMM 2021).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from p4reduce.errors import MismatchError
from p4reduce.tensors.cuda import Crossing
from p4reduce.tensors.dense import work_dtype


class SparseRows:
    """A rank's sparse tensor while it is being reduced."""

    def __init__(self, tensor: torch.Tensor) -> None:
        """Raises UnsupportedDtype."""
        work_dtype(str(tensor.dtype).removeprefix("torch."))
        self._tensor = tensor
        self.crossings: tuple[Crossing, ...] = (Crossing(tensor),) if tensor.is_cuda else ()
        coalesced = tensor.detach().cpu().coalesce()
        self._sparse_shape = tuple(tensor.shape[: tensor.sparse_dim()])
        indices = coalesced.indices().numpy()
        numbers = np.zeros(indices.shape[1], np.int64)
        for index, size in zip(indices, self._sparse_shape, strict=True):
            numbers = numbers * size + index
        self.numbers: npt.NDArray[Any] = numbers.astype(
            np.int32 if math.prod(self._sparse_shape) <= 2**31 else np.int64
        )
        """Of this rank's rows, in order: 1-d, int32 where that suffices."""
        self._values = coalesced.values()

    def description(self) -> npt.NDArray[np.int64]:
        """What ranks must agree on, and last how many rows this one has."""
        return np.array([self._tensor.sparse_dim(), *self._tensor.shape, self.numbers.size], np.int64)

    def counts(self, descriptions: npt.NDArray[np.int64]) -> list[int]:
        """How many rows each rank has. Raises MismatchError, on all ranks alike, if their tensors differ in shape."""
        if (descriptions[:, :-1] != descriptions[0, :-1]).any():
            shapes = "; ".join(
                f"rank {rank}: {tuple(row[1:-1].tolist())}, sparse_dim {row[0]}"
                for rank, row in enumerate(descriptions)
            )
            raise MismatchError(f"ranks reduce sparse tensors of different shapes: {shapes}")
        counts: list[int] = descriptions[:, -1].tolist()
        return counts

    def pack(self, union: npt.NDArray[Any]) -> torch.Tensor:
        """This rank's values of the rows numbered `union`: shape (rows, *dense dimensions), zeros where it has none."""
        packed = torch.zeros((union.size, *self._values.shape[1:]), dtype=self._values.dtype)
        packed[torch.from_numpy(np.searchsorted(union, self.numbers))] = self._values
        return packed

    def write_back(self, union: npt.NDArray[Any], packed: torch.Tensor) -> None:
        """Makes the tensor the coalesced one of these rows."""
        indices = np.empty((len(self._sparse_shape), union.size), np.int64)
        rest = union.astype(np.int64)
        for dimension in reversed(range(len(self._sparse_shape))):
            rest, indices[dimension] = np.divmod(rest, max(1, self._sparse_shape[dimension]))
        result = torch.sparse_coo_tensor(
            torch.from_numpy(indices), packed, self._tensor.shape, is_coalesced=True, check_invariants=False
        )
        for crossing in self.crossings:
            crossing.write(result)
        if not self.crossings:
            with torch.no_grad():
                self._tensor.copy_(result)
