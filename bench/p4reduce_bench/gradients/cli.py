# SPDX-License-Identifier: Apache-2.0
"""The command `p4reduce bench gradients`."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

from rich.console import Console
from typer import Option

from p4reduce.commands.signals import exit_on_signals
from p4reduce.commands.tables import show
from p4reduce.errors import P4ReduceError
from p4reduce.protocol.constants import MAX_WORKERS
from p4reduce_bench import outputs
from p4reduce_bench.allreduce import grid, links
from p4reduce_bench.allreduce.limit import Memory
from p4reduce_bench.allreduce.measuring import chosen_systems, end, measure_all
from p4reduce_bench.allreduce.systems import Setup
from p4reduce_bench.gradients import replay, report
from p4reduce_bench.gradients.layers import groups
from p4reduce_bench.gradients.plan import MODELS, SIZES, SPARSIFIERS, Plan, missing
from p4reduce_bench.gradients.report import Replayed, Training
from p4reduce_bench.options import TARGETS, JsonFile, Link, Plot, Repeat, Slots, Target, Timeout, WarmUp
from p4reduce_bench.processes.children import ChildProcesses
from p4reduce_bench.processes.termination import command

NO_SYSTEMS = "none"


# fmt: off
def gradients(
    wanted: Annotated[str | None, Option("--models",
        help=f"Models to train: some of {', '.join(MODELS)}. Default: all whose packages are installed.")] = None,
    size: Annotated[str, Option(help="tiny: for two processor cores; base: as published.")] = "tiny",
    workers: Annotated[int, Option(min=2, max=MAX_WORKERS, help="Number of ranks.")] = 4,
    steps: Annotated[int, Option(min=1, help="Steps of each training.")] = 10,
    record_at: Annotated[str | None, Option(
        help="Steps whose gradients are recorded, as 1,10. Default: the last step.")] = None,
    sparsify: Annotated[str, Option(
        help=f"What ranks send: some of {','.join(SPARSIFIERS)}.")] = ",".join(SPARSIFIERS),
    ratio: Annotated[float, Option(help="Share of each bucket that the sparsifiers element and block send.")] = 0.01,
    batch: Annotated[int, Option(min=0, help="Samples for each rank and step. 0: what suits the model.")] = 0,
    seed: Annotated[int, Option(min=0, help="Seed of parameters, samples and dropout.")] = 1,
    single: Annotated[bool, Option("--layers", help="Show each parameter instead of kinds of layers.")] = False,
    keep: Annotated[Path | None, Option(help="Folder to keep the recordings in, as MODEL/SPARSIFIER.")] = None,
    again: Annotated[Path | None, Option(
        "--replay", help="Folder with recordings to use instead of training.")] = None,
    systems: Annotated[str, Option(help="Systems that reduce the gradients: some of "
        f"{','.join((*grid.ALL_SYSTEMS, grid.OURS['coo']))}; or {NO_SYSTEMS}.")] = "p4reduce,gloo",
    link: Link = None,
    target: Target = "native",
    slots: Slots = 0,
    repeat: Repeat = 5,
    warm_up: WarmUp = 1,
    timeout: Timeout = 120.0,
    json_file: JsonFile = None,
    plot: Plot = None,
) -> None:
    # fmt: on
    """Train real architectures on data from installed packages, measure and reduce their gradients.

    ResNet, VGG, BERT and GPT-2 need the extra "gradients" of p4reduce-bench; the recommender needs no extra.
    """
    console = Console()
    exit_on_signals()
    with command(), contextlib.ExitStack() as stack:
        outputs.check(json_file=json_file, plot=plot)
        grid.one_of("--target", target, TARGETS)
        grid.one_of("--size", size, SIZES)
        plan = Plan(workers, steps, _record_at(record_at, steps), ratio, batch, seed)
        grid.check_ratio(ratio)
        kinds = grid.choices("--sparsify", sparsify, SPARSIFIERS)
        _check_folders(keep, again)
        if again is not None and (wanted or record_at):
            raise P4ReduceError(f"--replay {again} with --models or --record-at: all that was recorded is replayed")
        rate = links.enter(link)
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
            processes = stack.enter_context(ChildProcesses())
            most = max(one.recorded.workers for one in trainings)
            setup = Setup(target=target, slots=slots, threads=1, repeat=repeat, warm_up=warm_up, timeout=timeout,
                          links=links.Links(processes, most, rate) if rate is not None else None)  # fmt: skip
            rows, memory = _replay(trainings, names, setup, rate, folder / "inputs", console)
            show(report.replay_table(rows), console)
        if json_file is not None:
            settings = {"size": size, "ratio": ratio, "batch": batch, "seed": seed, "steps": steps}
            report.write_json(json_file, trainings, rows, {} if again else settings, memory)
        if plot is not None:
            report.plot(plot, trainings, rows)
            console.print(f"plot: {plot}")
    end([one.row for one in rows], console)


def _record_at(text: str | None, steps: int) -> list[int]:
    if text is None:
        return [steps]

    def read(part: str) -> int:
        if not 1 <= int(part) <= steps:
            raise ValueError
        return int(part)

    return grid.listed("--record-at", text, read, f"steps from 1 to {steps}")


def _models(wanted: str | None, console: Console) -> list[str]:
    """Return the models of the option, by default all whose packages are installed; print why others are left out."""
    if wanted is not None:
        names = grid.choices("--models", wanted, MODELS)
        for name in names:
            if reason := missing(name):
                raise P4ReduceError(f"--models {name}: {reason}")
        return names
    reasons: dict[str, list[str]] = {}
    for name in MODELS:
        reasons.setdefault(missing(name) or "", []).append(name)
    for reason, without in reasons.items():
        if reason:
            console.print(f"without {', '.join(without)}: {reason}", highlight=False, markup=False)
    return reasons[""]


def _check_folders(keep: Path | None, again: Path | None) -> None:
    """Raise P4ReduceError for folders that cannot be used; two trainings in one folder could not be told apart."""
    if keep is not None and again is not None:
        raise P4ReduceError(f"--keep {keep} with --replay {again}: replayed recordings are not copied")
    if keep is not None and keep.exists() and (not keep.is_dir() or any(keep.iterdir())):
        raise P4ReduceError(f"--keep {keep}: must be an empty folder, or not exist yet")
    if again is not None and not again.is_dir():
        raise P4ReduceError(f"--replay {again}: is not a folder")


def _train(
    chosen: Sequence[str], size: str, kinds: Sequence[str], plan: Plan, folder: Path, single: bool, console: Console
) -> list[Training]:
    """Train each model with each sparsifier, from the same parameters on the same samples."""
    from p4reduce_bench.gradients import models
    from p4reduce_bench.gradients.training import train

    made = []
    with outputs.progress(console) as progress:
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
    with outputs.progress(console, transient=True) as progress:
        bar = progress.add_task("measuring", total=sum(len(one.found) for one in found))
        return [
            Training(one, groups(one.found, single=single, step=lambda: progress.advance(bar)), []) for one in found
        ]


def _cases(trainings: Sequence[Training], folder: Path) -> Iterator[tuple[Training, int, grid.Case]]:
    """Yield each training with its iterations and cases, ordered by number of workers."""
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
    for index, (training, iteration, _) in enumerate(prepared):
        made += report.replayed(training, iteration, rows[index * len(names) : (index + 1) * len(names)])
    return made, memory
