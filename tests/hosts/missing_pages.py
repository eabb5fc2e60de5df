# SPDX-License-Identifier: Apache-2.0
"""A tensor whose second half cannot be read for as long as a test wants.

So its reader stands still in the midst of its work, like a process that is stopped.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import mmap
import os
import platform
import struct
from collections.abc import Iterator

import numpy as np
import pytest

# linux/userfaultfd.h
_SYSCALLS = {"x86_64": 323, "aarch64": 282}
_USER_MODE_ONLY = 1
_API, _API_VERSION = 0xC018AA3F, 0xAA
_REGISTER, _MISSING = 0xC020AA00, 1


@contextlib.contextmanager
def half_missing(count: int) -> Iterator[np.ndarray]:
    """Yield float32 zeros whose second half can be read once the context ends. Skips the test without userfaultfd."""
    libc = ctypes.CDLL(None, use_errno=True)
    number = _SYSCALLS.get(platform.machine())
    faults = libc.syscall(number, os.O_CLOEXEC | _USER_MODE_ONLY) if number is not None else -1
    if faults < 0:
        pytest.skip("needs userfaultfd")
    memory = mmap.mmap(-1, -(-count * 4 // mmap.PAGESIZE) * mmap.PAGESIZE)
    tensor = np.frombuffer(memory, np.float32, count)
    half = len(memory) // mmap.PAGESIZE // 2 * mmap.PAGESIZE
    try:
        fcntl.ioctl(faults, _API, bytearray(struct.pack("QQQ", _API_VERSION, 0, 0)))
        fcntl.ioctl(faults, _REGISTER, bytearray(struct.pack("QQQQ", tensor.ctypes.data + half, half, _MISSING, 0)))
        yield tensor
    finally:
        os.close(faults)  # which lets all go on
