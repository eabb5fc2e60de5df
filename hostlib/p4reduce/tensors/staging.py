# SPDX-License-Identifier: Apache-2.0
"""Where a tensor stands while it is reduced or moved: a flat array in the host's memory, and the way back.

The protocol adds the values of one flat, contiguous array of float32, int32 or 16-bit floats. A tensor is either
reduced, as numbers, or moved, as the int32 words of its memory, of which the last is padded with zero bytes: integers
are added as they are, so what all but one rank add zeros to arrives with every bit as it was, whatever its dtype.

A tensor whose memory is such an array already is a `View`, and what is done there is done to the tensor. Of all others
there is a copy, a `Buffer`, and the tensor stays as it is until `write_back`. What is on a CUDA device is fetched when
one may wait for it (`Fetched`); all else is there when a staging is made.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from p4reduce.tensors.dense import assign, host_copy, pinned
from p4reduce.tensors.spec import HALVES, Half, TensorSpec

if TYPE_CHECKING:
    import torch

    from p4reduce.tensors.cuda import DeviceTransfer, Wait

Number: TypeAlias = "type[np.float32] | type[np.int32] | Half"
WorkDtype: TypeAlias = "Number | None"
"""What elements are carried as; None for the words of what they are."""


class Staging:
    """A tensor while it is reduced or moved."""

    host: Any
    """Its elements: an array or tensor of its shape in the host's memory."""
    work: npt.NDArray[Any]
    """The same memory, as the protocol has it: 1-d, in row-major order, to be reduced in place."""
    read_only = False
    """Whether `work` is never to be written to."""
    transfers: tuple[DeviceTransfer, ...] = ()
    """Of CUDA tensors that are read or written."""

    def fetch(self, wait: Wait) -> None:
        """Brings into `host` what is still on a device. `wait`: for what is still computed there."""

    def write_back(self) -> None:
        """Make the tensor what `host` is."""
        raise NotImplementedError


class View(Staging):
    """A tensor's own memory."""

    def __init__(self, tensor: Any, work: npt.NDArray[Any], *, read_only: bool = False) -> None:
        self.host = tensor if isinstance(tensor, np.ndarray) else tensor.detach()
        self.work = work
        self.read_only = read_only

    def write_back(self) -> None:
        mark_changed(self.host)


def mark_changed(tensor: Any) -> None:
    """Tells autograd of values that were written into a tensor's memory, which it did not see: a backward pass that has
    saved this tensor must notice."""
    if not isinstance(tensor, np.ndarray) and not tensor.is_inference():
        import torch

        torch.autograd.graph.increment_version(tensor)


class Buffer(Staging):
    """Memory of the host beside a tensor's, which may hold anything at first."""

    def __init__(self, tensor: Any, dtype: WorkDtype) -> None:
        self._target = target(tensor)
        self.transfers = self._target.transfers
        kind: Any
        if isinstance(tensor, np.ndarray):
            kind = _numpy_dtype(tensor, dtype)
            words = np.empty(_count(tensor.shape, kind), np.int32)
            self.host = np.ndarray(tensor.shape, kind, buffer=words)
        else:
            kind = _torch_dtype(tensor, dtype)
            memory = _words_for(tensor, _count(tensor.shape, kind))
            words = memory.numpy()
            self.host = _as_tensor(memory, tensor.shape, kind)
        words[-1:] = 0  # of which the elements may fill only a part
        work = words.view(dtype or np.int32)
        self.work = work[: -(-self.host.nbytes // work.itemsize)]

    def write_back(self) -> None:
        self._target.write(self.host)


class Fetched(Staging):
    """What a CUDA tensor comes into, all of it or at one place; the rest becomes zeros."""

    def __init__(self, base: Staging, place: Any, own: DeviceTransfer, *, bits: bool) -> None:
        self._base, self._own, self._bits = base, own, bits
        self._part = base.host[place]
        self.host, self.work = base.host, base.work
        self.transfers = transfers(base, own)

    def fetch(self, wait: Wait) -> None:
        self.work.fill(0)
        self._own.read(self._part, bits=self._bits, wait=wait)

    def write_back(self) -> None:
        self._base.write_back()


class HostTensor:
    """A tensor in the host's memory, into which results are written."""

    transfers: tuple[DeviceTransfer, ...] = ()

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def write(self, values: Any) -> None:
        """Make the tensor `values`."""
        assign(self._tensor, values)


Target: TypeAlias = "HostTensor | DeviceTransfer"


def target(tensor: Any) -> Target:
    """Into what results are written: to be asked for where a collective is called."""
    return device_transfer(tensor) if on_device(tensor) else HostTensor(tensor)


def transfers(*ends: Staging | Target) -> tuple[DeviceTransfer, ...]:
    """All of these' transfers, each once."""
    found: list[DeviceTransfer] = []
    for end in ends:
        found += end.transfers
    return tuple(dict.fromkeys(found)) if found else ()


def numbers(tensor: Any, spec: TensorSpec, dtype: Number, *, copy: bool = False) -> Staging:
    """Return a tensor's elements as `dtype`, in which the protocol adds them; `copy`: never in its own memory."""
    if not copy and (flat := _own_memory(tensor, spec, dtype)) is not None:
        return View(tensor, flat)
    return _read(tensor, dtype)


def words(tensor: Any, spec: TensorSpec) -> Staging:
    """Return a tensor's elements as the words of their memory, which is only read: it may be a file that is mapped
    so."""
    flat = _own_memory(tensor, spec, None)
    if flat is None and not spec.is_torch and tensor.flags.c_contiguous and tensor.flags.aligned:
        flat = _as_words(np.asarray(tensor).reshape(-1)) if tensor.dtype.isnative else None
    if flat is None:
        return _read(tensor, None)
    return View(tensor, flat, read_only=True)


def zeros(tensor: Any) -> Staging:
    """Zeros in the place of a tensor's words, and never in its own memory."""
    staging = Buffer(tensor, None)
    staging.work.fill(0)
    return staging


def gathered(tensor: Any, spec: TensorSpec, place: Any, own: Any) -> Staging:
    """Return a tensor's words, which become `own` at the index `place` and zeros elsewhere. `own` may be a part of
    it."""
    flat = _own_memory(tensor, spec, None)
    staging = Buffer(tensor, None) if flat is None else View(tensor, flat)
    if on_device(own):
        return Fetched(staging, place, device_transfer(own), bits=True)
    own = host_copy(own)
    staging.work.fill(0)
    assign(staging.host[place], own)
    return staging


def _own_memory(tensor: Any, spec: TensorSpec, dtype: WorkDtype) -> npt.NDArray[Any] | None:
    """Return the tensor's own memory, 1-d, if it is what the protocol adds: for `dtype` None, whole words."""
    if not spec.address:
        return None
    if dtype is None:
        flat = np.asarray(_Memory(tensor, np.dtype(np.uint8))) if spec.is_torch else np.asarray(tensor).reshape(-1)
        return _as_words(flat)
    if spec.is_torch:
        own = tensor.dtype == _torch_dtype(tensor, dtype)
        return np.asarray(_Memory(tensor, np.dtype(dtype))) if own else None
    own = tensor.dtype == _numpy_dtype(tensor, dtype)
    return np.asarray(tensor).reshape(-1).view(dtype) if own else None  # np.matrix would not become 1-d


def _as_words(flat: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    words = flat.view(np.uint8).view(np.int32) if flat.nbytes % 4 == 0 else None
    return words if words is not None and words.flags.aligned else None


class _Memory:
    """The memory of a contiguous torch tensor of the host, as `numpy.asarray` takes it.

    After `tensor.numpy()` PyTorch resizes the tensor's storage no more: neither by `resize_`, nor to free it for a
    while, as FSDP does.
    """

    def __init__(self, tensor: torch.Tensor, dtype: np.dtype[Any]) -> None:
        self._tensor = tensor  # stays as long as the array
        self.__array_interface__ = {
            "version": 3,
            "typestr": dtype.str,
            "shape": (tensor.nbytes // dtype.itemsize,),
            "data": (tensor.data_ptr(), False),
        }


def _read(tensor: Any, dtype: WorkDtype) -> Staging:
    staging = Buffer(tensor, dtype)
    if on_device(tensor):
        return Fetched(staging, ..., staging.transfers[0], bits=dtype is None)
    assign(staging.host, tensor)
    return staging


def on_device(tensor: Any) -> bool:
    """Whether it is in a CUDA device's memory."""
    return not isinstance(tensor, np.ndarray) and bool(tensor.is_cuda)


def device_transfer(tensor: torch.Tensor) -> DeviceTransfer:
    from p4reduce.tensors.cuda import DeviceTransfer  # for CUDA alone

    return DeviceTransfer(tensor)


def _count(shape: tuple[int, ...], kind: np.dtype[Any] | torch.dtype) -> int:
    """Of the words that hold the elements; at least one, for an empty array has strides that torch does not take."""
    return max(1, -(-math.prod(shape) * kind.itemsize // 4))


def _is_half(dtype: WorkDtype) -> bool:
    """Whether elements are carried as the 16-bit floats that they are."""
    return dtype in HALVES.values()


def _numpy_dtype(array: npt.NDArray[Any], dtype: WorkDtype) -> np.dtype[Any]:
    """Of elements that are carried so."""
    return array.dtype.newbyteorder("=") if dtype is None or _is_half(dtype) else np.dtype(dtype)


def _torch_dtype(tensor: torch.Tensor, dtype: WorkDtype) -> torch.dtype:
    import torch

    if dtype is None or _is_half(dtype):
        return tensor.dtype
    return torch.int32 if dtype is np.int32 else torch.float32


def _words_for(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """int32, in memory of the host that suits the tensor's device."""
    import torch

    if tensor.is_cuda:
        return pinned([count], torch.int32)
    return torch.from_numpy(np.empty(count, np.int32))


def _as_tensor(words: torch.Tensor, shape: torch.Size, kind: torch.dtype) -> torch.Tensor:
    """Return the beginning of `words` as a tensor of this shape and dtype."""
    import torch

    empty: Any = torch.empty(0, dtype=kind, device="cpu")  # strides, which the type stubs demand, follow from the shape
    tensor: torch.Tensor = empty.set_(words.untyped_storage(), 0, shape)
    return tensor
