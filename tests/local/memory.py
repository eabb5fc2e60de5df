# SPDX-License-Identifier: Apache-2.0
"""Arrays in memory that the kernel lets no process read but by its own instructions."""

from __future__ import annotations

import ctypes
import mmap
import os

import numpy as np
import pytest

from .sums import Array

_MEMFD_SECRET = 447  # on all architectures
_SHARED_FIXED = mmap.MAP_SHARED | 0x10
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]


def secret(array: Array, begin: float = 0.0, end: float = 1.0) -> Array:
    """A copy. begin, end: of which part of it is such memory, but for what pages take."""
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
