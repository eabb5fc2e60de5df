# SPDX-License-Identifier: Apache-2.0
"""Packets a second of each transport and of each target, end to end: dense allreduces, with every sum checked.

Transports are compared on one switch, the native one, with a veth pair for each worker; then targets, with workers in
C over UDP on loopback, and BMv2 (where it is on PATH) and, beside it, the native switch with raw sockets over veth. All
take turns; a figure is the median of the turns, and each of these the median of some allreduces. Packets are those that
the workers send, all together; as many results come back. Needs root, for the interfaces.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from p4reduce.commands.tables import show as show_table
from p4reduce_bench.allreduce.grid import Case
from p4reduce_bench.parts.stack import rank_environment, start_switch
from p4reduce_bench.processes import network
from p4reduce_bench.processes.children import ChildFailed, Family

WORKERS = 2
SLOTS = 64
INSIDE = "P4REDUCE_BENCH_PACKETS"
ON_WIRES = "10.0.0.254:31314"
SILENCE_S = 120.0


@dataclass(frozen=True)
class Setup:
    """One of what is compared."""

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


def measure(setup: Setup, repeat: int) -> float:
    """Packets a second, as the median of `repeat` allreduces. Raises ChildFailed, also for a wrong sum."""
    on_wires = setup.ports == "eth"
    ports = [f"{port}=eth:port{port}" for port in range(1, WORKERS + 1)] if on_wires else ["1=udp:127.0.0.1:0"]
    threads = ["--threads", str(setup.threads)] if setup.threads > 1 else []
    case = Case(WORKERS, setup.numel, "float32", 1.0, "all", "block")
    with Family() as family:
        *_, controller = start_switch(
            family, setup.target, ports, address=ON_WIRES if on_wires else "", switch_options=threads
        )
        ranks = []
        for rank in range(WORKERS):
            environment = rank_environment(controller, rank, WORKERS, transport=setup.transport, backend=setup.backend)
            wire = ["--interface", f"worker{rank}"] if on_wires else []
            ranks.append(family.start(
                f"rank {rank}", "p4reduce_bench.allreduce.rank", "--system", "p4reduce",
                "--cases", json.dumps([asdict(case)]),
                "--repeat", str(repeat), "--warm-up", "1", "--timeout", "100", "--slots", str(setup.slots), *wire,
                environment=environment,
            ))  # fmt: skip
        reports = [event for _, event in family.events(ranks, SILENCE_S)]
    for report in reports:
        if "error" in report:
            raise ChildFailed(report["error"])
        if report["wrong"]:
            raise ChildFailed(f"{report['wrong']} sums of rank {report['rank']} are wrong: {setup}")
    packets = sum(report["traffic"]["packets"] - report["traffic"]["retransmissions"] for report in reports)
    rates = [packets / max(seconds) for seconds in zip(*(report["seconds"] for report in reports), strict=True)]
    return float(statistics.median(rates))


def rows(rates: dict[Setup, list[float]]) -> list[dict[str, object]]:
    """Return the median of the turns; `ratio`: to the first of its group."""
    made: list[dict[str, object]] = []
    first: dict[str, float] = {}
    for setup, found in rates.items():
        median = statistics.median(found)
        figures = {"packets_per_s": median, "min": min(found), "max": max(found)}
        made.append({**asdict(setup), **figures, "ratio": median / first.setdefault(setup.group, median)})
    return made


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m p4reduce_bench.parts.packets", description=__doc__.splitlines()[0])
    parser.add_argument("--groups", nargs="+", choices=["transports", "targets"], default=["transports", "targets"])
    parser.add_argument("--turns", type=int, default=3, help="turns; each runs all setups")
    parser.add_argument("--repeat", type=int, default=5, help="allreduces of each setup in a turn")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not os.environ.get(INSIDE):
        if os.geteuid() != 0 or shutil.which("unshare") is None:
            sys.exit("needs root and unshare (util-linux), to make network interfaces")
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "--net", sys.executable, "-m", "p4reduce_bench.parts.packets", *sys.argv[1:]])
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
    table = Table(title=f"packets a second, {WORKERS} workers, full packets")
    for name in ("", "packets/s", "min", "max", "ratio"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    group = ""
    for setup, row in zip(setups, results, strict=True):
        if setup.group != group:
            table.add_section()
            group = setup.group
        table.add_row(str(setup), *(f"{row[name]:,.0f}" for name in ("packets_per_s", "min", "max")),
                      f"{row['ratio']:.2f}")  # fmt: skip
    show_table(table, Console())


if __name__ == "__main__":
    main()
