# SPDX-License-Identifier: Apache-2.0
"""A rank that reduces and compares each sum with the reference, bit for bit. It reads the variables of torchrun.

It prints a JSON object on each line:

| line | when |
|---|---|
| {"joined": true, "first_seq": number} | the rank has joined the job |
| {"done": calls} | after each call; the calls so far |
| {"right": calls, "digest": text, "retransmissions": packets} | at the end, if all sums were right |
| {"wrong": elements, "call": number} | at the end, after the first wrong sum |
| {"error": class, "message": text} | at the end, if a call raised |
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
    """Return the input of a rank for a call. Its values differ by many magnitudes, so that wrong rounding shows.

    density: the share of blocks that contain values.
    block: the number of values in a block.
    """
    random = np.random.default_rng([call, rank])
    values = (random.standard_normal(numel) * 10.0 ** random.integers(-3, 4, numel)).astype(np.float32)
    values[np.repeat(random.random(-(-numel // block)) >= density, block)[:numel]] = 0
    return values


def sums(world_size: int, call: int, numel: int, density: float, block: int) -> npt.NDArray[np.float32]:
    """Return the sum that every rank must get from a call."""
    inputs = [tensor(rank, call, numel, density, block) for rank in range(world_size)]
    return reference_allreduce(inputs, "sum", block)


def reduce(communicator: Communicator, options: argparse.Namespace) -> dict[str, object]:
    """Make all calls, and return the last line to print."""
    rank, block = communicator.rank, communicator.block_size
    digest = hashlib.sha256()
    for call in range(options.calls):
        numel = options.numel + (64 if rank == options.odd else 0)  # elements; any other number is a mismatch
        expected = sums(communicator.world_size, call, numel, options.density, block)
        result = communicator.allreduce(tensor(rank, call, numel, options.density, block))
        wrong = int((result.view(np.int32) != expected.view(np.int32)).sum())
        if wrong:
            return {"wrong": wrong, "call": call}
        digest.update(result.tobytes())
        say(done=call + 1)
        time.sleep(options.pause)
    communicator.barrier(timeout=options.timeout)
    retransmissions = communicator.stats().retransmissions
    return {"right": options.calls, "digest": digest.hexdigest(), "retransmissions": retransmissions}


def say(**event: object) -> None:
    """Print an event as a line of JSON."""
    print(json.dumps(event), flush=True)


def main() -> None:
    """Join the job, reduce, and leave."""
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
