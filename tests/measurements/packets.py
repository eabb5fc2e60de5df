# SPDX-License-Identifier: Apache-2.0
"""Packets per second of each transport and each target, end to end: dense allreduces, where every sum is checked.

Transports are compared on the native switch, with a veth pair for each worker. Targets are compared with workers in C
over UDP on loopback; BMv2, if it is on PATH, with raw sockets over veth pairs. All setups take turns. A figure is the
median of the turns, and a turn is the median of some allreduces. Packets are those that the workers send, all together;
as many results come back. Needs root, for the interfaces.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Console

from p4reduce.commands.tables import show as show_table
from p4reduce.errors import P4ReduceError
from p4reduce_bench import outputs
from p4reduce_bench.allreduce.grid import Case
from p4reduce_bench.processes import network
from p4reduce_bench.processes.children import Child, ChildFailed, ChildProcesses
from p4reduce_bench.processes.switches import rank_environment, start_controller, start_switches

WORKERS = 2
SLOTS = 64
SILENCE_S = 120.0

Report = dict[str, Any]


@dataclass(frozen=True)
class Setup:
    """One of the setups that are compared."""

    group: str
    target: str
    threads: int
    ports: str
    transport: str
    backend: str
    numel: int
    slots: int = SLOTS

    def __str__(self) -> str:
        threads = f", {self.threads} threads" if self.threads > 1 else ""
        return f"{self.target}{threads}, {self.ports} ports; workers: {self.transport}, {self.backend}"


SETUPS = (
    Setup("transports", "native", 1, "eth", "udp", "python", 1 << 19),
    Setup("transports", "native", 1, "eth", "udp", "c", 1 << 23),
    Setup("transports", "native", 1, "eth", "raw", "python", 1 << 19),
    Setup("transports", "native", 1, "eth", "raw", "c", 1 << 23),
    Setup("transports", "native", 1, "eth", "scapy", "python", 1 << 17),
    Setup("targets", "sim", 1, "udp", "udp", "c", 1 << 17),
    Setup("targets", "native", 1, "udp", "udp", "c", 1 << 23),
    Setup("targets", "native", 2, "udp", "udp", "c", 1 << 23),
    Setup("targets", "bmv2", 1, "eth", "raw", "c", 1 << 18, slots=16),
)


def dense(numel: int) -> Case:
    """Return the case of a tensor without zeros."""
    return Case(WORKERS, numel, "float32", 1.0, "all", "block")


def start_stack(processes: ChildProcesses, target: str, threads: int, cables: int = 0) -> tuple[Child, str]:
    """Start a switch and its controller; return the switch, and the controller's address."""
    options = ["--threads", str(threads)] if threads > 1 else []
    controller = start_controller(processes, start_switches(processes, target, cables=cables, options=options))
    return processes.children[0], controller


def reports(
    processes: ChildProcesses, controller: str, cases: Sequence[Case], repeat: int, slots: int, *, cables: bool = False,
    **settings: str,
) -> Iterator[Report]:  # fmt: skip
    """Start the ranks, and yield the report of each rank on each case. Raises ChildFailed, also for a wrong sum."""
    ranks = [
        processes.start(
            f"rank {rank}", "p4reduce_bench.allreduce.rank", "--system", "p4reduce",
            "--cases", json.dumps([asdict(case) for case in cases]), "--repeat", str(repeat), "--warm-up", "1",
            "--timeout", "100", "--slots", str(slots), *(["--interface", f"worker{rank}"] if cables else []),
            environment=rank_environment(rank, WORKERS, controller=controller, **settings),
        )
        for rank in range(WORKERS)
    ]  # fmt: skip
    for _, report in processes.events(ranks, SILENCE_S):
        if "error" in report or report["wrong"]:
            raise ChildFailed(report.get("error") or f"{report['wrong']} sums of rank {report['rank']} are wrong")
        yield report


def packets(found: Sequence[Report]) -> float:
    """Return the packets that all ranks send in an allreduce, each packet counted once."""
    return sum(float(report["traffic"]["packets"] - report["traffic"]["retransmissions"]) for report in found)


def median_rate(found: Sequence[Report]) -> float:
    """Return the packets per second of the median of the allreduces."""
    seconds = [max(turn) for turn in zip(*(report["seconds"] for report in found), strict=True)]
    return packets(found) / float(statistics.median(seconds))


def measure(setup: Setup, repeat: int) -> float:
    """Return the packets per second, as the median of `repeat` allreduces. Raises ChildFailed."""
    cables = setup.ports == "eth"
    with ChildProcesses() as processes:
        _, controller = start_stack(processes, setup.target, setup.threads, WORKERS if cables else 0)
        return median_rate(list(reports(
            processes, controller, [dense(setup.numel)], repeat, setup.slots, cables=cables,
            transport=setup.transport, backend=setup.backend,
        )))  # fmt: skip


def rows(rates: dict[Setup, list[float]]) -> list[dict[str, Any]]:
    """Return the median of the turns; `ratio`: to the first of its group."""
    made: list[dict[str, Any]] = []
    first: dict[str, float] = {}
    for setup, found in rates.items():
        median = statistics.median(found)
        figures = {"packets_per_s": median, "min": min(found), "max": max(found)}
        made.append({**asdict(setup), **figures, "ratio": median / first.setdefault(setup.group, median)})
    return made


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.measurements.packets", description=__doc__.splitlines()[0])
    parser.add_argument("--groups", nargs="+", choices=["transports", "targets"], default=["transports", "targets"])
    parser.add_argument("--turns", type=int, default=3, help="turns; each runs all setups")
    parser.add_argument("--repeat", type=int, default=5, help="allreduces of each setup in a turn")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        network.enter("tests.measurements.packets")
    except P4ReduceError as error:
        raise SystemExit(str(error)) from None
    network.star(WORKERS)
    console = Console(stderr=True)
    setups = [setup for setup in SETUPS if setup.group in options.groups]
    if shutil.which("simple_switch_grpc") is None:
        console.print("without bmv2: simple_switch_grpc is not on PATH")
        setups = [setup for setup in setups if setup.target != "bmv2"]
    rates: dict[Setup, list[float]] = {setup: [] for setup in setups}
    for turn in range(options.turns):
        for setup in setups:
            rates[setup].append(measure(setup, options.repeat))
            console.print(f"{turn + 1}/{options.turns} {setup}: {rates[setup][-1]:,.0f} packets/s", highlight=False)
    results = rows(rates)
    if options.json:
        print(json.dumps({"version": 1, "workers": WORKERS, "rows": results}))
        return
    title = f"packets a second, {WORKERS} workers, full packets"
    table = outputs.table(title, ["setup"], ["packets/s", "min", "max", "ratio"])
    for setup, row in zip(setups, results, strict=True):
        figures = (f"{row[name]:,.0f}" for name in ("packets_per_s", "min", "max"))
        table.add_row(str(setup), *figures, f"{row['ratio']:.2f}")
    show_table(table, Console())


if __name__ == "__main__":
    main()
