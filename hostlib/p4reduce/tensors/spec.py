# SPDX-License-Identifier: Apache-2.0
"""The facts about a tensor that collectives need, collected once for each call: dense or sparse, NumPy or torch."""

from __future__ import annotations

import ctypes
import sys
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

import numpy as np

from p4reduce.errors import UnsupportedDtype
from p4reduce.protocol.halves import BFLOAT16
from p4reduce.protocol.numbers import WIRES, Wire

if TYPE_CHECKING:
    import torch

# The dtype in which the protocol adds the values of each dtype that a user may pass.
WORK_DTYPES: dict[str, type[np.float32] | type[np.int32]] = {
    "float32": np.float32,
    "float16": np.float32,
    "bfloat16": np.float32,
    "int32": np.int32,
}

_ADVICE = {
    "float64": "; model.float() makes a model float32, and tensor.float() or array.astype(np.float32) what is in it",
    "int64": "; where the values fit, tensor.int() or array.astype(np.int32) makes it int32",
}

Half: TypeAlias = "type[np.float16] | type[np.uint16]"

# Dtypes of 16-bit floats' memory. The protocol reads and writes it if no other step of a collective needs float32.
HALVES: dict[str, Half] = {"float16": np.float16, "bfloat16": BFLOAT16.type}

WireChoice: TypeAlias = Literal["auto", Wire]
WIRE_CHOICES: tuple[WireChoice, ...] = ("auto", *WIRES)


class TensorSpec(NamedTuple):
    """The facts about a tensor, as `describe` collects them."""

    dtype: str
    """The dtype's name, such as "float32"."""
    shape: tuple[int, ...]
    size: int
    """Elements."""
    is_torch: bool
    is_cuda: bool
    is_sparse: bool
    """Whether it has the layout torch.sparse_coo."""
    address: int
    """Address of its elements, if they are native numbers in row-major order, writable, on the host; otherwise 0."""

    @property
    def work_dtype(self) -> type[np.float32] | type[np.int32]:
        """The dtype in which the protocol adds its values. Raises UnsupportedDtype."""
        return WORK_DTYPES.get(self.dtype) or work_dtype(self.dtype)

    def wire(self, choice: WireChoice) -> Wire:
        """Return the wire for its values. Raises UnsupportedDtype."""
        return wire_for(self.dtype, choice)

    def check_movable(self, tensor: Any) -> None:
        """Raise UnsupportedDtype if the tensor is more than the bits of its elements."""
        if not self.is_torch:
            if tensor.dtype.hasobject or tensor.dtype.fields is not None:
                raise UnsupportedDtype(
                    f"tensor has dtype {tensor.dtype}: Python objects and structures cannot be moved"
                )
        elif tensor.is_quantized:
            raise UnsupportedDtype(f"tensor has dtype {self.dtype}, whose scale would stay behind: pass its int_repr()")

    def check_writable(self, tensor: Any) -> None:
        """Raise ValueError if the tensor cannot take a result."""
        if self.address:
            return
        if not self.is_torch and not tensor.flags.writeable:
            raise ValueError("tensor is a read-only array, and the result is written into it: pass a writable copy")
        strides = tensor.stride() if self.is_torch else tensor.strides
        # An expanded dimension stores one element for many: there is no place for its result.
        if self.size and any(n > 1 and stride == 0 for n, stride in zip(self.shape, strides, strict=True)):
            raise ValueError(
                f"tensor of shape {self.shape} has an expanded dimension (stride 0), so its elements share memory: "
                "pass a contiguous copy"
            )


def describe(tensor: Any, argument: str = "tensor", *, sparse: bool = False) -> TensorSpec:
    """Return the spec of an array or tensor on the CPU or a CUDA device. Raises TypeError for anything else.

    sparse: whether a tensor of layout torch.sparse_coo is accepted, too.
    """
    if isinstance(tensor, np.ndarray):
        if isinstance(tensor, np.ma.MaskedArray):
            raise TypeError(f"{argument} is a masked array, whose mask a collective would ignore: pass array.filled(0)")
        dtype, size, address = tensor.dtype, tensor.size, 0
        if tensor.flags.carray and dtype.isnative and size:
            # The same as in `memory.address`, inlined, because every collective comes here.
            if dtype.kind in "biufc" and dtype.isbuiltin == 1:  # a buffer cannot have others, such as float8_e5m2
                address = ctypes.addressof(ctypes.c_char.from_buffer(tensor))  # type: ignore[arg-type]
            else:
                address = tensor.ctypes.data
        return TensorSpec(_name(dtype), tensor.shape, size, False, False, False, address)
    torch: Any = sys.modules.get("torch")  # a caller with a torch tensor has imported it
    if torch is not None and isinstance(tensor, torch.Tensor):
        is_sparse = tensor.layout is torch.sparse_coo
        if not (sparse and is_sparse) and (type(tensor) is not torch.Tensor or tensor.layout is not torch.strided):
            _check_torch(tensor, argument)
        size, is_cuda, address = tensor.numel(), tensor.is_cuda, 0
        if not (is_cuda or is_sparse or tensor.is_cpu):
            raise TypeError(f"{argument} is on device {tensor.device}: accepted are cpu and cuda; pass tensor.cpu()")
        # The memory of a negated or conjugated view does not hold the values that the view shows. An empty tensor may
        # have any strides.
        if size and not (is_cuda or is_sparse or tensor.is_neg() or tensor.is_conj()) and tensor.is_contiguous():
            address = tensor.data_ptr()
            if address % tensor.element_size():
                address = 0
        return TensorSpec(_name(tensor.dtype), tuple(tensor.shape), size, True, is_cuda, is_sparse, address)
    if isinstance(tensor, np.generic):
        raise TypeError(f"{argument} is a NumPy scalar ({tensor.dtype}), which cannot be written to: pass a 0-d array")
    raise TypeError(f"{argument} is a {type(tensor).__name__}: accepted are numpy.ndarray and torch.Tensor")


def _check_torch(tensor: torch.Tensor, argument: str) -> None:
    """Raise TypeError unless the tensor is dense and itself holds its elements."""
    torch = sys.modules["torch"]
    if tensor.layout is not torch.strided:
        raise TypeError(
            f"{argument} has layout {tensor.layout}: accepted are dense tensors, and torch.sparse_coo in "
            "allreduce; pass tensor.to_dense(), whose zero blocks are not sent"
        )
    # A subclass with its own dispatch does not hold its elements itself: a DTensor's are those of its local tensor.
    if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        local = "tensor.to_local()" if hasattr(tensor, "to_local") else "what it wraps"
        raise TypeError(f"{argument} is a {type(tensor).__name__}, which wraps other tensors: pass {local}")


@lru_cache(maxsize=256)
def _name(dtype: Any) -> str:
    return dtype.name if isinstance(dtype, np.dtype) else str(dtype).removeprefix("torch.")


def work_dtype(name: str) -> type[np.float32] | type[np.int32]:
    """Return the dtype in which the protocol adds values of the dtype of this name. Raises UnsupportedDtype."""
    if name not in WORK_DTYPES:
        raise UnsupportedDtype(
            f"tensor has dtype {name}: supported are {', '.join(WORK_DTYPES)}{_ADVICE.get(name, '')}"
        )
    return WORK_DTYPES[name]


def wire_for(name: str, choice: WireChoice) -> Wire:
    """Return the wire for values of the dtype of this name. Raises UnsupportedDtype.

    int32 is sent unchanged. By default, 16-bit floats are sent as int16, and float32 as int32.
    """
    if (WORK_DTYPES.get(name) or work_dtype(name)) is np.int32:
        return "int32"
    if choice != "auto":
        return choice
    return "int16" if name.endswith("16") else "int32"


def why_wire(name: str, choice: WireChoice) -> str:
    """Return the reason for the result of `wire_for`, in words."""
    if WORK_DTYPES[name] is np.int32:
        return "int32 travels as it is"
    return "asked for" if choice != "auto" else f"the default of {name}"
