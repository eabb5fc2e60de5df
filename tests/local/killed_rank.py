# SPDX-License-Identifier: Apache-2.0
"""A rank that reduces a tensor which others map, again and again, until a line comes in: then it fails, and sees to it
that its tensor is its own."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import numpy as np

import p4reduce
from p4reduce.errors import P4ReduceError
from p4reduce.local.engine import LocalEngine
from p4reduce.protocol import Membership, Operation
from tests.support.hostlib.local_engines import Ending, NoTransport

SIZE = 1 << 21


def reduce_until_it_fails(engine: LocalEngine, tensor: Any, rank: int, world_size: int) -> None:
    while True:
        tensor.fill(rank + 1)
        ending = Ending()
        try:
            engine.submit(Operation(tensor), name="it", timeout=60, on_end=ending)
        except P4ReduceError:
            return  # it failed before
        if ending.wait() is not None:
            return
        assert (tensor == world_size * (world_size + 1) // 2).all()


def main() -> None:
    rank, world_size, secret = map(int, sys.argv[1:])
    shape = {"slots": 8, "lanes": 4, "block_size": 64, "abort_secret": secret, "first_seq": 0, "peers": ()}
    membership = Membership(job=1, generation=1, rank=rank, world_size=world_size, **shape)
    engine = LocalEngine(NoTransport(), membership, switch="")
    tensor = p4reduce.shared_empty(SIZE)
    print("there", flush=True)

    def obey() -> None:
        sys.stdin.readline()
        engine.fail(P4ReduceError("a rank has gone"))

    threading.Thread(target=obey, daemon=True).start()
    reduce_until_it_fails(engine, tensor, rank, world_size)
    tensor.fill(777)
    until = time.monotonic() + 0.3
    while time.monotonic() < until:
        assert np.all(tensor == 777)
    print("kept", flush=True)
    engine.close(P4ReduceError("the end"))


if __name__ == "__main__":
    main()
