# SPDX-License-Identifier: Apache-2.0
"""What a user may hand to a collective, as the flat array that the protocol reduces, and back again.

The protocol adds float32 and int32 values of one flat, contiguous array. A tensor that is that already is reduced in
its own memory; any other is copied, and its result is rounded back into it.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from p4reduce.errors import UnsupportedDtype

if TYPE_CHECKING:
    import torch

Tensor: TypeAlias = "npt.NDArray[Any] | torch.Tensor"
WorkArray: TypeAlias = "npt.NDArray[np.float32] | npt.NDArray[np.int32]"

# The dtype in which the protocol adds the values of each dtype that a user may hand over.
WORK_DTYPES: dict[str, type[np.float32] | type[np.int32]] = {
    "float32": np.float32,
    "float16": np.float32,
    "bfloat16": np.float32,
    "int32": np.int32,
}
SUPPORTED = ", ".join(WORK_DTYPES)


class Reducible(Protocol):
    """A user's tensor while it is being reduced."""

    dtype: str
    """Name of the tensor's dtype: a key of `WORK_DTYPES`."""
    work: WorkArray
    """Its elements in row-major order, 1-d: to be reduced in place."""

    def write_back(self, divisor: int = 1) -> None:
        """Writes the contents of `work`, divided by `divisor`, into the tensor."""


def open_tensor(tensor: object) -> Reducible:
    """Prepares a NumPy array or CPU torch tensor of any shape and strides for a reduction in place.

    Raises UnsupportedDtype for a dtype other than float32, float16, bfloat16 and int32, TypeError for what is not a
    dense CPU tensor or array, and ValueError for one that cannot be written to.
    """
    if isinstance(tensor, np.ndarray):
        return ArrayReduction(tensor)
    torch = sys.modules.get("torch")  # whoever holds a torch tensor has imported torch
    if torch is not None and isinstance(tensor, torch.Tensor):
        return TorchReduction(tensor)
    if isinstance(tensor, np.generic):
        raise TypeError(f"tensor is a NumPy scalar ({tensor.dtype}), which cannot be written to: pass a 0-d array")
    raise TypeError(f"tensor is a {type(tensor).__name__}: accepted are numpy.ndarray and torch.Tensor")


class ArrayReduction:
    """A NumPy array while it is being reduced."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        if isinstance(array, np.ma.MaskedArray):
            raise TypeError("tensor is a masked array, whose mask a sum would ignore: pass array.filled(0)")
        self.dtype = array.dtype.name
        work_dtype = _work_dtype(self.dtype)
        if not array.flags.writeable:
            raise ValueError("tensor is a read-only array, and the result is written into it: pass a writable copy")
        _check_no_overlap(array.shape, array.strides)
        self._array = np.asarray(array)  # np.matrix would not become 1-d
        # Only row-major memory is in the order that all ranks agree on.
        self._in_place = array.dtype == work_dtype and array.flags.c_contiguous and array.flags.aligned
        # `dtype ==` holds for the native byte order only, so big-endian arrays are copied too.
        row_major: npt.NDArray[Any] = self._array if self._in_place else np.array(self._array, work_dtype, order="C")
        self.work: WorkArray = row_major.reshape(-1)

    def write_back(self, divisor: int = 1) -> None:
        _divide(self.work, divisor)
        if not self._in_place:
            with np.errstate(over="ignore"):  # a sum too large for float16 is infinite there
                self._array[...] = self.work.reshape(self._array.shape)


class TorchReduction:
    """A torch tensor while it is being reduced. Autograd does not see the reduction, as in torch.distributed."""

    def __init__(self, tensor: torch.Tensor) -> None:
        import torch

        if tensor.layout is not torch.strided:
            raise TypeError(
                f"tensor has layout {tensor.layout}, which is not supported yet: pass tensor.to_dense(), whose zero "
                "blocks are not sent"
            )
        if tensor.device.type != "cpu":
            raise TypeError(f"tensor is on device {tensor.device}, which is not supported yet: pass tensor.cpu()")
        self.dtype = str(tensor.dtype).removeprefix("torch.")
        work_dtype = torch.int32 if _work_dtype(self.dtype) is np.int32 else torch.float32
        _check_no_overlap(tensor.shape, tensor.stride())
        self._tensor = tensor.detach()
        # A negated view is contiguous and yet not what its memory says.
        self._in_place = tensor.dtype == work_dtype and tensor.is_contiguous() and not tensor.is_neg()
        if self._in_place:
            flat = self._tensor.view(-1)
        else:
            flat = torch.empty(tensor.shape, dtype=work_dtype).copy_(self._tensor).view(-1)
        self.work: WorkArray = flat.numpy()

    def write_back(self, divisor: int = 1) -> None:
        import torch

        _divide(self.work, divisor)
        if not self._in_place:
            self._tensor.copy_(torch.from_numpy(self.work).view(self._tensor.shape))
        elif not self._tensor.is_inference():
            # Written behind autograd's back: a backward pass that has saved this tensor must notice.
            torch.autograd.graph.increment_version(self._tensor)


def _work_dtype(name: str) -> type[np.float32] | type[np.int32]:
    if name not in WORK_DTYPES:
        raise UnsupportedDtype(f"tensor has dtype {name}: supported are {SUPPORTED}")
    return WORK_DTYPES[name]


def _check_no_overlap(shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
    """An expanded dimension stores one element for many: there is no place for its result."""
    if 0 not in shape and any(size > 1 and stride == 0 for size, stride in zip(shape, strides, strict=True)):
        raise ValueError(
            f"tensor of shape {tuple(shape)} has an expanded dimension (stride 0), so its elements share memory: "
            "pass a contiguous copy"
        )


def _divide(work: WorkArray, divisor: int) -> None:
    # In float32, so that a float16 average need not have a float16 sum.
    if divisor != 1:
        np.divide(work, np.float32(divisor), out=work)
