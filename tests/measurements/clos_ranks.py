# SPDX-License-Identifier: Apache-2.0
"""Some ranks of `clos`, each in a thread of this process, with the C engine of its own.

It prints a JSON object when all have made their calls, leaves the job when the file `release` exists, and ends.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce import Communicator
from p4reduce.join import joining
from p4reduce.protocol.numbers import reference_allreduce
from tests.support.waiting import wait_until

TIMEOUT_S = 600.0
_here = threading.local()


def values(rank: int, call: int, plan: dict[str, Any]) -> npt.NDArray[np.float32]:
    """Return a rank's array, in which a share `density` of the blocks is not zero."""
    random = np.random.default_rng([call, rank])
    numbers = random.standard_normal(plan["numel"]).astype(np.float32)
    numbers[np.repeat(random.random(-(-plan["numel"] // 64)) >= plan["density"], 64)[: plan["numel"]]] = 0
    return numbers


def run(rank: int, plan: dict[str, Any], expected: list[npt.NDArray[np.float32]]) -> dict[str, Any]:
    """Join as one rank, make the calls, and return how many elements were wrong, and the seconds of the calls."""
    if plan["per_host"] > 1:
        _here.host = f"{plan['job']} {rank // plan['per_host']}"
    with Communicator(
        controller=plan["controller"],
        job=plan["job"],
        rank=rank,
        world_size=plan["ranks"],
        slots=plan["slots"],
        switch=plan["at"][rank // plan["per_host"] % len(plan["at"])],
        local="auto" if plan["per_host"] > 1 else "off",
        timeout=TIMEOUT_S,
    ) as communicator:
        began, wrong = time.perf_counter(), 0
        for call, sums in enumerate(expected):
            own = values(rank, call, plan)
            communicator.allreduce(own)
            wrong += int((own.view(np.int32) != sums.view(np.int32)).sum())
        seconds = time.perf_counter() - began
        communicator.barrier()
        stats = communicator.stats()
        found = {
            "wrong": wrong,
            "seconds": seconds,
            "retransmissions": stats.retransmissions,
            "packets": stats.packets_sent,
        }
        plan["done"].wait(TIMEOUT_S)  # until all ranks of this process have made their calls
        wait_until(Path(plan["release"]).exists, f"the file {plan['release']}", TIMEOUT_S)
    return found


def main() -> None:
    plan = json.loads(sys.argv[1])
    mine = range(plan["first"], plan["first"] + plan["count"])
    everyone = range(plan["ranks"])
    expected = [reference_allreduce([values(rank, call, plan) for rank in everyone]) for call in range(plan["calls"])]
    if plan["per_host"] > 1:  # pretended hosts, by the thread that joins
        digest = joining.host_digest
        joining.host_digest = lambda count: f"{_here.host} {digest(count)}"[:64]
    plan["done"] = threading.Barrier(len(mine), action=lambda: print(json.dumps({"done": True}), flush=True))
    with ThreadPoolExecutor(len(mine)) as threads:
        found = list(threads.map(lambda rank: run(rank, plan, expected), mine))
    print(json.dumps({"ranks": found}), flush=True)


if __name__ == "__main__":
    main()
