# SPDX-License-Identifier: Apache-2.0
"""Two ranks of one process, in which the kernel refuses a system call once the ranks have met.

Prints for how many operations each has found that, when all sums are the reference's.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import struct
import sys
from concurrent.futures import ThreadPoolExecutor

import p4reduce
from p4reduce.errors import P4ReduceError
from p4reduce.local.engine import LocalEngine
from tests.support.hostlib.local_engines import NoTransport, Ranks, memberships
from tests.support.hostlib.sums import SEED, SIZES, Array, check_random_sums

READ, OPEN = 310, 257  # process_vm_readv and openat of x86-64
OPEN_FLAGS = os.O_RDWR | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK  # with which files of other ranks are opened
_libc = ctypes.CDLL(None, use_errno=True)


def refuse(call: int, flags: int | None, *, everywhere: bool) -> None:
    """Make a system call fail with EPERM if its third argument has these flags.

    everywhere: in all threads, instead of this thread and those that it starts.
    """
    jump, load, ret = 0x15, 0x20, 0x06
    program = [
        (load, 0, 0, 0),  # the call's number
        (jump, 0, 2 if flags is not None else 1, call),
        *([(load, 0, 0, 32), (jump, 0, 1, flags)] if flags is not None else []),
        (ret, 0, 0, 0x00050001),
        (ret, 0, 0, 0x7FFF0000),
    ]
    if flags is not None:
        program[1] = (jump, 0, 3, call)
    code = b"".join(struct.pack("HBBI", *step) for step in program)
    room = ctypes.create_string_buffer(code)
    filter_ = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(room))
    _libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
    if _libc.syscall(317, 1, int(everywhere), filter_):  # seccomp
        print("skip: seccomp:", os.strerror(ctypes.get_errno()))
        raise SystemExit(0)


def main(refused: str) -> None:
    if platform.machine() != "x86_64":
        print("skip: system calls have these numbers on x86-64 alone")
        return
    if refused == "map without reading":
        os.environ["P4REDUCE_LOCAL_COPIES"] = "1"

    def start(rank: int) -> LocalEngine:
        if refused == "map at one rank" and rank == 0:
            refuse(OPEN, OPEN_FLAGS, everywhere=False)
        return LocalEngine(NoTransport(), members[rank], switch="", name=f"rank {rank}")

    members = memberships(2)
    with ThreadPoolExecutor(2) as pool:
        engines = list(pool.map(start, range(2)))

    def placement(rank: int, array: Array) -> Array:
        if refused == "read" or (rank and array.size % 2):
            return array.copy()
        shared: Array = p4reduce.shared_empty(array.shape, array.dtype)
        shared[...] = array
        return shared

    if refused == "read":
        refuse(READ, None, everywhere=True)
    elif refused != "map at one rank":
        refuse(OPEN, OPEN_FLAGS, everywhere=True)
    job = Ranks(engines)
    check_random_sums(job, 8, SEED, sizes=SIZES[-4:], placement=placement)
    print(json.dumps([engine.stats.local_fallbacks for engine in engines]))
    for engine in engines:
        engine.close(P4ReduceError("the test is over"))


if __name__ == "__main__":
    main(sys.argv[1])
