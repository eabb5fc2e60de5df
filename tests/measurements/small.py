# SPDX-License-Identifier: Apache-2.0
"""The time of a small allreduce on loopback, compared with Gloo's: the same processes run both in turn."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np

import p4reduce
from p4reduce_bench.processes.children import ChildProcesses
from p4reduce_bench.processes.switches import start_controller, start_ranks, start_switches

TIMEOUT_S, RANK_TIMEOUT_S = 280.0, 60.0
_WARM_UP = 10  # one in so many operations, the first, is not counted


def measure(sizes: list[int], dtype: str, workers: int, repeat: int) -> list[dict[str, Any]]:
    """Return rank 0's report of each size: seconds of each operation by system, and the number of wrong elements.

    Raises ChildFailed if a process fails.
    """
    with ChildProcesses() as processes:
        controller = start_controller(processes, start_switches(processes, "native"))
        arguments = ("--rank", "--sizes", ",".join(map(str, sizes)), "--dtype", dtype, "--repeat", str(repeat))
        ranks = start_ranks(processes, "tests.measurements.small", workers, controller, *arguments)
        return [said for child, said in processes.events(ranks, TIMEOUT_S) if child is ranks[0]]


def run_rank(sizes: list[int], dtype: str, repeat: int) -> None:
    """Join as one rank, and print a JSON object for each size."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=timedelta(seconds=RANK_TIMEOUT_S))
    with p4reduce.Communicator(job="small", timeout=RANK_TIMEOUT_S) as communicator:
        for numel in sizes:
            print(json.dumps(_take_turns(communicator, numel, dtype, repeat)), flush=True)
        dist.barrier()
    dist.destroy_process_group()


def _take_turns(communicator: p4reduce.Communicator, numel: int, dtype: str, repeat: int) -> dict[str, Any]:
    """Run one operation of each system in turn, so that other work on the machine affects all alike."""
    import torch
    import torch.distributed as dist

    array, tensor = np.empty(numel, dtype), torch.from_numpy(np.empty(numel, dtype))
    systems: dict[str, tuple[Any, Callable[[], object]]] = {
        "p4reduce": (array, lambda: communicator.allreduce(array)),
        "p4reduce, async": (array, lambda: communicator.allreduce_async(array).wait()),
        "gloo": (tensor.numpy(), lambda: dist.all_reduce(tensor)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in systems}
    wrong = 0
    for turn in range(repeat):
        for name, (work, reduce) in systems.items():
            work[:] = communicator.rank + turn % 8
            begun = time.perf_counter()
            reduce()
            seconds[name].append(time.perf_counter() - begun)
            wrong += int(np.count_nonzero(work != sum(rank + turn % 8 for rank in range(communicator.world_size))))
    return {"numel": numel, "seconds": seconds, "wrong": wrong}


def quartiles(seconds: list[float]) -> tuple[float, float, float]:
    """Return the lower quartile, median and upper quartile, in microseconds, without the first operations."""
    lower, middle, upper = statistics.quantiles(seconds[len(seconds) // _WARM_UP :], n=4)
    return 1e6 * lower, 1e6 * middle, 1e6 * upper


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows in Markdown."""
    names = list(rows[0]["seconds"])
    lines = [f"| elements | {' | '.join(f'{name} us (quartiles)' for name in names)} | p4reduce / gloo | #wrong |"]
    lines.append("|---" * (len(names) + 3) + "|")
    for row in rows:
        found = {name: quartiles(row["seconds"][name]) for name in names}
        times = " | ".join(f"{middle:.0f} ({lower:.0f} to {upper:.0f})" for lower, middle, upper in found.values())
        ratio = found["p4reduce"][1] / found["gloo"][1]
        lines.append(f"| {row['numel']} | {times} | {ratio:.2f} | {row['wrong']} |")
    return "\n".join(lines)


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.measurements.small", description=__doc__)
    parser.add_argument("--sizes", default="16,128,256,1024,4096", help="numbers of elements, separated by commas")
    parser.add_argument("--dtype", default="float32", choices=["float32", "int32"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=2000, help="operations of each size and system")
    parser.add_argument("--json", action="store_true", help="print the seconds of every operation as JSON")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)  # `measure` starts the ranks with it
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    if options.rank:
        run_rank(sizes, options.dtype, options.repeat)
        return
    rows = measure(sizes, options.dtype, options.workers, options.repeat)
    print(json.dumps({"version": 1, "dtype": options.dtype, "rows": rows}) if options.json else table(rows))


if __name__ == "__main__":
    main()
