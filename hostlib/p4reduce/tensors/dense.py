# SPDX-License-Identifier: Apache-2.0
"""What a user may hand to a collective, as the flat array that the protocol adds up, and back again.

The protocol adds float32 and int32 values of one flat, contiguous array in the host's memory. A tensor that is that
already is reduced in its own memory; any other is copied, and its result is written back into it.

A tensor is either reduced, as numbers (`open_tensor`), or moved, as the int32 words of its memory (`Words`): integers
are added as they are, so what all but one rank add zeros to arrives with every bit as it was, whatever its dtype.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeGuard, TypeVar

import numpy as np
import numpy.typing as npt

from p4reduce.errors import UnsupportedDtype

if TYPE_CHECKING:
    import torch

Tensor: TypeAlias = "npt.NDArray[Any] | torch.Tensor"
T = TypeVar("T")
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


class _Elements(Protocol):
    """A tensor's elements in row-major order in the host's memory, and the way back."""

    in_place: bool
    """They are the tensor's own memory."""

    def array(self) -> npt.NDArray[Any]:
        """The elements, 1-d; for dtypes that NumPy does not know, their bytes."""

    def write_back(self) -> None:
        """Writes the elements into the tensor."""


def open_tensor(tensor: object) -> Reducible:
    """Prepares a NumPy array or a torch tensor of any shape and strides, on the CPU or a CUDA device, for a reduction.

    Raises UnsupportedDtype for a dtype other than float32, float16, bfloat16 and int32, TypeError for what is not a
    dense tensor or array, and ValueError for one that cannot be written to.
    """
    name = dtype_name(tensor)
    if name not in WORK_DTYPES:
        raise UnsupportedDtype(f"tensor has dtype {name}: supported are {SUPPORTED}")
    return _Numbers(_elements(tensor, dtype=WORK_DTYPES[name]), name)


def dtype_name(tensor: object) -> str:
    """Of a dense array or tensor: "float32". Raises TypeError for anything else."""
    if isinstance(tensor, np.ndarray):
        if isinstance(tensor, np.ma.MaskedArray):
            raise TypeError("tensor is a masked array, whose mask a collective would ignore: pass array.filled(0)")
        name: str = tensor.dtype.name
        return name
    if is_torch(tensor):
        if str(tensor.layout) != "torch.strided":
            raise TypeError(
                f"tensor has layout {tensor.layout}: accepted are dense tensors, and torch.sparse_coo in allreduce; "
                "pass tensor.to_dense(), whose zero blocks are not sent"
            )
        if tensor.device.type not in ("cpu", "cuda"):
            raise TypeError(f"tensor is on device {tensor.device}: accepted are cpu and cuda; pass tensor.cpu()")
        return str(tensor.dtype).removeprefix("torch.")
    if isinstance(tensor, np.generic):
        raise TypeError(f"tensor is a NumPy scalar ({tensor.dtype}), which cannot be written to: pass a 0-d array")
    raise TypeError(f"tensor is a {type(tensor).__name__}: accepted are numpy.ndarray and torch.Tensor")


def is_torch(tensor: object) -> TypeGuard[torch.Tensor]:
    """Whether it is a torch tensor; whoever holds one has imported torch, so this does not."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(tensor, torch.Tensor)


def is_sparse(tensor: object) -> bool:
    """Whether it is a tensor of layout torch.sparse_coo."""
    return is_torch(tensor) and str(tensor.layout) == "torch.sparse_coo"


def shape_of(tensor: Any) -> tuple[int, ...]:
    """Of a dense array or tensor. Raises TypeError for anything else."""
    dtype_name(tensor)
    return tuple(tensor.shape)


def output_for(out: Any, tensor: Any, shape: tuple[int, ...]) -> Any:
    """`out`, if it can take a result of this shape and of `tensor`'s kind and dtype; by default a new one.

    Raises TypeError or ValueError that says what differs.
    """
    if out is None:
        if isinstance(tensor, np.ndarray):
            return np.empty(shape, tensor.dtype.newbyteorder("="))
        return tensor.new_empty(shape)
    if is_torch(out) != is_torch(tensor):
        raise TypeError(f"out is a {type(out).__name__}, tensor a {type(tensor).__name__}: accepted are two of a kind")
    if shape_of(out) != shape or dtype_name(out) != dtype_name(tensor):
        raise ValueError(
            f"out is {dtype_name(out)} of shape {shape_of(out)}: it must be {dtype_name(tensor)} of {shape}"
        )
    check_writable(out)
    return out


def host_zeros(tensor: Any, shape: tuple[int, ...]) -> Any:
    """A new array or tensor of zeros in the host's memory, of the kind and dtype of `tensor`."""
    if isinstance(tensor, np.ndarray):
        return np.zeros(shape, tensor.dtype.newbyteorder("="))
    import torch

    return torch.zeros(shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)


def host_copy(tensor: Any) -> Any:
    """A copy of an array or tensor in the host's memory, in row-major order."""
    copy = host_zeros(tensor, tuple(tensor.shape))
    assign(copy, tensor)
    return copy


def assign(tensor: Any, values: Any) -> None:
    """Writes `values`, of the same shape, into an array or tensor. Autograd does not see it, but notices."""
    if isinstance(tensor, np.ndarray):
        tensor[...] = values
    elif tensor.is_cuda and not values.is_cuda:
        from p4reduce.tensors.cuda import to_device

        to_device(values, tensor.detach())
    else:
        tensor.detach().copy_(values.detach())


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


class _Numbers:
    """A tensor while it is being reduced."""

    def __init__(self, elements: _Elements, dtype: str) -> None:
        self.dtype = dtype
        self.work: WorkArray = elements.array()
        self._elements = elements

    def write_back(self, divisor: int = 1) -> None:
        # In float32, so that a float16 average need not have a float16 sum.
        if divisor != 1:
            np.divide(self.work, np.float32(divisor), out=self.work)
        self._elements.write_back()


class Words:
    """A tensor's memory as int32 words, of which the last is padded with zero bytes. Any dtype but Python objects.

    Sums of words of which all but one are zero, or of whose bits no two ranks set the same, have no carries: they are
    the words themselves.
    """

    def __init__(self, tensor: Any, *, read: bool = True) -> None:
        """read: False for zeros in place of the tensor's contents."""
        self.dtype = dtype_name(tensor)
        if isinstance(tensor, np.ndarray) and (tensor.dtype.hasobject or tensor.dtype.fields is not None):
            raise UnsupportedDtype(f"tensor has dtype {tensor.dtype}: Python objects and structures cannot be moved")
        if is_torch(tensor) and tensor.is_quantized:
            raise UnsupportedDtype(f"tensor has dtype {self.dtype}, whose scale would stay behind: pass its int_repr()")
        self._elements = _elements(tensor, read=read, write=not read)
        self._bytes: npt.NDArray[np.uint8] = self._elements.array().view(np.uint8)
        self._padded = bool(self._bytes.size % 4 or self._bytes.ctypes.data % 4)
        if not read:
            self._bytes[:] = 0
        self.work: npt.NDArray[np.int32]
        if self._padded:
            self.work = np.zeros(-(-self._bytes.size // 4), np.int32)
            self.work.view(np.uint8)[: self._bytes.size] = self._bytes
        else:
            self.work = self._bytes.view(np.int32)

    @property
    def size(self) -> int:
        """Bytes of the tensor."""
        return self._bytes.size

    def put(self, offset: int, data: npt.NDArray[np.uint8]) -> None:
        """Writes bytes into the words, from byte `offset` on."""
        self.work.view(np.uint8)[offset : offset + data.size] = data

    def write_back(self) -> None:
        """Writes the words into the tensor."""
        if self._padded:
            self._bytes[:] = self.work.view(np.uint8)[: self._bytes.size]
        self._elements.write_back()


def bytes_of(tensor: Any) -> npt.NDArray[np.uint8]:
    """A copy of a tensor's elements in row-major order, as bytes."""
    copy: npt.NDArray[np.uint8] = Words(tensor).work.view(np.uint8)[: tensor.nbytes].copy()
    return copy


def _elements(tensor: Any, *, dtype: type | None = None, read: bool = True, write: bool = True) -> _Elements:
    if write:
        check_writable(tensor)
    return (_ArrayElements if isinstance(tensor, np.ndarray) else _TorchElements)(tensor, dtype, read)


class _ArrayElements:
    def __init__(self, array: npt.NDArray[Any], dtype: type | None, read: bool) -> None:
        native = np.dtype(dtype) if dtype is not None else array.dtype.newbyteorder("=")
        self._array = np.asarray(array)  # np.matrix would not become 1-d
        # Only row-major memory is in the order that all ranks agree on, and only native numbers equal `native`.
        flags = array.flags
        self.in_place = array.dtype == native and flags.c_contiguous and flags.aligned and flags.writeable
        row_major: npt.NDArray[Any] = self._array if self.in_place else np.empty(array.shape, native)
        if read and not self.in_place:
            row_major[...] = self._array
        self._flat = row_major.reshape(-1)

    def array(self) -> npt.NDArray[Any]:
        return self._flat

    def write_back(self) -> None:
        if not self.in_place:
            with np.errstate(over="ignore"):  # a sum too large for float16 is infinite there
                self._array[...] = self._flat.reshape(self._array.shape)


class _TorchElements:
    """Autograd does not see what is written, as in torch.distributed."""

    def __init__(self, tensor: torch.Tensor, dtype: type | None, read: bool) -> None:
        import torch

        work_dtype = tensor.dtype if dtype is None else torch.int32 if dtype is np.int32 else torch.float32
        self._tensor = tensor.detach()
        # Of a negated or conjugated view the memory does not say what it shows. An empty tensor may have any strides.
        plain = tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj() and tensor.numel() > 0
        self.in_place = tensor.device.type == "cpu" and tensor.dtype == work_dtype and plain
        if self.in_place:
            self._flat = self._tensor.view(-1)
        else:
            make = torch.zeros if tensor.is_cuda else torch.empty
            self._flat = make(tensor.shape, dtype=work_dtype, pin_memory=tensor.is_cuda).view(-1)
            host = self._flat.view(tensor.shape)
            if read and tensor.is_cuda:
                from p4reduce.tensors.cuda import to_host

                to_host(self._tensor, host, bits=dtype is None)
            elif read:
                host.copy_(self._tensor)

    def array(self) -> npt.NDArray[Any]:
        import torch

        known = self._flat.dtype in (torch.float32, torch.int32)
        flat: npt.NDArray[Any] = (self._flat if known else self._flat.view(torch.uint8)).numpy()
        return flat

    def write_back(self) -> None:
        import torch

        if not self.in_place:
            assign(self._tensor, self._flat.view(self._tensor.shape))
        elif not self._tensor.is_inference():
            # Written behind autograd's back: a backward pass that has saved this tensor must notice.
            torch.autograd.graph.increment_version(self._tensor)
