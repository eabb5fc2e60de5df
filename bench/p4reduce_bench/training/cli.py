# SPDX-License-Identifier: Apache-2.0
"""The command `p4reduce bench train`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from rich.console import Console
from typer import Option

from p4reduce.commands.signals import exit_on_signals
from p4reduce.commands.tables import show
from p4reduce.errors import P4ReduceError
from p4reduce.protocol.constants import DEFAULT_BLOCK_SIZE, MAX_WORKERS
from p4reduce_bench import outputs, recordings
from p4reduce_bench.allreduce import grid, links
from p4reduce_bench.allreduce.systems import Setup
from p4reduce_bench.analyze.analysis import Analysis, analyze
from p4reduce_bench.gradients.packages import need
from p4reduce_bench.gradients.plan import missing
from p4reduce_bench.options import TARGETS, JsonFile, Link, Plot, Slots, Target
from p4reduce_bench.processes.children import ChildProcesses
from p4reduce_bench.processes.termination import command
from p4reduce_bench.training import curves, report, trainings
from p4reduce_bench.training.trainings import LOSSES_SEEDS, LOSSES_STEPS, MODELS, REAL, STEPS, Run, Training

_LOSSES = (
    f"Change the defaults to those for comparing losses: all systems except noop, {LOSSES_STEPS} steps, {LOSSES_SEEDS} "
    "seeds."
)


# fmt: off
def train(
    model: Annotated[str, Option(
        help=f"Models to train: some of {', '.join((*MODELS, *REAL))}. Default: the first 5.")] = ",".join(MODELS),
    systems: Annotated[str | None, Option(help=f"Systems to train with: some of {', '.join(trainings.HOOKS)}. "
        f"Default: the first {trainings.QUICK}.")] = None,
    workers: Annotated[int, Option(min=2, max=MAX_WORKERS, help="Number of workers.")] = 2,
    steps: Annotated[int | None, Option(min=2, help=f"Steps of each training. Default: {STEPS}.")] = None,
    warm_up: Annotated[int, Option(min=0, help="Steps at the start that are not timed.")] = 2,
    repeat: Annotated[int | None, Option(
        min=1, help="Trainings of each model and system, with seeds 1, 2, ... Default: 1.")] = None,
    losses: Annotated[bool, Option("--losses", help=_LOSSES)] = False,
    ratio: Annotated[float, Option(
        help="Share of blocks or elements that p4reduce-topk, p4reduce-element-topk, oktopk send.")] = 0.01,
    start_iteration: Annotated[int, Option(
        min=0, help="Steps at the start in which the systems of --ratio and p4reduce-int8 send everything unchanged."
        )] = 0,
    evaluations: Annotated[int, Option(
        min=1, help="Number of evaluations of the loss on held-out samples: at the end, at half of the steps, ..."
        )] = 5,
    link: Link = None,
    target: Target = "native",
    slots: Slots = 0,
    timeout: Annotated[float, Option(min=1, help="Time limit for one step, in seconds.")] = 120.0,
    json_file: JsonFile = None,
    plot: Plot = None,
) -> None:
    # fmt: on
    """Train small models in the shape of OmniReduce's with DDP, on synthetic data: throughput, loss and sparsity.

    resnet18, vgg11 and gpt2 are real architectures, on data from installed packages, and need the extra "gradients" of
    p4reduce-bench.

    The same seed gives the same parameters and batches to all systems, so that losses are compared in pairs.
    """
    need("torch")
    console = Console()
    exit_on_signals()
    with command():
        outputs.check(json_file=json_file, plot=plot)
        grid.one_of("--target", target, TARGETS)
        names = trainings.systems(losses) if systems is None else grid.choices("--systems", systems, trainings.HOOKS)
        steps = steps or (LOSSES_STEPS if losses else STEPS)
        repeat = repeat or (LOSSES_SEEDS if losses else 1)
        if warm_up >= steps:
            raise P4ReduceError(f"--warm-up {warm_up}: must be less than --steps {steps}")
        grid.check_ratio(ratio)
        models = grid.choices("--model", model, (*MODELS, *REAL))
        for name in set(models) & set(REAL):
            if reason := missing(name):
                raise P4ReduceError(f"--model {name}: {reason}")
        runs = trainings.plan(models, names, range(1, repeat + 1))
        rate = links.enter(link)  # goes into a private network, in which all children must start
        with ChildProcesses() as processes, tempfile.TemporaryDirectory(prefix="p4reduce-") as folder:
            made = links.Links(processes, workers, rate) if rate is not None else None
            setup = Setup(target=target, slots=slots, threads=1, repeat=repeat, warm_up=warm_up, timeout=timeout,
                          links=made)  # fmt: skip
            training = Training(workers, steps, warm_up, ratio, start_iteration, evaluations, Path(folder))
            rows = _train(runs, training, setup, rate, console)
            analyses = {run.model: _analysis(Path(folder) / run.model, rate) for run in runs if run.recorded}
        show(report.table(rows), console)
        show(curves.table(rows), console)
        if analyses:
            show(report.sparsity_table(analyses), console)
        if json_file is not None:
            report.write_json(json_file, rows, analyses)
        if plot is not None:
            curves.plot(plot, rows)
            console.print(f"plot: {plot}")


def _train(
    runs: Sequence[Run], training: Training, setup: Setup, rate: int | None, console: Console
) -> list[report.Row]:
    rows = []
    with outputs.progress(console) as progress:
        bar = progress.add_task("starting", total=len(runs) * training.steps)
        for event in trainings.train(runs, training, setup):
            if isinstance(event, trainings.Step):
                progress.update(bar, advance=1, description=f"{event.run}: loss {event.loss:.4f}")
                continue
            row = report.row(event.run, event.figures, training, setup.target, rate)
            rows.append(row)
            loss = "" if row.final_loss is None else f", held-out loss {row.final_loss:.5f}"
            progress.console.print(f"{event.run}: {row.steps_per_s:.3g} steps/s{loss}", highlight=False, markup=False)
    return rows


def _analysis(folder: Path, rate: int | None) -> Analysis:
    found, sizes = recordings.find([folder]), [1, DEFAULT_BLOCK_SIZE]
    return analyze(found, workers=None, block_sizes=sizes, bits_per_second=rate or 10**9, step=lambda: None)
