# SPDX-License-Identifier: Apache-2.0
"""One of two ranks of `env://`: makes process groups one after the other, of which most fail, with the collector off.

Prints a JSON object for each group. Argument: how many groups.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
import time
import weakref
from datetime import timedelta

import torch
import torch.distributed as dist

from .saying import say


class Mallinfo2(ctypes.Structure):
    """The figures of malloc for all its arenas, in bytes (mallinfo(3), glibc 2.33)."""

    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]


def heap() -> int:
    """Return the bytes in use. Resident memory also has what malloc keeps of threads that have ended."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo2
    now = mallinfo2()
    return int(now.uordblks + now.hblkhd)


def entries(folder: str) -> int:
    return len(os.listdir(f"/proc/self/{folder}"))


def settle(most: dict[str, int]) -> None:
    """Wait until threads and descriptors of the group that is gone have ended, down to about these numbers."""
    deadline = time.monotonic() + 10
    while any(entries(folder) > count + 2 for folder, count in most.items()) and time.monotonic() < deadline:
        time.sleep(0.01)


def main() -> None:
    gc.disable()
    most = {}
    for turn in range(int(sys.argv[1])):
        dist.init_process_group("p4reduce", timeout=timedelta(seconds=20))
        group = weakref.ref(dist.group.WORLD)
        rank, error = dist.get_rank(), ""
        works = turn % 4 == 3
        try:
            dist.all_reduce(torch.ones(3 if works else 3 + rank))
        except dist.DistBackendError as caught:
            error = str(caught)
        dist.destroy_process_group()
        settle(most)
        if turn == 3:
            most = {folder: entries(folder) for folder in ("task", "fd")}
        say(
            {
                "rank": rank,
                "right": not error if works else "different operations" in error,
                "left": group() is not None,
                "threads": entries("task"),
                "descriptors": entries("fd"),
                "heap": heap(),
            }
        )


if __name__ == "__main__":
    main()
