# SPDX-License-Identifier: Apache-2.0
"""The command `p4reduce bench`."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from p4reduce.commands.signals import exit_on_signals
from p4reduce.commands.tables import show as show_table
from p4reduce.errors import P4ReduceError
from p4reduce.protocol.constants import DEFAULT_BLOCK_SIZE, MAX_AGGREGATORS, MAX_RANKS, MAX_WORKERS
from p4reduce.tensors.spec import WIRE_CHOICES, WireChoice
from p4reduce_bench import outputs
from p4reduce_bench.allreduce import grid, links, report
from p4reduce_bench.allreduce.measuring import chosen_systems, end, measure_all
from p4reduce_bench.allreduce.systems import Setup, check_local, rank_threads
from p4reduce_bench.analyze import recordings
from p4reduce_bench.analyze.analysis import Analysis, analyze
from p4reduce_bench.gradients.cli import gradients
from p4reduce_bench.gradients.models import missing
from p4reduce_bench.processes import network
from p4reduce_bench.processes.children import Family
from p4reduce_bench.processes.endings import command
from p4reduce_bench.processes.switches import check_aggregators
from p4reduce_bench.training import curves, trainings
from p4reduce_bench.training import plot as train_plot
from p4reduce_bench.training import report as train_report
from p4reduce_controller.p4runtime.builds import DEFAULT_MTU, LARGEST_BUILD, LEAST_MTU, MOST_MTU

# Options of both commands.
Link = Annotated[str | None, typer.Option(help="Rate of each worker's link, such as 200mbit: needs root.")]
Slots = Annotated[
    int,
    typer.Option(
        min=0, max=512, help="Slots of the job, which is the number of packets in flight. 0: what suits the target."
    ),
]
JsonFile = Annotated[Path | None, typer.Option("--json", help="File to write all rows to, as JSON.")]
Plot = Annotated[Path | None, typer.Option(help="File to write a plot to.")]

bench = typer.Typer(
    help="Measure p4reduce and other libraries.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@bench.callback()
def root() -> None:
    """Measure p4reduce and other libraries, on the same inputs and the same links."""


@bench.command()
def allreduce(
    target: Annotated[
        str, typer.Option(help="Target that runs the switch: native, sim or bmv2 (needs root).")
    ] = "native",
    systems: Annotated[
        str | None,
        typer.Option(
            help=f"Systems to measure: some of {', '.join(grid.ALL_SYSTEMS)}. Default: those of the first "
            f"{len(grid.SYSTEMS)} that are installed, and with --local auto those of the first "
            f"{len(grid.SYSTEMS) + len(grid.SHARED_MEMORY)}."
        ),
    ] = None,
    workers: Annotated[str, typer.Option(help="Numbers of workers, separated by commas.")] = "2,4,8",
    numel: Annotated[str, typer.Option(help="Numbers of elements, or sizes such as 25MiB.")] = "26214400",
    dtype: Annotated[str, typer.Option(help=f"Data type: one of {', '.join(grid.DTYPES)}.")] = "float32",
    wire: Annotated[
        str, typer.Option(help=f"Integers that stand for floats in packets: {', '.join(WIRE_CHOICES)}.")
    ] = "auto",
    density: Annotated[str, typer.Option(help="Shares of blocks or elements that are non-zero.")] = grid.DENSITIES,
    overlap: Annotated[
        str, typer.Option(help=f"Overlaps of the workers' non-zero blocks: some of {','.join(grid.OVERLAPS)}.")
    ] = "random,all,none",
    sparsity: Annotated[
        str, typer.Option(help=f"What is zero as a whole: some of {','.join(grid.SPARSITIES)}.")
    ] = "block,element",
    given: Annotated[
        str, typer.Option("--input", help=f"Kinds of tensors that p4reduce gets: some of {','.join(grid.OURS)}.")
    ] = "dense",
    link: Link = None,
    ranks_per_host: Annotated[
        int,
        typer.Option(
            min=1,
            max=MAX_RANKS,
            help="Number of workers that share a host and its link. Needs --link, and --workers that are multiples of "
            "it.",
        ),
    ] = 1,
    repeat: Annotated[int, typer.Option(min=1, help="Number of measurements of each case.")] = 5,
    warm_up: Annotated[int, typer.Option(min=0, help="Number of reductions before the measurements.")] = 1,
    calls: Annotated[
        int, typer.Option(min=1, help="Calls in a row that each measurement takes the average of: for small tensors.")
    ] = 1,
    slots: Slots = 0,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the native switch.")] = 1,
    aggregators: Annotated[
        int, typer.Option(min=1, max=MAX_AGGREGATORS, help="Number of switches that share the slots (native or sim).")
    ] = 1,
    local: Annotated[
        str | None,
        typer.Option(
            help="auto: ranks of one host reduce in its memory and send as one worker. off: each rank sends. Default: "
            "auto with --ranks-per-host, otherwise off."
        ),
    ] = None,
    mtu: Annotated[
        int,
        typer.Option(
            min=LEAST_MTU, max=MOST_MTU, help=f"MTU of the links; from {LARGEST_BUILD} on, packets are larger."
        ),
    ] = DEFAULT_MTU,
    timeout: Annotated[float, typer.Option(min=1, help="Time limit for one reduction, in seconds.")] = 120.0,
    json_file: JsonFile = None,
    plot: Plot = None,
) -> None:
    """Time allreduce on the grid of OmniReduce's artifact, and compare every result with the exact sum."""
    console = Console()
    exit_on_signals()
    with command():
        outputs.check(json_file=json_file, plot=plot)
        if target not in grid.TARGETS:
            raise P4ReduceError(f"--target {target}: accepted are {', '.join(grid.TARGETS)}")
        if dtype not in grid.DTYPES:
            raise P4ReduceError(f"--dtype {dtype}: accepted are {', '.join(grid.DTYPES)}")
        if link is not None and target == "bmv2":
            raise P4ReduceError("--link with --target bmv2: BMv2 is slower than any link; accepted are native and sim")
        check_aggregators(target, aggregators)
        if ranks_per_host > 1 and link is None:
            raise P4ReduceError(f"--ranks-per-host {ranks_per_host} needs --link: only hosts with links are emulated")
        shared = ranks_per_host > 1
        local = local or ("auto" if shared else "off")
        check_local(local, given, linked=link is not None, shared=shared)
        rate = grid.bits_per_second(link) if link is not None else None
        if rate is not None:
            links.enter()
        if dtype == "int32" and wire != "auto":
            raise P4ReduceError(f"--wire {wire} with --dtype int32, which travels as it is: accepted is auto")
        inputs = grid.choices("--input", given, grid.OURS)
        in_memory = local == "auto" and not shared
        usual = (*grid.SYSTEMS, *grid.SHARED_MEMORY) if in_memory else grid.SYSTEMS
        names = chosen_systems(systems, console, usual=usual)
        if "p4reduce" in names:
            here = names.index("p4reduce")
            names[here : here + 1] = [grid.OURS[kind] for kind in inputs]
        elif given != "dense":
            raise P4ReduceError(f"--input {given} needs p4reduce among --systems: it says which tensors p4reduce gets")
        cases = grid.grid(
            workers=_numbers_of_workers(workers, ranks_per_host),
            numels=[grid.elements(part, dtype) for part in numel.split(",")],
            dtype=dtype,
            densities=grid.listed("--density", density, grid.within(0, 1), "shares from 0 to 1"),
            overlaps=grid.choices("--overlap", overlap, grid.OVERLAPS),
            sparsities=grid.choices("--sparsity", sparsity, grid.SPARSITIES),
            wire=_wire(wire),
            ranks_per_host=ranks_per_host,
        )
        grid.check(names, cases)
        with Family() as family:
            most = max(case.workers for case in cases)
            made = None
            if rate is not None:
                made = links.Links(family, most // ranks_per_host, rate, mtu)
            elif target == "bmv2" and set(names) & set(grid.SWITCHED):
                network.enter()
                network.star(most, mtu)
            setup = Setup(target=target, slots=slots, threads=threads, repeat=repeat, warm_up=warm_up, timeout=timeout,
                          links=made, aggregators=aggregators, local=local, mtu=mtu,
                          rank_threads=rank_threads(), calls=calls)  # fmt: skip
            rows, memory = measure_all(cases, names, setup, rate, console)
        show_table(report.table(rows), console)
        if json_file is not None:
            report.write_json(json_file, rows, memory)
        if plot is not None:
            report.plot(plot, rows)
            console.print(f"plot: {plot}")
        end(rows, console)


bench.command()(gradients)


@bench.command()
def train(
    model: Annotated[
        str,
        typer.Option(
            help=f"Models to train: some of {', '.join((*trainings.MODELS, *trainings.REAL))}. Default: the first 5."
        ),
    ] = ",".join(trainings.MODELS),
    systems: Annotated[
        str | None,
        typer.Option(
            help=f"Systems to train with: some of {', '.join(trainings.HOOKS)}. Default: the first {trainings.QUICK}."
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=2, max=MAX_WORKERS, help="Number of workers.")] = 2,
    steps: Annotated[
        int | None, typer.Option(min=2, help=f"Steps of each training. Default: {trainings.STEPS}.")
    ] = None,
    warm_up: Annotated[int, typer.Option(min=0, help="Steps at the start that are not timed.")] = 2,
    repeat: Annotated[
        int | None, typer.Option(min=1, help="Trainings of each model and system, with seeds 1, 2, ... Default: 1.")
    ] = None,
    losses: Annotated[
        bool,
        typer.Option(
            "--losses",
            help="Change the defaults to those for comparing losses: all systems except noop, "
            f"{trainings.LOSSES_STEPS} steps, {trainings.LOSSES_SEEDS} seeds.",
        ),
    ] = False,
    ratio: Annotated[
        float, typer.Option(help="Share of blocks or elements that p4reduce-topk, p4reduce-element-topk, oktopk send.")
    ] = 0.01,
    start_iteration: Annotated[
        int,
        typer.Option(
            min=0, help="Steps at the start in which these systems and p4reduce-int8 send everything unchanged."
        ),
    ] = 0,
    evaluations: Annotated[
        int,
        typer.Option(
            min=1, help="Number of evaluations of the loss on held-out samples: at the end, at half of the steps, ..."
        ),
    ] = 5,
    link: Link = None,
    target: Annotated[str, typer.Option(help="Target that runs the switch: native or sim.")] = "native",
    slots: Slots = 0,
    timeout: Annotated[float, typer.Option(min=1, help="Time limit for one step, in seconds.")] = 120.0,
    json_file: JsonFile = None,
    plot: Plot = None,
) -> None:
    """Train small models in the shape of OmniReduce's with DDP, on synthetic data: throughput, loss and sparsity.

    resnet18, vgg11 and gpt2 are real architectures, on data from installed packages, and need the extra "gradients" of
    p4reduce-bench.

    The same seed gives the same parameters and batches to all systems, so that losses are compared in pairs.
    """
    console = Console()
    exit_on_signals()
    with command():
        outputs.check(json_file=json_file, plot=plot)
        if target not in (accepted := ("native", "sim")):
            raise P4ReduceError(f"--target {target}: accepted are {', '.join(accepted)}")
        names = trainings.systems(losses) if systems is None else grid.choices("--systems", systems, trainings.HOOKS)
        steps = steps or (trainings.LOSSES_STEPS if losses else trainings.STEPS)
        repeat = repeat or (trainings.LOSSES_SEEDS if losses else 1)
        if warm_up >= steps:
            raise P4ReduceError(f"--warm-up {warm_up}: must be less than --steps {steps}")
        if not 0 < ratio <= 1:
            raise P4ReduceError(f"--ratio {ratio:g}: must be above 0 and up to 1")
        models = grid.choices("--model", model, (*trainings.MODELS, *trainings.REAL))
        for name in set(models) & set(trainings.REAL):
            if reason := missing(name):
                raise P4ReduceError(f"--model {name}: {reason}")
        runs = trainings.plan(models, names, range(1, repeat + 1))
        rate = grid.bits_per_second(link) if link is not None else None
        if rate is not None:
            links.enter()
        with Family() as family, tempfile.TemporaryDirectory(prefix="p4reduce-") as folder:
            made = links.Links(family, workers, rate) if rate is not None else None
            setup = Setup(target=target, slots=slots, threads=1, repeat=repeat, warm_up=warm_up, timeout=timeout,
                          links=made)  # fmt: skip
            training = trainings.Training(workers, steps, warm_up, ratio, start_iteration, evaluations, Path(folder))
            rows = _train(runs, training, setup, rate, console)
            analyses = _analyses(runs, training, rate)
        show_table(train_report.table(rows), console)
        show_table(curves.table(rows), console)
        if analyses:
            show_table(train_report.sparsity_table(analyses), console)
        if json_file is not None:
            train_report.write_json(json_file, rows, analyses)
        if plot is not None:
            train_plot.plot(plot, rows)
            console.print(f"plot: {plot}")


def _train(
    runs: Sequence[trainings.Run], training: trainings.Training, setup: Setup, rate: int | None, console: Console
) -> list[train_report.Row]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    rows = []
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("starting", total=len(runs) * training.steps)
        for event in trainings.train(runs, training, setup):
            if isinstance(event, trainings.Step):
                progress.update(bar, advance=1, description=f"{event.run}: loss {event.loss:.4f}")
                continue
            row = train_report.row(event.run, event.figures, training, setup.target, rate)
            rows.append(row)
            loss = "" if row.final_loss is None else f", held-out loss {row.final_loss:.5f}"
            progress.console.print(f"{event.run}: {row.steps_per_s:.3g} steps/s{loss}", highlight=False, markup=False)
    return rows


def _analyses(runs: Sequence[trainings.Run], training: trainings.Training, rate: int | None) -> dict[str, Analysis]:
    """By model, where gradients were recorded."""
    return {
        run.model: analyze(
            recordings.find([training.folder / run.model]), workers=None, block_sizes=[1, DEFAULT_BLOCK_SIZE],
            bits_per_second=rate or 10**9, step=lambda: None,
        )
        for run in runs if run.recorded
    }  # fmt: skip


def _numbers_of_workers(text: str, ranks_per_host: int) -> list[int]:
    most = min(MAX_WORKERS * ranks_per_host, MAX_RANKS)

    def read(part: str) -> int:
        if not 2 <= (number := int(part)) <= most or number % ranks_per_host:
            raise ValueError
        return number

    multiples = f", multiples of {ranks_per_host}" if ranks_per_host > 1 else ""
    return grid.listed("--workers", text, read, f"2 to {most}{multiples}")


def _wire(text: str) -> WireChoice:
    for choice in WIRE_CHOICES:
        if text == choice:
            return choice
    raise P4ReduceError(f"--wire {text}: accepted are {', '.join(WIRE_CHOICES)}")
