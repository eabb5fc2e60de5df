# SPDX-License-Identifier: Apache-2.0
"""The staging of a tensor while it is reduced or moved: a flat array in the host's memory, and the way back.

The protocol adds the values of one flat, contiguous array of float32, int32 or 16-bit floats. A tensor is either
reduced, as numbers, or moved, as the int32 words of its memory. The last word is padded with zero bytes. Integers are
added unchanged. So if all ranks but one add zeros, that rank's words arrive bit for bit, whatever their dtype.

If a tensor's memory is such an array already, its staging is a `View`, and writing to it changes the tensor. Otherwise
the staging is a copy, a `Buffer`, and the tensor does not change until `write_back`. A tensor on a CUDA device is
copied to the host in `fetch`, where waiting is allowed (`Fetched`). All other stagings have their contents when they
are made.
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
"""The dtype as which elements are carried; None for the words of their memory."""


class Staging:
    """A tensor while it is reduced or moved."""

    host: Any
    """The tensor's elements: an array or tensor of its shape in the host's memory."""
    work: npt.NDArray[Any]
    """The same memory as the protocol needs it: 1-d, in row-major order, to be reduced in place."""
    read_only = False
    """Whether `work` must not be written to."""
    transfers: tuple[DeviceTransfer, ...] = ()
    """Transfers of CUDA tensors that are read or written."""

    def fetch(self, wait: Wait) -> None:
        """Copy into `host` what is still on a device. `wait`: waits until the device has computed it."""

    def write_back(self) -> None:
        """Write the contents of `host` into the tensor."""
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
    """Tell autograd that values were written into a tensor's memory without its knowledge.

    So a backward pass that needs the former values of this tensor raises an error.
    """
    if not isinstance(tensor, np.ndarray) and not tensor.is_inference():
        import torch

        torch.autograd.graph.increment_version(tensor)


class Buffer(Staging):
    """A copy of a tensor in other memory of the host, uninitialised at first."""

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
        words[-1:] = 0  # the elements may fill only a part of the last word
        work = words.view(dtype or np.int32)
        self.work = work[: -(-self.host.nbytes // work.itemsize)]

    def write_back(self) -> None:
        self._target.write(self.host)


class Fetched(Staging):
    """A staging that a CUDA tensor is fetched into, as a whole or at one index. The rest becomes zeros."""

    def __init__(self, base: Staging, index: Any, own: DeviceTransfer, *, bits: bool) -> None:
        self._base, self._own, self._bits = base, own, bits
        self._part = base.host[index]
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
        """Write `values` into the tensor."""
        assign(self._tensor, values)


Target: TypeAlias = "HostTensor | DeviceTransfer"


def target(tensor: Any) -> Target:
    """Return the object through which results are written. Call it within the call of the collective."""
    return device_transfer(tensor) if on_device(tensor) else HostTensor(tensor)


def transfers(*ends: Staging | Target) -> tuple[DeviceTransfer, ...]:
    """Return the transfers of all these objects, each once."""
    found: list[DeviceTransfer] = []
    for end in ends:
        found += end.transfers
    return tuple(dict.fromkeys(found)) if found else ()


def numbers(tensor: Any, spec: TensorSpec, dtype: Number, *, copy: bool = False) -> Staging:
    """Return a tensor's elements as `dtype`, in which the protocol adds them. `copy`: never use its own memory."""
    if not copy and (flat := _own_memory(tensor, spec, dtype)) is not None:
        return View(tensor, flat)
    return _read(tensor, dtype)


def words(tensor: Any, spec: TensorSpec) -> Staging:
    """Return the words of a tensor's memory, which is only read: it may be a file that is mapped read-only."""
    flat = _own_memory(tensor, spec, None)
    if flat is None and not spec.is_torch and tensor.flags.c_contiguous and tensor.flags.aligned:
        flat = _as_words(np.asarray(tensor).reshape(-1)) if tensor.dtype.isnative else None
    if flat is None:
        return _read(tensor, None)
    return View(tensor, flat, read_only=True)


def zeros(tensor: Any) -> Staging:
    """Return zeros in place of a tensor's words, never in its own memory."""
    staging = Buffer(tensor, None)
    staging.work.fill(0)
    return staging


def gathered(tensor: Any, spec: TensorSpec, index: Any, own: Any) -> Staging:
    """Return a tensor's words, set to `own` at `index` and to zeros elsewhere.

    `own` may be a part of the tensor.
    """
    flat = _own_memory(tensor, spec, None)
    staging = Buffer(tensor, None) if flat is None else View(tensor, flat)
    if on_device(own):
        return Fetched(staging, index, device_transfer(own), bits=True)
    own = host_copy(own)
    staging.work.fill(0)
    assign(staging.host[index], own)
    return staging


def _own_memory(tensor: Any, spec: TensorSpec, dtype: WorkDtype) -> npt.NDArray[Any] | None:
    """Return the tensor's own memory, 1-d, if the protocol can add it as `dtype` (None: as whole words)."""
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
    """The memory of a contiguous torch tensor of the host, in a form that `numpy.asarray` accepts.

    `tensor.numpy()` is not used, because PyTorch then refuses to resize the tensor's storage: by `resize_`, and also to
    free it for a while, as FSDP does.
    """

    def __init__(self, tensor: torch.Tensor, dtype: np.dtype[Any]) -> None:
        self._tensor = tensor  # lives as long as the array
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
    """Return whether a tensor is in a CUDA device's memory."""
    return not isinstance(tensor, np.ndarray) and bool(tensor.is_cuda)


def device_transfer(tensor: torch.Tensor) -> DeviceTransfer:
    from p4reduce.tensors.cuda import DeviceTransfer  # for CUDA alone

    return DeviceTransfer(tensor)


def _count(shape: tuple[int, ...], kind: np.dtype[Any] | torch.dtype) -> int:
    """Return how many words hold the elements. At least one: torch does not accept the strides of an empty array."""
    return max(1, -(-math.prod(shape) * kind.itemsize // 4))


def _is_half(dtype: WorkDtype) -> bool:
    """Return whether elements are carried as 16-bit floats."""
    return dtype in HALVES.values()


def _numpy_dtype(array: npt.NDArray[Any], dtype: WorkDtype) -> np.dtype[Any]:
    """Return the dtype of the array in which elements are carried."""
    return array.dtype.newbyteorder("=") if dtype is None or _is_half(dtype) else np.dtype(dtype)


def _torch_dtype(tensor: torch.Tensor, dtype: WorkDtype) -> torch.dtype:
    import torch

    if dtype is None or _is_half(dtype):
        return tensor.dtype
    return torch.int32 if dtype is np.int32 else torch.float32


def _words_for(tensor: torch.Tensor, count: int) -> torch.Tensor:
    """Return `count` int32 words in memory of the host: pinned if the tensor is on a CUDA device."""
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
