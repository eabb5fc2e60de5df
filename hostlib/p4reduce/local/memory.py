# SPDX-License-Identifier: Apache-2.0
"""Arrays and tensors in memory that other ranks of the host can map, and therefore add without a copy."""

from __future__ import annotations

import ctypes
import math
import sys
import weakref
from collections.abc import Iterable, Sequence
from operator import index
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np
import numpy.typing as npt

from p4reduce.fastpath import structures as c
from p4reduce.fastpath.library import LibraryError, library, to_exception

if TYPE_CHECKING:
    import torch


@overload
def shared_empty(shape: SupportsIndex | Sequence[SupportsIndex], dtype: torch.dtype) -> torch.Tensor: ...
@overload
def shared_empty(
    shape: SupportsIndex | Sequence[SupportsIndex], dtype: npt.DTypeLike = np.float32
) -> npt.NDArray[Any]: ...
def shared_empty(shape: SupportsIndex | Sequence[SupportsIndex], dtype: Any = np.float32) -> Any:
    """Return a new array of zeros, or a CPU tensor for a dtype of torch, that ranks of one host reduce without a copy.

    Nothing is copied if all ranks of a job are on one host and all of them reduce such arrays, or views and slices of
    them. Each rank then adds a share of the elements in place, and writes the sums to all ranks' arrays. In all other
    cases it is an ordinary array. So it is if the C library is not installed.

    dtype: any dtype of NumPy without Python objects, or a torch.dtype.
    The memory is freed with the last array or tensor that uses it. Forked processes share it.
    Raises TypeError for a wrong type of shape or dtype, ValueError for one that no array has, MemoryError, or
    P4ReduceError where the system has no such memory.
    """
    sizes = _checked(shape)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(dtype, torch.dtype):
        memory = _memory(sizes, dtype.itemsize)
        raw = np.ndarray(len(memory), np.uint8, memory)
        return torch.from_numpy(raw).view(dtype).reshape(sizes)
    kind = np.dtype(dtype)
    if kind.hasobject:
        raise ValueError(f"dtype={dtype!r} has Python objects, which processes cannot share: accepted are numbers")
    return np.ndarray(sizes, kind, _memory(sizes, kind.itemsize))


def _checked(shape: SupportsIndex | Sequence[SupportsIndex]) -> tuple[int, ...]:
    """Return the shape as a tuple. Raises ValueError or TypeError if it is none."""
    try:
        sizes = tuple(map(index, shape if isinstance(shape, Iterable) else (shape,)))
    except TypeError:
        raise TypeError(f"shape={shape!r}: accepted are an integer and a sequence of integers") from None
    if any(size < 0 for size in sizes):
        raise ValueError(f"shape={shape!r}: accepted are non-negative integers")
    return sizes


def _memory(shape: tuple[int, ...], itemsize: int) -> Any:
    """Return memory of zeros for an array of this shape, freed with its last reference."""
    size = math.prod(shape) * itemsize
    if max((size, *shape)) > sys.maxsize:  # C's functions cannot have larger arguments
        raise ValueError(f"shape={shape}: accepted are arrays of up to {sys.maxsize} bytes")
    try:
        return _zeros(size)
    except MemoryError as error:
        raise MemoryError(f"shape={shape}: {str(error) or f'no memory of {size} bytes'}") from None


def _zeros(size: int) -> Any:
    try:
        c_library = library() if size else None
    except LibraryError:
        c_library = None
    if c_library is None:
        return bytearray(size)
    error = c.Error.make()
    address = c_library.p4reduce_shared_new(size, error)
    if not address:
        raise to_exception(error)
    memory = c.array_of(ctypes.c_ubyte, size).from_address(address)
    # Not at the interpreter's exit, when other threads may still use it.
    weakref.finalize(memory, c_library.p4reduce_shared_free, address).atexit = False
    return memory
