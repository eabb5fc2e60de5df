# SPDX-License-Identifier: Apache-2.0
"""The command `p4reduce plan`."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from rich.console import Console
from typer import Argument, Option

from p4reduce.commands.tables import show
from p4reduce.errors import P4ReduceError
from p4reduce.protocol.constants import MAX_WORKERS, PARENT
from p4reduce_bench import outputs
from p4reduce_bench.allreduce import grid
from p4reduce_bench.processes.termination import command
from p4reduce_simulator import texts
from p4reduce_simulator.network import Host, Link, Network, Switch, clos, star
from p4reduce_simulator.peers.algorithms import SYSTEMS
from p4reduce_simulator.peers.comparison import BY_ELEMENTS
from p4reduce_simulator.plan import report
from p4reduce_simulator.plan.gradients import Drawn, Gradients, Recorded
from p4reduce_simulator.plan.models import MODELS
from p4reduce_simulator.plan.planning import Setup
from p4reduce_simulator.plan.planning import plan as make
from p4reduce_simulator.workload import Workload
from p4reduce_targets.native.library import LibraryMissing

JSON_VERSION = 1
ENGINE = "receive=460ns,send=460ns,scan-byte=71ps,element=3ns,index=70ns"
"""Of one engine thread, as docs/benchmarks.md has measured it; element and index as in `collectives.choice`."""
_RANKS_OF_A_LEAF = 16
_MOST_OF_ALL = 128  # workers, up to which all systems are compared


# fmt: off
def plan(
    what: Annotated[str, Argument(metavar="MODEL|ELEMENTS|FILES", help=f"A model ({', '.join(MODELS)}), a number of "
        "elements or a size such as 100MiB, or a folder of recorded gradients.")],
    workers: Annotated[int, Option(min=2, help="Number of ranks, each at a host.")] = 8,
    density: Annotated[float | None, Option(min=0, max=1, help="Share of non-zero blocks, rows or elements; not of "
        "recordings. Default: the model's own, which is 1 for most.")] = None,
    pattern: Annotated[str, Option(help=texts.PATTERN)] = "blocks",
    run: Annotated[int, Option(min=1, help=texts.RUN)] = 16,
    overlap: Annotated[str, Option(help=texts.OVERLAP)] = "random",
    link: Annotated[str, Option(help=f"Properties of links: some of {texts.LINK}.")] = "",
    core: Annotated[str, Option(help="Properties of links between switches. Default: those of --link, with a rate at "
        "which no link is oversubscribed.")] = "",
    switch: Annotated[str, Option(help=f"Delay and processor time of switches: some of {texts.SWITCH}.")] = "",
    leaves: Annotated[int, Option(min=0, help="Number of leaf switches. 0: one switch for all, or a leaf for "
        f"{_RANKS_OF_A_LEAF} ranks.")] = 0,
    spines: Annotated[int | None, Option(min=1, help="Number of spines, if there are leaves. Default: 1.")] = None,
    slots: Annotated[int, Option(min=1, max=32768, help="Slots of the job.")] = 512,
    host: Annotated[str, Option(help=f"Processor time of an engine thread: some of {texts.HOST}.")] = ENGINE,
    threads: Annotated[int, Option(min=1, max=64, help="Engine threads of a rank.")] = 1,
    compute: Annotated[str, Option(help="Computing time of a step, for the speed-up of training.")] = "0s",
    systems: Annotated[str, Option(help=f"Systems to compare with: some of {', '.join((BY_ELEMENTS, *SYSTEMS))}. "
        "Default: all that are exact, up to 128 workers; otherwise ring.")] = "",
    seed: Annotated[int, Option(min=0, help="Equal seeds give equal plans.")] = 0,
    json_file: Annotated[Path | None, Option("--json", help="File to write the plan to, as JSON.")] = None,
    plot: Annotated[Path | None, Option(help="File to write a picture of the times to.")] = None,
) -> None:
    """Say how fast p4reduce would be, compared with other systems, what binds, and what to change."""
    console = Console()
    with command(), tempfile.TemporaryDirectory() as folder:
        outputs.check(json_file=json_file, plot=plot)
        processor = texts.properties("--host", host, Host(), texts.HOST)
        network = replace(
            _network(workers, leaves, spines, link, core),
            host=processor.with_threads(threads),
            switch=texts.properties("--switch", switch, Switch(), texts.SWITCH),
        )
        seconds = texts.seconds("--compute", compute)
        named = grid.choices("--systems", systems, (BY_ELEMENTS, *SYSTEMS)) if systems else _usual(workers)
        try:
            network.trees  # noqa: B018 - raises ValueError for a network that cannot add up
            workload = texts.workload(
                density=1.0 if density is None else density, pattern=pattern, run=run, overlap=overlap)
            if density is None and workload != Workload():
                raise P4ReduceError("--pattern, --run and --overlap: accepted with --density")
            gradients = _gradients(what, workers, None if density is None else workload, Path(folder))
            if not systems and workers <= _MOST_OF_ALL and gradients.is_scattered():
                named.insert(0, BY_ELEMENTS)
            with outputs.progress(Console(stderr=True), transient=True) as progress:
                task = progress.add_task("simulating", total=len(named) + 6)
                made = make(Setup(network, slots, seed=seed), gradients, named,
                            lambda name: progress.update(task, advance=1, description=f"simulated: {name}"))
        except (LibraryMissing, TimeoutError, ValueError, MemoryError) as error:
            raise P4ReduceError(str(error)) from None
        show(report.systems(made, seconds), console)
        show(report.changes(made), console)
        for sentence in report.sentences(made):
            console.print(sentence, highlight=False, soft_wrap=True)
        if json_file:
            found = {"network": asdict(network), "slots": slots, "plan": made.as_json()}
            outputs.write_json(json_file, JSON_VERSION, found)
        if plot:
            report.plot(plot, made)
# fmt: on


def _usual(workers: int) -> list[str]:
    if workers > _MOST_OF_ALL:
        return ["ring"]
    doubling = workers & (workers - 1) == 0
    return ["ring", *(["halving-doubling", "sparcml"] if doubling else []), "oktopk", "zen", "omnireduce"]


def _gradients(what: str, workers: int, workload: Workload | None, folder: Path) -> Gradients:
    """Return the gradients; with the zeros of `workload`, or with the model's own."""
    if what in MODELS:
        return Drawn(what, MODELS[what].parameters, workload or MODELS[what].workload)
    if Path(what).exists():
        return Recorded.read(Path(what), workers, folder)
    try:
        numel = grid.elements(what, "float32")
        return Drawn("a gradient", texts.workload(numel=numel).numel, workload or Workload())
    except P4ReduceError:
        raise P4ReduceError(
            f"{what}: accepted are {', '.join(MODELS)}, a number of elements from 1 on, a size such as 100MiB, and a "
            "folder"
        ) from None


def _network(workers: int, leaves: int, spines: int | None, link: str, core: str) -> Network:
    edge = texts.properties("--link", link, Link(), texts.LINK)
    if not leaves and workers <= MAX_WORKERS:
        for option, value in (("spines", spines), ("core", core)):
            if value:
                raise P4ReduceError(f"--{option} {value}: accepted with --leaves, or more than {MAX_WORKERS} workers")
        return star(workers, edge)
    spines = spines or 1
    leaves = leaves or -(-workers // _RANKS_OF_A_LEAF)
    rate = -(-edge.rate * -(-workers // leaves) // spines)
    between = texts.properties("--core", core, replace(edge, rate=rate), texts.LINK)
    pods = 0 if leaves <= MAX_WORKERS else next(
        (count for count in range(2, leaves) if leaves % count == 0 and leaves // count <= PARENT), 0
    )  # fmt: skip
    try:
        return clos(workers, leaves, spines, pods, edge, between)
    except ValueError as error:
        raise P4ReduceError(str(error)) from None
