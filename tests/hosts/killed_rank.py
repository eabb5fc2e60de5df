# SPDX-License-Identifier: Apache-2.0
"""A rank that reduces again and again until that fails, and says how. Arguments: its rank, the job's secret, the
switch's port, each operation's time limit in seconds, the number of values, and "fork" if a process is to be forked
that outlives it by seconds, as one that loads data may."""

from __future__ import annotations

import os
import sys
import time

import numpy as np

from p4reduce.errors import CollectiveTimeout, JobAborted, P4ReduceError
from p4reduce.local.engine import SharingEngine
from p4reduce.protocol import Membership, Operation
from p4reduce.transport import Switch, open_transport
from tests.support.hostlib.local_engines import Ending, NoTransport

HOSTS = (0, 0, 0, 1)
SHAPE = {"job": 1, "generation": 1, "slots": 8, "lanes": 4, "block_size": 64, "first_seq": 0}


def reduce_until_it_fails(engine: SharingEngine, size: int, timeout: float) -> BaseException:
    while True:
        tensor, ending = np.zeros(size, np.float32), Ending()
        tensor[::5000] = 1
        try:
            engine.submit(Operation(tensor), name="it", timeout=timeout, on_end=ending)
        except P4ReduceError as error:
            return error  # it failed before
        error = ending.wait()
        if error is not None:
            return error
        assert (tensor[::5000] == len(HOSTS)).all()


def fork() -> None:
    if os.fork() == 0:
        os.closerange(0, 3)
        time.sleep(20)
        os._exit(0)


def main() -> None:
    rank, secret, port, size = (int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[5]))
    member = Membership(rank=rank, world_size=len(HOSTS), hosts=HOSTS, abort_secret=secret, **SHAPE)  # type: ignore[arg-type]
    leads = member.leader == rank
    transport = open_transport("udp", Switch("127.0.0.1", port, mac="02:00:00:00:00:01")) if leads else NoTransport()
    engine = SharingEngine(transport, member, switch="the switch")
    if sys.argv[6] == "fork":
        fork()
    print("there", flush=True)
    error = reduce_until_it_fails(engine, size, float(sys.argv[4]))
    who = error.awaited if isinstance(error, CollectiveTimeout) else getattr(error, "rank", None)
    kind = "late" if isinstance(error, CollectiveTimeout) else "aborted" if isinstance(error, JobAborted) else "failed"
    print(kind, who, error, flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
