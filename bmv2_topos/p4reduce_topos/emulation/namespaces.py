# SPDX-License-Identifier: Apache-2.0
"""Network namespaces of other processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator

CLONE_NEWNET = 0x40000000
_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def entered(pid: int) -> Iterator[None]:
    """This thread, and what it starts, is in the network namespace of process `pid`. Raises OSError."""
    former = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(there)
        finally:
            os.close(there)
        try:
            yield
        finally:
            _enter(former)
    finally:
        os.close(former)


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, CLONE_NEWNET) != 0:  # os.setns is new in Python 3.12
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
