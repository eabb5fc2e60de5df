# SPDX-License-Identifier: Apache-2.0
"""Tensors with few non-zero rows, in the form that the protocol reduces: the indices of the rows, and their values.

Ranks exchange the indices of their rows. Then they reduce one dense tensor of the rows that any of them has, in order.
It is the case of key-value pairs in OmniReduce (SIGCOMM 2021).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from p4reduce.tensors.dense import copy_values
from p4reduce.tensors.indices import find
from p4reduce.tensors.spec import TensorSpec, describe
from p4reduce.tensors.staging import numbers, target

if TYPE_CHECKING:
    import torch

    from p4reduce.tensors.cuda import DeviceTransfer

Values = npt.NDArray[Any]


class Rows(Protocol):
    """A rank's tensor while its rows are reduced. `indices` and `values` are those of the rows that it has."""

    transfers: tuple[DeviceTransfer, ...]
    """Transfers of CUDA tensors that are written."""
    dtype: str
    """The tensor's dtype."""
    description: list[int]
    """Facts on which ranks must agree, too: number of sparse dimensions and shape, or -1 and size if it is dense."""
    bound: int
    """How many rows there could be."""
    width: int
    """Values in a row."""
    indices: npt.NDArray[np.int64]
    """Indices of the rows, in order; those of several sparse dimensions are flattened."""
    values: Values
    """Values of shape (rows, width), in the dtype in which the protocol adds."""

    def write_back(self, indices: npt.NDArray[np.int64], values: Values) -> None:
        """Write these rows into the tensor, and make all other rows zero."""


class SparseTensor:
    """A tensor of layout torch.sparse_coo, in which each index names a row.

    A row is a single element, or a slice of the dense dimensions as in the gradient of
    `torch.nn.Embedding(sparse=True)`.
    """

    def __init__(self, tensor: Any, spec: TensorSpec) -> None:
        """Read the rows. Raises UnsupportedDtype, or ValueError if an index is outside the tensor's shape."""
        import torch

        self.dtype = spec.dtype
        carried = torch.float32 if spec.work_dtype is np.float32 else torch.int32
        self._tensor = tensor
        self.transfers = target(tensor).transfers if spec.is_cuda else ()
        self._sparse_shape = spec.shape[: tensor.sparse_dim()]
        here = tensor.detach().cpu()
        _check_indices(here)
        # Values with the same index are added in the dtype in which the protocol adds.
        coalesced = here.to(carried).coalesce()
        self.indices = self._flat_indices(coalesced)
        if not (np.diff(self.indices) > 0).all():  # it was marked as coalesced, but is not
            again: Any = coalesced
            coalesced = again._coalesced_(False).coalesce()
            self.indices = self._flat_indices(coalesced)
        self.description = [len(self._sparse_shape), *spec.shape]
        self.bound = math.prod(self._sparse_shape)
        self.width = math.prod(spec.shape[len(self._sparse_shape) :])
        self.values = coalesced.values().reshape(self.indices.size, self.width).numpy()

    def _flat_indices(self, coalesced: torch.Tensor) -> npt.NDArray[np.int64]:
        if not self._sparse_shape:
            return np.zeros(coalesced._nnz(), np.int64)
        flat: npt.NDArray[np.int64]
        flat, *others = coalesced.indices().numpy()
        for index, size in zip(others, self._sparse_shape[1:], strict=True):
            flat = flat * size + index
        return flat

    def write_back(self, indices: npt.NDArray[np.int64], values: Values) -> None:
        """Make the tensor the coalesced one of these rows."""
        import torch

        by_dimension = np.empty((len(self._sparse_shape), indices.size), np.int64)
        rest = indices
        for dimension in reversed(range(1, len(self._sparse_shape))):
            rest, by_dimension[dimension] = np.divmod(rest, max(1, self._sparse_shape[dimension]))
        by_dimension[:1] = rest
        shape = (indices.size, *self._tensor.shape[len(self._sparse_shape) :])
        rows = torch.empty(shape, dtype=self._tensor.dtype, device="cpu")
        copy_values(rows, torch.from_numpy(values).reshape(shape))
        result = torch.sparse_coo_tensor(
            torch.from_numpy(by_dimension),
            rows,
            self._tensor.shape,
            device="cpu",
            is_coalesced=True,
            check_invariants=False,
        )
        for transfer in self.transfers:
            transfer.write(result)
        if not self.transfers:
            with torch.inference_mode(self._tensor.is_inference()), torch.no_grad():
                self._tensor.copy_(result)


class Elements:
    """A dense tensor, whose rows are its elements that are not zero, in row-major order."""

    width = 1

    def __init__(self, tensor: Any, spec: TensorSpec) -> None:
        """Find the elements. Raises UnsupportedDtype, or ValueError if the tensor cannot take a result."""
        self.dtype = spec.dtype
        carried = spec.work_dtype
        spec.check_writable(tensor)
        self.transfers = target(tensor).transfers if spec.is_cuda else ()
        host = tensor.detach().cpu() if spec.is_cuda else tensor
        self._host = numbers(host, describe(host) if spec.is_cuda else spec, carried)
        self.bound = self._host.work.size
        self.description = [-1, self.bound]
        self.indices = find(self._host.work)
        self.values = self._host.work[self.indices][:, np.newaxis]

    def blocks(self, size: int) -> int:
        """Return how many blocks of `size` elements are not zero."""
        return int(np.count_nonzero(np.diff(self.indices // size, prepend=-1)))

    def write_back(self, indices: npt.NDArray[np.int64], values: Values) -> None:
        """Write the elements with these indices, and make all others zero."""
        self._host.work.fill(0)
        self._host.work[indices] = values[:, 0]
        self._host.write_back()
        for transfer in self.transfers:
            transfer.write(self._host.host)


def _check_indices(tensor: torch.Tensor) -> None:
    """Raise ValueError if an index is outside the shape. Torch checks that only on demand.

    Flattened, such an index would name another row, or one beyond the bound.
    """
    indices = tensor._indices()
    if not tensor._nnz() or not indices.shape[0]:
        return
    sizes = tensor.shape[: tensor.sparse_dim()]
    for dimension, (least, most, size) in enumerate(
        zip(indices.amin(1).tolist(), indices.amax(1).tolist(), sizes, strict=True)
    ):
        if least < 0 or most >= size:
            raise ValueError(
                f"tensor has indices from {least} to {most} in dimension {dimension}: accepted are 0 to {size - 1}"
            )
