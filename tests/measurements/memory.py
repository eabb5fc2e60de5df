# SPDX-License-Identifier: Apache-2.0
"""Memory that a rank takes in addition to its tensor: from before the join to the peak of an allreduce."""

from __future__ import annotations

import argparse
import json
from typing import Any

from p4reduce_bench.processes.children import ChildProcesses
from p4reduce_bench.processes.switches import start_controller, start_ranks, start_switches

TIMEOUT_S = 280.0


def limit(tensor_bytes: int) -> int:
    """Return the bytes that a rank may take: 64 MiB and a twentieth of the tensor."""
    return (64 << 20) + tensor_bytes // 20


def measure(mib: int, every: int, backend: str, workers: int = 2) -> list[dict[str, Any]]:
    """Return each rank's report of one allreduce of float32, in which one block in `every` is not zero.

    before: bytes before the join, with the tensor in memory. joined: bytes that the join adds. added: peak minus
    `before`. wrong: blocks that are not the sum. Raises ChildFailed if a process fails.
    """
    with ChildProcesses() as processes:
        controller = start_controller(processes, start_switches(processes, "native"))
        ranks = start_ranks(
            processes, "tests.measurements.memory_rank", workers, controller, str(mib), str(every), backend=backend
        )
        return [event for _, event in processes.events(ranks, TIMEOUT_S)]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.measurements.memory", description=__doc__)
    parser.add_argument("--mib", type=int, default=256, help="size of the tensor in MiB")
    parser.add_argument("--every", type=int, default=1, help="one block in so many is non-zero")
    parser.add_argument("--backend", choices=["c", "python"], nargs="+", default=["c"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    allowed = limit(options.mib << 20)
    rows = [row for backend in options.backend for row in measure(options.mib, options.every, backend, options.workers)]
    if options.json:
        print(json.dumps({"version": 1, "mib": options.mib, "every": options.every, "allowed": allowed, "rows": rows}))
        return
    for row in rows:
        print(f"{row['backend']}: {row['added'] / 2**20:.1f} MiB beside a tensor of {options.mib} MiB, of them "
              f"{row['joined'] / 2**20:.1f} MiB by joining; {allowed / 2**20:.1f} MiB are allowed")  # fmt: skip


if __name__ == "__main__":
    main()
