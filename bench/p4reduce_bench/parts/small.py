# SPDX-License-Identifier: Apache-2.0
"""What a small allreduce takes on loopback, beside Gloo's: both are run in turn by the same processes."""

from __future__ import annotations

import argparse
import json
import socket
import statistics
from typing import Any

from p4reduce_bench.parts.stack import start_switch
from p4reduce_bench.processes.children import Family

TIMEOUT_S = 280.0
_WARM_UP = 10  # of so many operations, one is not counted


def measure(sizes: list[int], dtype: str, workers: int, repeat: int) -> list[dict[str, Any]]:
    """What rank 0 says of each size. Raises ChildFailed if a process fails."""
    with Family() as family:
        *_, controller = start_switch(family)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        ranks = []
        for rank in range(workers):
            environment = {
                "RANK": str(rank),
                "WORLD_SIZE": str(workers),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "P4REDUCE_CONTROLLER": controller,
            }
            arguments = ",".join(map(str, sizes)), dtype, str(repeat)
            ranks.append(
                family.start(f"rank {rank}", "p4reduce_bench.parts.small_rank", *arguments, environment=environment)
            )
        return [said for child, said in family.events(ranks, TIMEOUT_S) if child is ranks[0]]


def quartiles(seconds: list[float]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile, in microseconds, without the first operations."""
    lower, middle, upper = statistics.quantiles(seconds[len(seconds) // _WARM_UP :], n=4)
    return 1e6 * lower, 1e6 * middle, 1e6 * upper


def table(rows: list[dict[str, Any]]) -> str:
    """In Markdown."""
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
    parser = argparse.ArgumentParser(prog="python -m p4reduce_bench.parts.small", description=__doc__)
    parser.add_argument("--sizes", default="16,128,256,1024,4096", help="numbers of elements, separated by commas")
    parser.add_argument("--dtype", default="float32", choices=["float32", "int32"])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=2000, help="operations of each size and system")
    parser.add_argument("--json", action="store_true", help="print the seconds of every operation as JSON")
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    rows = measure(sizes, options.dtype, options.workers, options.repeat)
    print(json.dumps({"version": 1, "dtype": options.dtype, "rows": rows}) if options.json else table(rows))


if __name__ == "__main__":
    main()
