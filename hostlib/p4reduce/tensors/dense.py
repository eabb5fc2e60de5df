# SPDX-License-Identifier: Apache-2.0
"""Dense NumPy arrays and torch tensors, treated alike: allocation, and copies between them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from p4reduce.tensors.spec import TensorSpec, describe

if TYPE_CHECKING:
    import torch


def flat_float32(name: str, tensor: Any, numel: int) -> npt.NDArray[np.float32]:
    """Return the memory of a float32 tensor of `numel` elements as a 1-d array.

    The tensor is in the host's memory, in row-major order. Raises ValueError for any other. `name`: of the argument.
    """
    spec = describe(tensor, name)
    if spec.dtype != "float32" or spec.size != numel or (spec.size and not spec.address):
        raise ValueError(
            f"{name} is {spec.dtype} of shape {spec.shape}: accepted is float32 in the host's memory, "
            f"contiguous and writable, of {numel} elements"
        )
    array: npt.NDArray[np.float32] = tensor.detach().numpy() if spec.is_torch else tensor
    return array.reshape(-1)


def shares_memory(tensor: Any, array: npt.NDArray[Any]) -> bool:
    """Return whether a dense array or tensor may have elements between the first and last byte of a contiguous one."""
    if isinstance(tensor, np.ndarray):
        return np.may_share_memory(tensor, array)
    if tensor.is_cuda or not tensor.numel():
        return False
    reach = sum((count - 1) * stride for count, stride in zip(tensor.shape, tensor.stride(), strict=True))
    start, other = tensor.data_ptr(), array.ctypes.data
    return bool(start < other + array.nbytes and other < start + (reach + 1) * tensor.element_size())


def output_for(out: Any, tensor: Any, spec: TensorSpec, shape: tuple[int, ...]) -> Any:
    """Return `out` if it can take a result of this shape and of `tensor`'s kind and dtype, by default a new one.

    Raises TypeError or ValueError that says what differs.
    """
    if out is None:
        if isinstance(tensor, np.ndarray):
            return np.empty(shape, tensor.dtype.newbyteorder("="))
        return tensor.new_empty(shape)
    found = describe(out, "out")
    if found.is_torch != spec.is_torch:
        raise TypeError(
            f"out is a {type(out).__name__}, tensor a {type(tensor).__name__}: accepted are two of the same type"
        )
    if (found.shape, found.dtype) != (shape, spec.dtype):
        raise ValueError(f"out is {found.dtype} of shape {found.shape}: it must be {spec.dtype} of {shape}")
    found.check_writable(out)
    return out


def assign(tensor: Any, values: Any) -> None:
    """Write `values`, of the same shape, into an array or tensor of the host.

    Autograd does not record the write, but its version counters tell it that the tensor has changed.
    """
    if isinstance(tensor, np.ndarray):
        if tensor.dtype == values.dtype:
            tensor[...] = values
        else:
            with np.errstate(over="ignore"):  # a sum too large for float16 is infinite there
                tensor[...] = values
    elif tensor.is_inference():
        import torch

        with torch.inference_mode():  # which is set for each thread, and this may be the engine's
            copy_values(tensor, values)
    else:
        copy_values(tensor.detach(), values.detach())


def copy_values(tensor: torch.Tensor, values: torch.Tensor, *, non_blocking: bool = False) -> None:
    """Write `values` into a torch tensor. If they become bfloat16, all NaNs get the same bits on all ranks.

    The bits of torch's own NaNs depend on strides, processor and device.
    """
    import torch

    tensor.copy_(values, non_blocking=non_blocking)
    if tensor.dtype == torch.bfloat16 != values.dtype:
        tensor.masked_fill_(tensor.isnan(), math.nan)


def host_empty(tensor: Any, shape: tuple[int, ...]) -> Any:
    """Return a new uninitialised array or tensor in the host's memory, of the kind and dtype of `tensor`."""
    if isinstance(tensor, np.ndarray):
        return np.empty(shape, tensor.dtype.newbyteorder("="))
    if tensor.is_cuda:
        return pinned(shape, tensor.dtype)
    import torch

    return torch.empty(shape, dtype=tensor.dtype, device="cpu")  # whatever the user's default device is


def pinned(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a new uninitialised tensor in pinned memory of the host, from which devices copy."""
    import torch

    return torch.empty(tuple(shape), dtype=dtype, device="cpu", pin_memory=True)


def host_copy(tensor: Any) -> Any:
    """Return a copy of an array or tensor in the host's memory, in row-major order."""
    copy = host_empty(tensor, tuple(tensor.shape))
    assign(copy, tensor)
    return copy
