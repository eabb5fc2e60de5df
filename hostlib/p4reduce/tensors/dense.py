# SPDX-License-Identifier: Apache-2.0
"""NumPy arrays and dense torch tensors, alike: what they are, what can be done with them, and copies between them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeGuard

import numpy as np
import numpy.typing as npt

from p4reduce.errors import UnsupportedDtype
from p4reduce.protocol.halves import BFLOAT16
from p4reduce.protocol.numbers import WIRES, Wire
from p4reduce.tensors.copies import copy_values

if TYPE_CHECKING:
    import torch

# The dtype in which the protocol adds the values of each dtype that a user may hand over.
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

# That of 16-bit floats' memory, which the protocol reads and writes where no other step of a collective is in float32.
HALVES: dict[str, Half] = {"float16": np.float16, "bfloat16": BFLOAT16.type}

WireChoice: TypeAlias = Literal["auto", Wire]
WIRE_CHOICES: tuple[WireChoice, ...] = ("auto", *WIRES)


def check_dense(tensor: object, argument: str = "tensor") -> None:
    """Raises TypeError for anything but a dense array or tensor, on the CPU or a CUDA device."""
    if isinstance(tensor, np.ndarray):
        if isinstance(tensor, np.ma.MaskedArray):
            raise TypeError(f"{argument} is a masked array, whose mask a collective would ignore: pass array.filled(0)")
    elif is_torch(tensor):
        if str(tensor.layout) != "torch.strided":
            raise TypeError(
                f"{argument} has layout {tensor.layout}: accepted are dense tensors, and torch.sparse_coo in "
                "allreduce; pass tensor.to_dense(), whose zero blocks are not sent"
            )
        if _wraps_others(tensor):
            local = "tensor.to_local()" if hasattr(tensor, "to_local") else "what it wraps"
            raise TypeError(f"{argument} is a {type(tensor).__name__}, which wraps other tensors: pass {local}")
        if tensor.device.type not in ("cpu", "cuda"):
            raise TypeError(f"{argument} is on device {tensor.device}: accepted are cpu and cuda; pass tensor.cpu()")
    elif isinstance(tensor, np.generic):
        raise TypeError(f"{argument} is a NumPy scalar ({tensor.dtype}), which cannot be written to: pass a 0-d array")
    else:
        raise TypeError(f"{argument} is a {type(tensor).__name__}: accepted are numpy.ndarray and torch.Tensor")


def dtype_name(tensor: Any) -> str:
    """Of a dense array or tensor: "float32". Raises TypeError for anything else."""
    check_dense(tensor)
    name: str = tensor.dtype.name if isinstance(tensor, np.ndarray) else str(tensor.dtype).removeprefix("torch.")
    return name


def is_torch(tensor: object) -> TypeGuard[torch.Tensor]:
    """Whether it is a torch tensor; whoever holds one has imported torch, so this does not."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def _wraps_others(tensor: torch.Tensor) -> bool:
    """Whether it is of a subclass that has no elements in memory of its own, as those of a DTensor are its local's."""
    import torch

    return type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__


def is_sparse(tensor: object) -> bool:
    """Whether it is a tensor of layout torch.sparse_coo."""
    return is_torch(tensor) and str(tensor.layout) == "torch.sparse_coo"


def shape_of(tensor: Any) -> tuple[int, ...]:
    """Of a dense array or tensor. Raises TypeError for anything else."""
    check_dense(tensor)
    return tuple(tensor.shape)


def work_dtype(name: str) -> type[np.float32] | type[np.int32]:
    """In what the protocol adds values of the dtype of this name. Raises UnsupportedDtype."""
    if name not in WORK_DTYPES:
        raise UnsupportedDtype(
            f"tensor has dtype {name}: supported are {', '.join(WORK_DTYPES)}{_ADVICE.get(name, '')}"
        )
    return WORK_DTYPES[name]


def wire_for(name: str, choice: WireChoice) -> Wire:
    """How values of the dtype of this name travel: int32 as it is, and by default 16 bits of what has 16."""
    if WORK_DTYPES[name] is np.int32:
        return "int32"
    if choice != "auto":
        return choice
    return "int16" if name.endswith("16") else "int32"


def why_wire(name: str, choice: WireChoice) -> str:
    """Why `wire_for` gives what it gives."""
    if WORK_DTYPES[name] is np.int32:
        return "int32 travels as it is"
    return "asked for" if choice != "auto" else f"the default of {name}"


def check_movable(tensor: Any) -> None:
    """Raises UnsupportedDtype for what is more than the bits of its elements."""
    check_dense(tensor)
    if isinstance(tensor, np.ndarray):
        if tensor.dtype.hasobject or tensor.dtype.fields is not None:
            raise UnsupportedDtype(f"tensor has dtype {tensor.dtype}: Python objects and structures cannot be moved")
    elif tensor.is_quantized:
        name = dtype_name(tensor)
        raise UnsupportedDtype(f"tensor has dtype {name}, whose scale would stay behind: pass its int_repr()")


def check_writable(tensor: Any) -> None:
    """Raises ValueError for an array or tensor that cannot take a result."""
    if isinstance(tensor, np.ndarray):
        if not tensor.flags.writeable:
            raise ValueError("tensor is a read-only array, and the result is written into it: pass a writable copy")
        strides = tensor.strides
    else:
        strides = tensor.stride()
    # An expanded dimension stores one element for many: there is no place for its result.
    if 0 not in tensor.shape and any(n > 1 and stride == 0 for n, stride in zip(tensor.shape, strides, strict=True)):
        raise ValueError(
            f"tensor of shape {tuple(tensor.shape)} has an expanded dimension (stride 0), so its elements share "
            "memory: pass a contiguous copy"
        )


def flat_float32(name: str, tensor: Any, numel: int) -> npt.NDArray[np.float32]:
    """The memory of the argument `name`, 1-d: float32 of the host, in row-major order, of `numel` elements.

    Raises ValueError for any other."""
    check_dense(tensor, name)
    array = tensor.detach().numpy() if is_torch(tensor) and not tensor.is_cuda else tensor
    if not isinstance(array, np.ndarray) or array.dtype != np.float32 or not array.flags.carray or array.size != numel:
        raise ValueError(
            f"{name} is {dtype_name(tensor)} of shape {shape_of(tensor)}: accepted is float32 in the host's memory, "
            f"contiguous and writable, of {numel} elements"
        )
    return array.reshape(-1)


def shares_memory(tensor: Any, array: npt.NDArray[Any]) -> bool:
    """Whether any of a dense array or tensor may lie between the first and the last byte of a contiguous array."""
    if isinstance(tensor, np.ndarray):
        return np.may_share_memory(tensor, array)
    if tensor.is_cuda or not tensor.numel():
        return False
    reach = sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start, other = tensor.data_ptr(), array.ctypes.data
    return bool(start < other + array.nbytes and other < start + (reach + 1) * tensor.element_size())


def output_for(out: Any, tensor: Any, shape: tuple[int, ...]) -> Any:
    """`out`, if it can take a result of this shape and of `tensor`'s kind and dtype; by default a new one.

    Raises TypeError or ValueError that says what differs.
    """
    if out is None:
        if isinstance(tensor, np.ndarray):
            return np.empty(shape, tensor.dtype.newbyteorder("="))
        return tensor.new_empty(shape)
    if is_torch(out) != is_torch(tensor):
        raise TypeError(
            f"out is a {type(out).__name__}, tensor a {type(tensor).__name__}: accepted are two of the same type"
        )
    if shape_of(out) != shape or dtype_name(out) != dtype_name(tensor):
        raise ValueError(
            f"out is {dtype_name(out)} of shape {shape_of(out)}: it must be {dtype_name(tensor)} of {shape}"
        )
    check_writable(out)
    return out


def assign(tensor: Any, values: Any) -> None:
    """Writes `values`, of the same shape, into an array or tensor of the host. Autograd sees it not, but notices."""
    if isinstance(tensor, np.ndarray):
        if tensor.dtype == values.dtype:
            tensor[...] = values
        else:
            with np.errstate(over="ignore"):  # a sum too large for float16 is infinite there
                tensor[...] = values
    elif tensor.is_inference():
        import torch

        with torch.inference_mode():  # a thread of its own may not be in it
            copy_values(tensor, values)
    else:
        copy_values(tensor.detach(), values.detach())


def host_empty(tensor: Any, shape: tuple[int, ...]) -> Any:
    """A new array or tensor in the host's memory, of the kind and dtype of `tensor`, whose contents may be anything."""
    if isinstance(tensor, np.ndarray):
        return np.empty(shape, tensor.dtype.newbyteorder("="))
    if tensor.is_cuda:
        from p4reduce.tensors.cuda import pinned

        return pinned(shape, tensor.dtype)
    import torch

    return torch.empty(shape, dtype=tensor.dtype, device="cpu")  # whatever the user's default device is


def host_copy(tensor: Any) -> Any:
    """A copy of an array or tensor in the host's memory, in row-major order."""
    copy = host_empty(tensor, tuple(tensor.shape))
    assign(copy, tensor)
    return copy
