# SPDX-License-Identifier: Apache-2.0
"""Packets per second by threads of the ranks' engines and of the native switch, and the processor time of a packet.

Two workers on loopback reduce a dense tensor; every sum is checked. All setups take turns, and each figure is the
median of the turns. Packets are those that the workers send, all together; as many results come back. "Rank ns" and
"switch ns" are the processor time, in user mode and in the kernel, of a packet with its result at one end. They give an
estimate of the rate with a core for each thread: the smaller of workers * engine threads / rank ns, and switch threads
/ switch ns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from rich.console import Console

from p4reduce_bench.outputs import machine
from p4reduce_bench.processes.children import Child, ChildProcesses
from tests.measurements.packets import WORKERS, dense, median_rate, packets, reports, start_stack

FIRST = dense(1 << 12)  # after this case, the processes do nothing but send packets


@dataclass(frozen=True)
class Setup:
    """The numbers of threads of each engine and of the switch."""

    engine: int
    switch: int


@dataclass(frozen=True)
class Found:
    """The figures of one turn: packets per second, and nanoseconds of a processor for a packet."""

    packets_per_s: float
    rank_ns: float
    switch_ns: float


def measure(setup: Setup, numel: int, slots: int, repeat: int) -> Found:
    """Return the rate of the median of `repeat` allreduces, and mean times. Raises ChildFailed."""
    with ChildProcesses() as processes:
        switch, controller = start_stack(processes, "native", setup.switch)
        found = []
        for report in reports(processes, controller, [FIRST, dense(numel)], repeat, slots, backend="c",
                              threads=str(setup.engine)):  # fmt: skip
            if report["case"] == 0:
                before = processor_s(switch)
            else:
                found.append(report)
        used = processor_s(switch) - before
    sent = packets(found)
    processor = sum(report["processor_s"] for report in found)
    return Found(median_rate(found), 1e9 * processor / sent, 1e9 * used / (repeat + 1) / sent)


def processor_s(child: Child) -> float:
    """Return the processor time that a process has used, in seconds."""
    after_name = Path(f"/proc/{child.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def row(setup: Setup, turns: list[Found]) -> dict[str, float]:
    """Return the medians of the turns, the range of the rate, and the estimate with a core for each thread."""
    rank_ns, switch_ns = (statistics.median(getattr(one, name) for one in turns) for name in ("rank_ns", "switch_ns"))
    rates = [one.packets_per_s for one in turns]
    return {
        **asdict(setup),
        "packets_per_s": statistics.median(rates),
        "min": min(rates),
        "max": max(rates),
        "rank_ns": rank_ns,
        "switch_ns": switch_ns,
        "with_cores": 1e9 * min(WORKERS * setup.engine / rank_ns, setup.switch / switch_ns),
    }


def table(rows: list[dict[str, float]]) -> str:
    """Return the rows in Markdown."""
    lines = [
        "| engine threads | switch threads | packets/s (min to max) | rank ns | switch ns | with a core for each |",
        "|---|---|---|---|---|---|",
    ]
    for one in rows:
        rates = f"{one['packets_per_s']:,.0f} ({one['min']:,.0f} to {one['max']:,.0f})"
        costs = f"{one['rank_ns']:.0f} | {one['switch_ns']:.0f} | {one['with_cores']:,.0f}"
        lines.append(f"| {one['engine']:.0f} | {one['switch']:.0f} | {rates} | {costs} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.measurements.threads", description=__doc__.splitlines()[0])
    help_ = "threads of the engine and of the switch, in all combinations"
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help=help_)
    parser.add_argument("--numel", type=int, default=1 << 23, help="number of elements of the tensor")
    parser.add_argument("--slots", type=int, default=256)
    parser.add_argument("--turns", type=int, default=3, help="turns; each runs all setups")
    parser.add_argument("--repeat", type=int, default=7, help="allreduces of each setup in a turn")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    console = Console(stderr=True)
    found: dict[Setup, list[Found]] = {Setup(*both): [] for both in product(options.threads, repeat=2)}
    for turn in range(options.turns):
        for setup, turns in found.items():
            turns.append(measure(setup, options.numel, options.slots, options.repeat))
            rate = f"{turns[-1].packets_per_s:,.0f} packets/s"
            console.print(f"{turn + 1}/{options.turns} {setup}: {rate}", highlight=False)
    rows = [row(setup, turns) for setup, turns in found.items()]
    print(json.dumps({"version": 1, "machine": machine(), "rows": rows}) if options.json else table(rows))


if __name__ == "__main__":
    main()
