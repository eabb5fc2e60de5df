# SPDX-License-Identifier: Apache-2.0
"""Published figures beside simulated ones: `python -m p4reduce_simulator.figures NAME`.

docs/simulator.md explains the differences. Published values are those of texts, or were read from pictures in the
repositories of artifacts: times to 0.1 ms (OmniReduce) and rates to 0.5 % (SwitchML).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import track

from p4reduce.commands.tables import show
from p4reduce.errors import P4ReduceError
from p4reduce_bench import outputs
from p4reduce_bench.outputs import number
from p4reduce_simulator.network import Link, Network, clos, star
from p4reduce_simulator.peers.comparison import BY_ELEMENTS
from p4reduce_simulator.plan.gradients import Drawn
from p4reduce_simulator.plan.models import MODELS
from p4reduce_simulator.plan.planning import Setup, smaller_sample, time_of, time_of_ours
from p4reduce_simulator.running import simulate
from p4reduce_simulator.workload import Workload

JSON_VERSION = 1
SLOTS = 128
_LEAF = 16  # ranks
GRID_ELEMENTS = 26_214_400
GRID_DENSITIES = (1, 0.8, 0.4, 0.2, 0.1, 0.08, 0.04, 0.02, 0.01)
_OMNIREDUCE = "Fei et al., SIGCOMM 2021"
_ARTIFACT = "github.com/sands-lab/omnireduce-experiments"
_GRID = f"{_ARTIFACT}: benchmark.py, blocks of 256, random overlap"
_NCCL_MS = {2: 10.4, 4: 14.8, 8: 17.2}
_GRID_MS: Mapping[int, Mapping[float, float]] = {
    2: {1: 15.3, 0.4: 9.1, 0.1: 4.0, 0.01: 2.0},
    4: {1: 16.0, 0.4: 11.4, 0.1: 5.6, 0.01: 2.6},
    8: {1: 15.6, 0.8: 14.4, 0.4: 12.3, 0.2: 10.5, 0.1: 7.8, 0.08: 7.1, 0.04: 5.1, 0.02: 3.8, 0.01: 3.1},
}
"""OmniReduce's medians in ms at 100 Gbit/s, by workers and density, in pictures of the artifact's notebook."""
_TRAINING = {"deeplight": 3.1, "lstm": 1.1, "bert-large": 0.9, "resnet152": 1.0, "vgg19": 1.1}
_SPARSE = ("agsparse", "sparcml", "omnireduce", "zen", "p4reduce", BY_ELEMENTS)
_SWITCHML = {4: 2833 / 1378, 8: 2822 / 1244, 16: 2811 / 967}
"""SwitchML's rate over NCCL's, both with RDMA, by workers."""


@dataclass(frozen=True)
class Case:
    """One row: a network, a tensor, and the systems whose times are compared with `base`'s.

    published: the speed-up of the first system that was published; None if none was found.
    """

    label: str
    network: Network
    workload: Workload
    systems: tuple[str, ...]
    base: str = "ring"
    published: float | None = None


@dataclass(frozen=True)
class Row:
    """The times of a case in seconds, by system, the base included."""

    label: str
    base: str
    times: Mapping[str, float]
    published: float | None = None

    def speed_up(self, system: str) -> float:
        return self.times[self.base] / self.times[system]


@dataclass(frozen=True)
class Figure:
    """A published figure or table: its cases, and the published statements, each with the publication that has it."""

    title: str
    cases: Callable[[], Iterator[Case]]
    published: Sequence[tuple[str, str]]


def run(case: Case, seed: int = 0) -> Row:
    """Simulate a case. Hosts have no processor times. Times of large tensors are lines through two samples."""
    drawn, setup = Drawn(case.label, case.workload.numel, case.workload), Setup(case.network, SLOTS, seed=seed)
    small, times = smaller_sample(setup, drawn), {}
    for system in dict.fromkeys((case.base, *case.systems)):
        if system == "p4reduce":
            times[system] = time_of_ours(setup, drawn, small).time
        elif system == "switchml":
            times[system] = simulate(case.network, case.workload, seed=seed, slots=SLOTS, zeros="sent").times[0]
        else:
            times[system] = time_of(system, setup, drawn, small).time
    return Row(case.label, case.base, times, case.published)


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
                network, systems = star(ranks, Link(rate=rate * 10**9)), ("omnireduce", "p4reduce")
                theirs = _GRID_MS[ranks].get(density) if rate == 100 else None
                published = theirs and _NCCL_MS[ranks] / theirs
                yield Case(label, network, workload, systems, published=published)


def _scaling(elements: int = 1 << 21) -> Iterator[Case]:
    for rate in (10, 100):
        for density in (0.1, 0.01):
            for ranks in (8, 16, 32, 64, 128):
                network = _network(ranks, Link(rate=rate * 10**9))
                label = f"{rate} Gbit/s, density {density:g}, {ranks} workers"
                yield Case(label, network, Workload(elements, density, block=256), ("omnireduce", "p4reduce"))


def _training() -> Iterator[Case]:
    for rate in (10, 100):
        for ranks in (8, 32, 128):
            for name, published in _TRAINING.items():
                model = MODELS[name]
                if ranks > 8 and model.workload.density == 1:
                    continue
                yield Case(
                    f"{rate} Gbit/s, {ranks} workers, {name}", _network(ranks, Link(rate=rate * 10**9)),
                    replace(model.workload, numel=model.parameters), ("omnireduce", "p4reduce"),
                    published=published if (rate, ranks) == (100, 8) else None,
                )  # fmt: skip


def _switchml() -> Iterator[Case]:
    for rate in (10, 100):
        for ranks in (2, 4, 8, 16):
            network, systems = star(ranks, Link(rate=rate * 10**9)), ("switchml", "p4reduce")
            published = _SWITCHML.get(ranks) if rate == 100 else None
            yield Case(f"{rate} Gbit/s, {ranks} workers", network, Workload(1 << 20), systems, published=published)


def _oktopk() -> Iterator[Case]:
    parameters = MODELS["bert-base"].parameters // 64  # times are proportional from there on
    for ranks in (32, 64, 128, 256):
        workload = Workload(parameters, 0.01, "elements")
        systems = ("agsparse", "gtopk", "sparcml", "oktopk-k", "p4reduce", BY_ELEMENTS)
        yield Case(f"{ranks} workers", _network(ranks, Link(rate=80 * 10**9)), workload, systems, "halving-doubling")


def _zen() -> Iterator[Case]:
    for rate in (25, 100):
        for ranks in (4, 8, 16):
            for density in (0.05, 0.01):
                network = star(ranks, Link(rate=rate * 10**9))
                label = f"{rate} Gbit/s, {ranks} workers, density {density:g}"
                yield Case(label, network, Workload(1 << 22, density, "elements"), _SPARSE)
        for name in ("deeplight", "lstm"):  # with the overlap of 8 workers
            workload = replace(MODELS[name].workload, numel=MODELS[name].parameters)
            yield Case(f"{rate} Gbit/s, 8 workers, {name}", star(8, Link(rate=rate * 10**9)), workload, _SPARSE)


FIGURES: Mapping[str, Figure] = {
    "omnireduce-grid": Figure(
        "OmniReduce's micro-benchmark: 26,214,400 floats, speed-up over ring",
        _grid,
        [
            ("the grid of workers, densities and rates", _GRID),
            (
                "times at 100 Gbit/s, of NCCL and OmniReduce with GPUDirect",
                f"{_ARTIFACT}: notebook/benckmark-rdma.ipynb, figures 4 and 5",
            ),
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
        ],
    ),
    "omnireduce-training": Figure(
        "OmniReduce's trained models: one allreduce of the gradient, speed-up over ring; published: of the training",
        _training,
        [
            (
                "with 8 workers at 100 Gbit/s, training 3.1 (DeepLight), 1.1 (LSTM), 1.7 (NCF), 0.9 (BERT), 1.0 "
                "(ResNet152) and 1.1 times as fast (VGG19) as with NCCL",
                f"{_ARTIFACT}: notebook/e2e-rdma.ipynb",
            ),
            (
                "with DPDK and 8 workers, 4.6, 3.0, 2.5, 1.9, 1.2 and 1.6 times as fast as with NCCL over TCP",
                f"{_ARTIFACT}: notebook/e2e-dpdk.ipynb",
            ),
            (
                "layers of DeepLight and LSTM, and test data, from which the rows that are not zero were counted",
                f"{_ARTIFACT}: models",
            ),
            ("the table of 8 to 128 workers was not found", _OMNIREDUCE),
        ],
    ),
    "switchml": Figure(
        "SwitchML's dense allreduce: speed-up over ring",
        _switchml,
        [
            ("more than 2 times NCCL with RDMA", "github.com/p4lang/p4app-switchML, README"),
            ("the same performance with any number of workers", "github.com/p4lang/p4app-switchML, README"),
            (
                "2,833, 2,822 and 2,811 million elements a second with 4, 8 and 16 workers; NCCL 1,378, 1,244 and 967",
                "github.com/p4lang/p4app-switchML, docs/img/benchmark.png",
            ),
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
            ("its table of tensors' densities, overlap and skew was not found", "Wang et al., OSDI 2025"),
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


def _cells(row: Row, *, with_published: bool) -> list[str]:
    speed_ups = [f"{row.speed_up(system):.2f}" for system in row.times if system != row.base]
    published = "-" if row.published is None else f"{row.published:.2f}"
    return [row.label, number(row.times[row.base], 1e3), *speed_ups, *([published] if with_published else [])]


def _heads(rows: Sequence[Row]) -> list[str]:
    others = [system for system in rows[0].times if system != rows[0].base]
    return ["case", f"{rows[0].base} ms", *others, *([f"{others[0]}, published"] if _has_published(rows) else [])]


def _has_published(rows: Sequence[Row]) -> bool:
    return any(row.published is not None for row in rows)


def _print(console: Console, figure: Figure, rows: Sequence[Row]) -> None:
    heads = _heads(rows)
    table = outputs.table(figure.title, heads[:1], heads[1:], "simulated")
    for row in rows:
        table.add_row(*_cells(row, with_published=_has_published(rows)))
    show(table, console)
    for statement, source in figure.published:
        console.print(f"published: {statement} ({source})", highlight=False, soft_wrap=True)


def _print_markdown(figure: Figure, rows: Sequence[Row]) -> None:
    heads = _heads(rows)
    print(f"{figure.title}.\n\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for row in rows:
        print(f"| {' | '.join(_cells(row, with_published=_has_published(rows)))} |")
    print()
    for statement, source in figure.published:
        print(f"- Published: {statement} ({source}).")


if __name__ == "__main__":
    main()
