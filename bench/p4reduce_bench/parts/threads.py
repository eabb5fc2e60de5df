# SPDX-License-Identifier: Apache-2.0
"""Packets a second by threads, of ranks' engines and of the native switch, and what a packet costs at each end.

Two workers on loopback reduce a dense tensor; every sum is checked. All setups take turns, and each figure is the
median of the turns. Packets are those that the workers send, all together; as many results come back. "Rank ns" and
"switch ns" are processor time, in user mode and the kernel, of a packet with its result at one end. From them follows
what would be the most with a core for each thread: workers times engine threads / rank ns, or switch threads / switch
ns, if less.
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

from p4reduce_bench.allreduce.grid import Case
from p4reduce_bench.outputs import machine
from p4reduce_bench.parts.stack import rank_environment, start_switch
from p4reduce_bench.processes.children import Child, ChildFailed, Family

WORKERS = 2
SILENCE_S = 120.0
FIRST = Case(WORKERS, 1 << 12, "float32", 1.0, "all", "block")  # when it is done, all that follows is packets


@dataclass(frozen=True)
class Setup:
    """How many threads each engine and the switch have."""

    engine: int
    switch: int


@dataclass(frozen=True)
class Found:
    """In one turn: packets a second, and nanoseconds of a processor for a packet."""

    packets_per_s: float
    rank_ns: float
    switch_ns: float


def measure(setup: Setup, numel: int, slots: int, repeat: int) -> Found:
    """Return the rate of the median of `repeat` allreduces, and mean times. Raises ChildFailed, also for a wrong
    sum."""
    cases = [asdict(FIRST), asdict(Case(WORKERS, numel, "float32", 1.0, "all", "block"))]
    with Family() as family:
        switch, _, controller = start_switch(family, switch_options=["--threads", str(setup.switch)])
        ranks = []
        for rank in range(WORKERS):
            environment = rank_environment(controller, rank, WORKERS, backend="c", threads=str(setup.engine))
            ranks.append(family.start(
                f"rank {rank}", "p4reduce_bench.allreduce.rank", "--system", "p4reduce", "--cases", json.dumps(cases),
                "--repeat", str(repeat), "--warm-up", "1", "--timeout", "100", "--slots", str(slots),
                environment=environment,
            ))  # fmt: skip
        reports = []
        for _, event in family.events(ranks, SILENCE_S):
            if "error" in event or event["wrong"]:
                raise ChildFailed(event.get("error") or f"sums are wrong: {setup}")
            if event["case"] == 0:
                before = processor_s(switch)
            else:
                reports.append(event)
        used = processor_s(switch) - before
    each = [report["traffic"]["packets"] - report["traffic"]["retransmissions"] for report in reports]
    rates = [sum(each) / max(seconds) for seconds in zip(*(report["seconds"] for report in reports), strict=True)]
    processor = sum(report["processor_s"] for report in reports)
    return Found(statistics.median(rates), 1e9 * processor / sum(each), 1e9 * used / (repeat + 1) / sum(each))


def processor_s(child: Child) -> float:
    """Seconds that the process has taken of processors."""
    after_name = Path(f"/proc/{child.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def row(setup: Setup, turns: list[Found]) -> dict[str, float]:
    """Return the medians of the turns, with the least and the most packets a second, and what would be the most."""
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
    """In Markdown."""
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
    parser = argparse.ArgumentParser(prog="python -m p4reduce_bench.parts.threads", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--threads",
        type=int,
        nargs="+",
        default=[1, 2],
        help="threads of the engine and of the switch, in all combinations",
    )
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
            console.print(
                f"{turn + 1}/{options.turns} {setup}: {turns[-1].packets_per_s:,.0f} packets/s", highlight=False
            )
    rows = [row(setup, turns) for setup, turns in found.items()]
    print(json.dumps({"version": 1, "machine": machine(), "rows": rows}) if options.json else table(rows))


if __name__ == "__main__":
    main()
