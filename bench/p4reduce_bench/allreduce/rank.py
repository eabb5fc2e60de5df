# SPDX-License-Identifier: Apache-2.0
"""One rank of one system, which reduces each case several times and compares every result with the exact sum.

It prints one JSON object for each case, or for an error.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from typing import Any

import numpy as np

from p4reduce_bench.allreduce.grid import Case
from p4reduce_bench.allreduce.inputs import tensors
from p4reduce_bench.allreduce.reducers import Reducer, open_reducer

_AHEAD_S = 0.1  # until then, the slowest rank knows the time
_BITS = 48  # every system adds up single bits well enough, also those that round


def agree_on_start(reducer: Reducer) -> float:
    """Return the time to begin, which all ranks agree on, in seconds of the machine's monotonic clock.

    Ranks cannot leave a barrier at the same time if they wait for each other's processor.
    """
    ahead = int(1000 * (time.monotonic() + _AHEAD_S)) if reducer.rank == 0 else 0
    bits = np.array([ahead >> bit_index & 1 for bit_index in range(_BITS)], np.float32)
    sums = reducer.values(reducer.reduce(reducer.prepare(bits, "float32")))
    return sum(round(float(bit)) << bit_index for bit_index, bit in enumerate(sums)) / 1000


def measure(
    reducer: Reducer, case: Case, repeat: int, warm_up: int, late: float = 0.0, calls: int = 1
) -> dict[str, Any]:
    """Return the seconds of each repetition, averages of traffic and processor time, and the number of wrong elements.

    late: seconds after which this rank calls. All ranks' times begin when the first can call.
    calls: calls in a row in each repetition; all figures are averages of them.
    """
    own, expected = tensors(case, reducer.rank)
    wrong = 0
    seconds, processor_s = [], 0.0
    traffic: dict[str, float] = {}
    for turn in range(-warm_up, repeat):
        work = reducer.prepare(own, case.dtype, case.wire)
        started = agree_on_start(reducer)
        before = reducer.traffic()
        time.sleep(max(0.0, started + late - time.monotonic()))
        elapsed = busy = 0.0
        result: Any = None
        for call in range(calls):
            if call:
                wrong += reducer.wrong(case, reducer.values(result), expected)
                reducer.refill(work, own)
            idle, begun = time.process_time(), time.monotonic() if call else started
            result = reducer.reduce(work)
            elapsed += time.monotonic() - begun
            busy += time.process_time() - idle
        after = reducer.traffic()
        agree_on_start(reducer)  # all have their sums, so that checking one takes no processor from other ranks
        wrong += reducer.wrong(case, reducer.values(result), expected)
        del work, result
        if turn >= 0:
            seconds.append(elapsed / calls)
            processor_s += busy / calls / repeat
            for name in after:
                traffic[name] = traffic.get(name, 0.0) + (after[name] - before[name]) / calls / repeat
    return {"seconds": seconds, "wrong": wrong, "traffic": traffic, "slots": reducer.slots, "processor_s": processor_s}


def report(event: dict[str, Any]) -> None:
    """Print an event with a single write, since all ranks share one pipe under mpirun."""
    os.write(sys.stdout.fileno(), json.dumps(event).encode() + b"\n")


def main() -> None:
    """Join, and measure one case after the other."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--system", required=True)
    parser.add_argument("--cases", type=json.loads, required=True)
    parser.add_argument("--repeat", type=int, required=True)
    parser.add_argument("--warm-up", type=int, required=True)
    parser.add_argument("--timeout", type=float, required=True)
    parser.add_argument("--slots", type=int, default=0)
    parser.add_argument("--calls", type=int, default=1)
    parser.add_argument("--late", type=float, default=0.0, help="seconds that this rank is late, each time")
    parser.add_argument("--interface", default=None, help="toward the switch, for transports that need to know")
    parser.add_argument("--counted", default=None, help="the interface whose traffic is this rank's alone")
    options = parser.parse_args()
    number = -1
    try:
        with open_reducer(options) as reducer:
            for number, fields in enumerate(options.cases):
                figures = measure(reducer, Case(**fields), options.repeat, options.warm_up, options.late,
                                  options.calls)  # fmt: skip
                report({"rank": reducer.rank, "case": number, **figures})
    except Exception as error:
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        report({"case": number, "error": message})
        raise


if __name__ == "__main__":
    main()
