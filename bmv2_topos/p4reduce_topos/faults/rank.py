# SPDX-License-Identifier: Apache-2.0
"""One rank that reduces and holds each sum against the reference, bit for bit. Variables as torchrun sets them.

Prints JSON lines: {"joined": true}, {"done": calls so far} after each, then {"right": calls, "digest": of all sums}, or
{"wrong": elements}, or {"error": class, "message": text} of what a call raised.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time

import numpy as np
import numpy.typing as npt

from p4reduce import Communicator, P4ReduceError
from p4reduce.protocol.numbers import reference_allreduce


def tensor(rank: int, call: int, numel: int, density: float, block: int) -> npt.NDArray[np.float32]:
    """Values of very different size, so that how they are rounded shows. `density`: share of blocks with values."""
    random = np.random.default_rng([call, rank])
    values = (random.standard_normal(numel) * 10.0 ** random.integers(-3, 4, numel)).astype(np.float32)
    values[np.repeat(random.random(-(-numel // block)) >= density, block)[:numel]] = 0
    return values


def sums(world_size: int, call: int, numel: int, density: float, block: int) -> npt.NDArray[np.float32]:
    """What every rank must get."""
    inputs = [tensor(rank, call, numel, density, block) for rank in range(world_size)]
    return reference_allreduce(inputs, "sum", block)


def reduce(communicator: Communicator, options: argparse.Namespace) -> dict[str, object]:
    """What is to be said at the end."""
    rank, block = communicator.rank, communicator.block_size
    digest = hashlib.sha256()
    for call in range(options.calls):
        numel = options.numel + (64 if rank == options.odd else 0)
        expected = sums(communicator.world_size, call, numel, options.density, block)
        result = communicator.allreduce(tensor(rank, call, numel, options.density, block))
        wrong = int((result.view(np.int32) != expected.view(np.int32)).sum())
        if wrong:
            return {"wrong": wrong, "call": call}
        digest.update(result.tobytes())
        say(done=call + 1)
        time.sleep(options.pause)
    communicator.barrier(timeout=options.timeout)
    again = communicator.stats().retransmissions
    return {"right": options.calls, "digest": digest.hexdigest(), "retransmissions": again}


def say(**event: object) -> None:
    print(json.dumps(event), flush=True)


def main() -> None:
    """Join, reduce, leave."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--job", default="topo")
    parser.add_argument("--calls", type=int, default=10)
    parser.add_argument("--numel", type=int, default=20_000)
    parser.add_argument("--density", type=float, default=0.5)
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds for one call")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds between calls")
    parser.add_argument("--odd", type=int, default=-1, help="a rank that reduces another shape")
    options = parser.parse_args()
    try:
        with Communicator(job=options.job, slots=options.slots, timeout=options.timeout) as communicator:
            say(joined=True, first_seq=communicator._running.membership.first_seq)
            last = reduce(communicator, options)
        say(**last)
    except P4ReduceError as error:
        say(error=type(error).__name__, message=str(error))


if __name__ == "__main__":
    main()
