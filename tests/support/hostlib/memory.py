# SPDX-License-Identifier: Apache-2.0
"""Tensors in memory that other ranks can copy, can map, or cannot read."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import p4reduce
from p4reduce.local.host import digest
from tests.support.c_library import needs_c_library

from .sums import Array, copied

_MEMFD_SECRET = 447  # on all architectures
_SHARED_FIXED = mmap.MAP_SHARED | 0x10
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]


def secret(array: Array, begin: float = 0.0, end: float = 1.0) -> Array:
    """Return a copy in memory that other processes cannot read (memfd_secret).

    begin, end: the part of the copy in such memory, as shares of its size. It is extended to whole pages.
    """
    size = max(1, array.nbytes)
    memory = mmap.mmap(-1, size)
    first = int(begin * size) // mmap.PAGESIZE * mmap.PAGESIZE
    length = max(mmap.PAGESIZE, int(end * size) - first)
    copy: Array = np.frombuffer(memory, array.dtype, array.size)
    file = _libc.syscall(_MEMFD_SECRET, 0)
    if file < 0:
        pytest.skip(f"memfd_secret: {os.strerror(ctypes.get_errno())}")
    try:
        os.ftruncate(file, length)
        rights = mmap.PROT_READ | mmap.PROT_WRITE
        if _libc.mmap(copy.ctypes.data + first, length, rights, _SHARED_FIXED, file, 0) in (None, 2**64 - 1):
            pytest.skip(f"mmap of a secret: {os.strerror(ctypes.get_errno())}")
    finally:
        os.close(file)
    copy[...] = array
    return copy


def shared(values: Array) -> Array:
    """Return a copy in shared memory, which other ranks can map."""
    copy: Array = p4reduce.shared_empty(values.shape, values.dtype)
    copy[...] = values
    return copy


def at_an_offset(rank: int, array: Array) -> Array:
    whole = p4reduce.shared_empty(array.size + 1000, array.dtype)
    part = whole[17 + rank : 17 + rank + array.size]
    part[...] = array
    return part


Placement = Callable[[int, Array], Array]
READABLE: dict[str, Placement] = {
    "copied": copied,
    "shared": lambda _, array: shared(array),
    "at an offset": at_an_offset,
    "some shared": lambda rank, array: at_an_offset(rank, array) if rank % 2 else array.copy(),
}
UNREADABLE: dict[str, Placement] = {
    "all": lambda _, array: secret(array),
    "one rank's": lambda rank, array: array.copy() if rank else secret(array),
    "the second half": lambda _, array: secret(array, 0.5, 1),
    "a page within a piece": lambda rank, array: secret(array, 0.1 * rank, 0.1 * rank),
    "beside shared ones": lambda rank, array: shared(array) if rank else secret(array),
}
PLACEMENTS = READABLE | UNREADABLE


def shared_kib() -> int:
    """Return the resident shared memory of p4reduce in this process, in KiB, over all mappings of its ranks."""
    found, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line[0].isdigit() or (line[0].islower() and "-" in line.split()[0]):
            ours = "memfd:p4reduce" in line
        elif ours and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


@pytest.fixture(autouse=True)
def shares_memory() -> None:
    needs_c_library()
    if not digest():
        pytest.skip("this machine does not let processes share memory")
