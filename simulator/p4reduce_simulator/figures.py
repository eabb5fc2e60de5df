# SPDX-License-Identifier: Apache-2.0
"""Published figures beside simulated ones: `python -m p4reduce_simulator.figures NAME`.

docs/simulator.md explains the differences. Published values are quoted where a text has them; most are in pictures.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import track

from p4reduce.collectives.plan import Taken
from p4reduce.commands.tables import show
from p4reduce.errors import P4ReduceError
from p4reduce_bench import outputs
from p4reduce_bench.outputs import number
from p4reduce_simulator.network import Link, Network, clos, star
from p4reduce_simulator.peers.algorithms import SYSTEMS
from p4reduce_simulator.peers.comparison import BY_ELEMENTS
from p4reduce_simulator.peers.player import play
from p4reduce_simulator.peers.support import Support
from p4reduce_simulator.plan.gradients import Drawn
from p4reduce_simulator.plan.models import MODELS
from p4reduce_simulator.plan.planning import Setup, smaller_sample, time_of_ours
from p4reduce_simulator.running import simulate
from p4reduce_simulator.workload import Workload

JSON_VERSION = 1
SLOTS = 128
_LEAF = 16  # ranks
GRID_ELEMENTS = 26_214_400
GRID_DENSITIES = (1, 0.8, 0.4, 0.2, 0.1, 0.08, 0.04, 0.02, 0.01)
_OMNIREDUCE = "Fei et al., SIGCOMM 2021"
_GRID = "github.com/sands-lab/omnireduce-experiments: benchmark.py, blocks of 256, random overlap"


@dataclass(frozen=True)
class Case:
    """One row: a network, a tensor, and the systems whose times are compared with `base`'s."""

    label: str
    network: Network
    workload: Workload
    systems: tuple[str, ...]
    base: str = "ring"


@dataclass(frozen=True)
class Row:
    """The times of a case in seconds, by system, the base included."""

    label: str
    base: str
    times: Mapping[str, float]

    def speed_up(self, system: str) -> float:
        return self.times[self.base] / self.times[system]


@dataclass(frozen=True)
class Figure:
    """A published figure or table: its cases, and the published statements, each with the publication that has it."""

    title: str
    cases: Callable[[], Iterator[Case]]
    published: Sequence[tuple[str, str]]


def run(case: Case, seed: int = 0) -> Row:
    """Simulate a case. Hosts have no processor times; p4reduce's time is a line through two samples."""
    ranks = len(case.network.ranks)
    times, support = {}, Support(case.workload, ranks, seed)
    for system in dict.fromkeys((case.base, *case.systems)):
        if system in SYSTEMS:
            times[system] = play(case.network, SYSTEMS[system](support)).time
        elif system == "switchml":
            times[system] = simulate(case.network, case.workload, seed=seed, slots=SLOTS, zeros="sent").times[0]
        else:
            drawn = Drawn(case.label, case.workload.numel, case.workload)
            setup = Setup(case.network, SLOTS, seed=seed)
            layout: Taken = "elements" if system == BY_ELEMENTS else "blocks"
            times[system] = time_of_ours(setup, drawn, smaller_sample(setup, drawn), layout).time
    return Row(case.label, case.base, times)


def _network(ranks: int, link: Link) -> Network:
    """Return one switch, or leaves of 16 ranks whose uplinks are not oversubscribed."""
    if ranks <= 2 * _LEAF:
        return star(ranks, link)
    return clos(ranks, ranks // _LEAF, 1, edge=link, core=replace(link, rate=link.rate * _LEAF))


def _grid() -> Iterator[Case]:
    for rate in (10, 100):
        for ranks in (2, 4, 8):
            for density in GRID_DENSITIES:
                workload = Workload(GRID_ELEMENTS, density, block=256)
                label = f"{rate} Gbit/s, {ranks} workers, density {density:g}"
                yield Case(label, star(ranks, Link(rate=rate * 10**9)), workload, ("omnireduce", "p4reduce"))


def _scaling(elements: int = 1 << 21) -> Iterator[Case]:
    for rate in (10, 100):
        for density in (0.1, 0.01):
            for ranks in (8, 16, 32, 64, 128):
                network = _network(ranks, Link(rate=rate * 10**9))
                label = f"{rate} Gbit/s, density {density:g}, {ranks} workers"
                yield Case(label, network, Workload(elements, density, block=256), ("omnireduce", "p4reduce"))


def _switchml() -> Iterator[Case]:
    for rate in (10, 100):
        for ranks in (2, 4, 8, 16):
            network = star(ranks, Link(rate=rate * 10**9))
            yield Case(f"{rate} Gbit/s, {ranks} workers", network, Workload(1 << 20), ("switchml", "p4reduce"))


def _oktopk() -> Iterator[Case]:
    parameters = MODELS["bert-base"].parameters // 64  # times are proportional from there on
    for ranks in (32, 64, 128, 256):
        workload = Workload(parameters, 0.01, "elements")
        systems = ("agsparse", "gtopk", "sparcml", "oktopk-k", "p4reduce")
        yield Case(f"{ranks} workers", _network(ranks, Link(rate=80 * 10**9)), workload, systems, "halving-doubling")


def _zen() -> Iterator[Case]:
    for rate in (25, 100):
        for ranks in (4, 8, 16):
            for density in (0.05, 0.01):
                network = star(ranks, Link(rate=rate * 10**9))
                label = f"{rate} Gbit/s, {ranks} workers, density {density:g}"
                systems = ("agsparse", "sparcml", "omnireduce", "zen", "p4reduce")
                yield Case(label, network, Workload(1 << 22, density, "elements"), systems)


FIGURES: Mapping[str, Figure] = {
    "omnireduce-grid": Figure(
        "OmniReduce's micro-benchmark: 26,214,400 floats, speed-up over ring",
        _grid,
        [
            ("the grid of workers, densities and rates; its speed-ups are a picture (figure 4)", _GRID),
        ],
    ),
    "omnireduce-scaling": Figure(
        "OmniReduce at 8 to 128 workers: speed-up over ring",
        _scaling,
        [
            (
                "distributed training up to 8.2 times as fast; 1.4 to 2.9 times at 100 Gbit/s",
                f"{_OMNIREDUCE}, abstract",
            ),
            ("the table of trainings was not found as text", _OMNIREDUCE),
        ],
    ),
    "switchml": Figure(
        "SwitchML's dense allreduce: speed-up over ring",
        _switchml,
        [
            ("more than 2 times NCCL with RDMA", "github.com/p4lang/p4app-switchML, README"),
            ("the same performance with any number of workers", "github.com/p4lang/p4app-switchML, README"),
            ("training up to 5.5 times as fast", "Sapio et al., NSDI 2021, abstract"),
        ],
    ),
    "oktopk": Figure(
        "Ok-Topk to 256 workers: BERT's gradient with 1 % non-zeros, speed-up over a dense allreduce",
        _oktopk,
        [
            ("less than 6k words sent by a worker", "Li and Hoefler, PPoPP 2022, abstract"),
            (
                "BERT on 256 GPUs: training 3.29 to 12.95 times as fast as with others",
                "Li and Hoefler, PPoPP 2022, abstract",
            ),
            ("density 0.01", "github.com/Shigangli/Ok-Topk, BERT/bert/*.sh"),
        ],
    ),
    "zen": Figure(
        "Zen's sparse gradients: speed-up over ring",
        _zen,
        [
            ("communication up to 5.09 times as fast as with others", "Wang et al., OSDI 2025, abstract"),
            ("training up to 2.48 times as fast", "Wang et al., OSDI 2025, abstract"),
            ("its table of tensors' densities, overlap and skew was not found as text", "Wang et al., OSDI 2025"),
        ],
    ),
}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, prog="python -m p4reduce_simulator.figures")
    parser.add_argument("name", choices=FIGURES)
    parser.add_argument("--only", default="", help="cases whose names contain this text")
    parser.add_argument("--json", type=Path, metavar="FILE", help="file to write the rows to")
    parser.add_argument("--markdown", action="store_true", help="print a table for a document")
    chosen = parser.parse_args(arguments)
    figure = FIGURES[chosen.name]
    cases = [case for case in figure.cases() if chosen.only in case.label]
    if not cases:
        parser.error(f"--only {chosen.only}: accepted are parts of names such as {next(figure.cases()).label!r}")
    try:
        if chosen.json:
            outputs.check(json_file=chosen.json)
        rows = [run(case) for case in track(cases, "simulating", console=Console(stderr=True), transient=True)]
    except P4ReduceError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        parser.exit(130, "stopped: nothing is left running\n")
    (_print_markdown if chosen.markdown else partial(_print, Console()))(figure, rows)
    if chosen.json:
        found = {"figure": chosen.name, "published": figure.published, "rows": [asdict(row) for row in rows]}
        outputs.write_json(chosen.json, JSON_VERSION, found)


def _cells(row: Row) -> list[str]:
    others = [system for system in row.times if system != row.base]
    return [row.label, number(row.times[row.base], 1e3), *(f"{row.speed_up(system):.2f}" for system in others)]


def _heads(rows: Sequence[Row]) -> list[str]:
    return ["case", f"{rows[0].base} ms", *(system for system in rows[0].times if system != rows[0].base)]


def _print(console: Console, figure: Figure, rows: Sequence[Row]) -> None:
    heads = _heads(rows)
    table = outputs.table(figure.title, heads[:1], heads[1:], "simulated")
    for row in rows:
        table.add_row(*_cells(row))
    show(table, console)
    for statement, source in figure.published:
        console.print(f"published: {statement} ({source})", highlight=False, soft_wrap=True)


def _print_markdown(figure: Figure, rows: Sequence[Row]) -> None:
    heads = _heads(rows)
    print(f"{figure.title}.\n\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for row in rows:
        print(f"| {' | '.join(_cells(row))} |")
    print()
    for statement, source in figure.published:
        print(f"- Published: {statement} ({source}).")


if __name__ == "__main__":
    main()
