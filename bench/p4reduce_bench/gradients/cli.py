# SPDX-License-Identifier: Apache-2.0
"""The command `p4reduce bench gradients`."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from p4reduce.commands.signals import exit_on_signals
from p4reduce.commands.tables import show
from p4reduce.errors import P4ReduceError
from p4reduce.protocol.constants import MAX_WORKERS
from p4reduce_bench import outputs
from p4reduce_bench.allreduce import grid, links
from p4reduce_bench.allreduce.limit import Memory
from p4reduce_bench.allreduce.measuring import chosen_systems, end, measure_all
from p4reduce_bench.allreduce.systems import Setup
from p4reduce_bench.gradients import models, replay, report
from p4reduce_bench.gradients.layers import groups
from p4reduce_bench.gradients.models import MODELS, SIZES
from p4reduce_bench.gradients.report import Replayed, Training
from p4reduce_bench.gradients.sparsify import SPARSIFIERS
from p4reduce_bench.gradients.training import Plan, train
from p4reduce_bench.processes.children import Family
from p4reduce_bench.processes.endings import command

NO_SYSTEMS = "none"
_TARGETS = ("native", "sim")
_COLUMNS = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())


def gradients(
    wanted: Annotated[
        str | None,
        typer.Option(
            "--models", help=f"Models to train: some of {', '.join(MODELS)}. Default: all whose packages are installed."
        ),
    ] = None,
    size: Annotated[str, typer.Option(help="tiny: for two processor cores; base: as published.")] = "tiny",
    workers: Annotated[int, typer.Option(min=2, max=MAX_WORKERS, help="Number of ranks.")] = 4,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each training.")] = 10,
    record_at: Annotated[
        str | None, typer.Option(help="Steps whose gradients are recorded, as 1,10. Default: the last step.")
    ] = None,
    sparsify: Annotated[str, typer.Option(help=f"What ranks send: some of {','.join(SPARSIFIERS)}.")] = ",".join(
        SPARSIFIERS
    ),
    ratio: Annotated[
        float, typer.Option(help="Share of each bucket that the sparsifiers element and block send.")
    ] = 0.01,
    batch: Annotated[int, typer.Option(min=0, help="Samples for each rank and step. 0: what suits the model.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="Seed of parameters, samples and dropout.")] = 1,
    single: Annotated[bool, typer.Option("--layers", help="Show each parameter instead of kinds of layers.")] = False,
    keep: Annotated[Path | None, typer.Option(help="Folder to keep the recordings in, as MODEL/SPARSIFIER.")] = None,
    again: Annotated[
        Path | None, typer.Option("--replay", help="Folder with recordings to use instead of training.")
    ] = None,
    systems: Annotated[
        str,
        typer.Option(
            help=f"Systems that reduce the gradients: some of {','.join((*grid.ALL_SYSTEMS, grid.OURS['coo']))}; or "
            f"{NO_SYSTEMS}."
        ),
    ] = "p4reduce,gloo",
    link: Annotated[str | None, typer.Option(help="Rate of each worker's link, such as 200mbit: needs root.")] = None,
    target: Annotated[str, typer.Option(help="Target that runs the switch: native or sim.")] = "native",
    slots: Annotated[
        int,
        typer.Option(
            min=0, max=512, help="Slots of the job, which is the number of packets in flight. 0: what suits the target."
        ),
    ] = 0,
    repeat: Annotated[int, typer.Option(min=1, help="Number of measurements of each case.")] = 5,
    warm_up: Annotated[int, typer.Option(min=0, help="Number of reductions before the measurements.")] = 1,
    timeout: Annotated[float, typer.Option(min=1, help="Time limit for one reduction, in seconds.")] = 120.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="File to write all figures to, as JSON.")] = None,
    plot: Annotated[Path | None, typer.Option(help="File to write a plot to.")] = None,
) -> None:
    """Train real architectures on data from installed packages, measure and reduce their gradients.

    ResNet, VGG, BERT and GPT-2 need the extra "gradients" of p4reduce-bench; the recommender needs no extra.
    """
    console = Console()
    exit_on_signals()
    with command(), contextlib.ExitStack() as stack:
        outputs.check(json_file=json_file, plot=plot)
        _accepted("--target", target, _TARGETS)
        _accepted("--size", size, SIZES)
        plan = Plan(workers, steps, _record_at(record_at, steps), ratio, batch, seed)
        if not 0 < ratio <= 1:
            raise P4ReduceError(f"--ratio {ratio:g}: must be above 0 and up to 1")
        kinds = grid.choices("--sparsify", sparsify, SPARSIFIERS)
        rate = grid.bits_per_second(link) if link is not None else None
        _check_folders(keep, again)
        if again is not None and (wanted or record_at):
            raise P4ReduceError(f"--replay {again} with --models or --record-at: all that was recorded is replayed")
        if rate is not None:
            links.enter()
        names = [] if systems == NO_SYSTEMS else chosen_systems(systems, console, (grid.OURS["coo"],))
        chosen = [] if again is not None else _models(wanted, console)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="p4reduce-")))
        if again is not None:
            trainings = _measured(list(replay.kept(again)), single, console)
        else:
            trainings = _train(chosen, size, kinds, plan, keep or folder / "recordings", single, console)
        show(report.layers_table(trainings), console)
        rows: list[Replayed] = []
        memory = None
        if names:
            family = stack.enter_context(Family())
            most = max(one.recorded.workers for one in trainings)
            setup = Setup(target=target, slots=slots, threads=1, repeat=repeat, warm_up=warm_up, timeout=timeout,
                          links=links.Links(family, most, rate) if rate is not None else None)  # fmt: skip
            rows, memory = _replay(trainings, names, setup, rate, folder / "inputs", console)
            show(report.replay_table(rows), console)
        if json_file is not None:
            settings = {"size": size, "ratio": ratio, "batch": batch, "seed": seed, "steps": steps}
            report.write_json(json_file, trainings, rows, {} if again else settings, memory)
        if plot is not None:
            report.plot(plot, trainings, rows)
            console.print(f"plot: {plot}")
    end([one.row for one in rows], console)


def _accepted(option: str, value: str, values: Sequence[str]) -> None:
    """Raise P4ReduceError unless `value` is one of `values`."""
    if value not in values:
        raise P4ReduceError(f"{option} {value}: accepted are {', '.join(values)}")


def _record_at(text: str | None, steps: int) -> list[int]:
    if text is None:
        return [steps]

    def read(part: str) -> int:
        if not 1 <= int(part) <= steps:
            raise ValueError
        return int(part)

    return grid.listed("--record-at", text, read, f"steps from 1 to {steps}")


def _models(wanted: str | None, console: Console) -> list[str]:
    """Those asked for. By default all that can be trained, and why others are left out is said."""
    if wanted is not None:
        names = grid.choices("--models", wanted, MODELS)
        for name in names:
            if reason := models.missing(name):
                raise P4ReduceError(f"--models {name}: {reason}")
        return names
    reasons: dict[str, list[str]] = {}
    for name in MODELS:
        reasons.setdefault(models.missing(name) or "", []).append(name)
    for reason, without in reasons.items():
        if reason:
            console.print(f"without {', '.join(without)}: {reason}", highlight=False, markup=False)
    return reasons[""]


def _check_folders(keep: Path | None, again: Path | None) -> None:
    """Recordings of two trainings in one folder cannot be told apart."""
    if keep is not None and again is not None:
        raise P4ReduceError(f"--keep {keep} with --replay {again}: replayed recordings are not copied")
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise P4ReduceError(f"--keep {keep}: must be an empty folder, or not exist yet")
    if again is not None and not again.is_dir():
        raise P4ReduceError(f"--replay {again}: is not a folder")


def _train(
    chosen: Sequence[str], size: str, kinds: Sequence[str], plan: Plan, folder: Path, single: bool, console: Console
) -> list[Training]:
    """Each model once for each sparsifier, from the same parameters on the same samples."""
    made = []
    with Progress(*_COLUMNS, console=console) as progress:
        bar = progress.add_task("starting", total=len(chosen) * len(kinds) * plan.steps)
        for name in chosen:
            for kind in kinds:
                progress.update(bar, description=f"{name}, {kind}: making the model")
                task = models.make(name, size, plan.seed)
                losses = []
                for step in train(task, kind, plan, folder / name / kind):
                    losses.append(step.loss)
                    progress.update(bar, advance=1, description=f"{name}, {kind}: loss {step.loss:.4f}")
                said = f"{name}, {kind}: loss {losses[0]:.4f} to {losses[-1]:.4f}"
                progress.console.print(said, highlight=False, markup=False)
                recorded = replay.read(folder / name / kind, name, kind)
                progress.update(bar, description=f"{name}, {kind}: measuring")
                made.append(Training(recorded, groups(recorded.found, single=single, step=lambda: None), losses))
    return made


def _measured(found: Sequence[replay.Recorded], single: bool, console: Console) -> list[Training]:
    with Progress(*_COLUMNS, console=console, transient=True) as progress:
        bar = progress.add_task("measuring", total=sum(len(one.found) for one in found))
        return [
            Training(one, groups(one.found, single=single, step=lambda: progress.advance(bar)), []) for one in found
        ]


def _cases(trainings: Sequence[Training], folder: Path) -> Iterator[tuple[Training, int, grid.Case]]:
    """Those of the same number of workers together."""
    for training in sorted(trainings, key=lambda one: one.recorded.workers):
        for iteration, case in replay.cases(training.recorded, folder):
            yield training, iteration, case


def _replay(
    trainings: Sequence[Training], names: Sequence[str], setup: Setup, rate: int | None, folder: Path, console: Console
) -> tuple[list[Replayed], Memory | None]:
    with console.status("rounding gradients, so that sums are exact"):
        prepared = list(_cases(trainings, folder))
    rows, memory = measure_all([case for _, _, case in prepared], names, setup, rate, console)
    made: list[Replayed] = []
    for place, (training, iteration, _) in enumerate(prepared):
        made += report.replayed(training, iteration, rows[place * len(names) : (place + 1) * len(names)])
    return made, memory
