# SPDX-License-Identifier: Apache-2.0
"""Network namespaces of other processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

CLONE_NEWNET = 0x40000000
_ENDED_WITHIN_S = 10.0
_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def entered(pid: int) -> Iterator[None]:
    """Move this thread into the network namespace of process `pid` for the block. Raises OSError.

    Processes that the thread starts meanwhile are in that namespace, too.
    """
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


def end_processes(pids: Sequence[int]) -> None:
    """Kill every process in the network namespaces of `pids`, except in our own namespace."""
    namespaces = {_namespace(pid) for pid in pids} - {None, _namespace(os.getpid())}
    deadline = time.monotonic() + _ENDED_WITHIN_S
    while namespaces and time.monotonic() < deadline:
        running = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if _namespace(pid) in namespaces]
        if not running:
            return
        for pid in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def _namespace(pid: int) -> tuple[int, int] | None:
    """Return the identity of a process's network namespace, or None if the process has ended."""
    try:
        there = Path(f"/proc/{pid}/ns/net").stat()
    except OSError:
        return None
    return there.st_dev, there.st_ino


def _enter(descriptor: int) -> None:
    if _libc.setns(descriptor, CLONE_NEWNET) != 0:  # os.setns is new in Python 3.12
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
