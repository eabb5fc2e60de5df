# SPDX-License-Identifier: Apache-2.0
"""The command `p4reduce demo`."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from typer import Option

from p4reduce.commands.signals import exit_on_signals
from p4reduce.commands.tables import show as show_table
from p4reduce.errors import P4ReduceError
from p4reduce_bench import outputs
from p4reduce_bench.demo.report import Report
from p4reduce_bench.gradients.packages import need
from p4reduce_bench.processes import network
from p4reduce_bench.processes.children import ChildProcesses
from p4reduce_bench.processes.switches import (
    check_aggregators,
    describe,
    start_controller,
    start_ranks,
    start_switches,
)
from p4reduce_bench.processes.termination import command

SILENCE = 90.0  # seconds


def train(
    processes: ChildProcesses, report: Report, target: str, aggregators: int, seed: int, console: Console
) -> None:
    """Start switches, controller and workers, and follow the workers to their end."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} steps"),
               TextColumn("loss {task.fields[loss]:.3f}"), TextColumn("{task.fields[sent]:.1f} MB sent"),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("starting the switch", total=report.steps, loss=float("nan"), sent=0.0)
        cabled = target == "bmv2"
        if cabled:
            network.star(report.workers)
        switches = start_switches(processes, target, cables=report.workers if cabled else 0, aggregators=aggregators)
        progress.update(bar, description="starting the controller")
        controller = start_controller(processes, switches, "--drop-rate", str(report.drop_rate))
        progress.update(bar, description="starting the workers")
        options = ["--steps", str(report.steps), "--seed", str(seed), *(["--cabled"] if cabled else [])]
        transport = "raw" if cabled else "udp"
        workers = start_ranks(
            processes, "p4reduce_bench.demo.worker", report.workers, controller, *options, transport=transport
        )
        for child, event in processes.events(workers, SILENCE):
            rank = workers.index(child)
            report.add(rank, event)
            if rank == 0 and "step" in event:
                progress.update(bar, description="training", completed=event["step"],
                                loss=report.losses[-1][1] if report.losses else float("nan"),
                                sent=event["stats"]["bytes_sent"] * report.workers / 1e6)  # fmt: skip


# fmt: off
def demo(
    target: Annotated[str, Option(
        help="Target that runs the switch: sim (the P4 program in Python), native (in C) or bmv2 (needs root)."
        )] = "sim",
    workers: Annotated[int, Option(min=1, max=16, help="Number of worker processes.")] = 4,
    steps: Annotated[int, Option(min=1, help="Number of training steps.")] = 100,
    drop_rate: Annotated[float, Option(
        min=0, max=0.5, help="Probability that a packet is lost, at each switch port, in each direction.")] = 0.0,
    aggregators: Annotated[int, Option(
        min=1, max=8, help="Number of switches that share the gradients (sim or native).")] = 1,
    seed: Annotated[int, Option(help="Seed of the model and of the order of the text.")] = 1,
    plot: Annotated[Path, Option(help="File for the plot.")] = Path("out/demo.png"),
    as_json: Annotated[bool, Option("--json", help="Print JSON instead of the table.")] = False,
) -> None:
    # fmt: on
    """Train a word-level language model with DDP; the P4 program adds up the gradients, and every sum is checked."""
    need("torch")
    console = Console(stderr=as_json)
    exit_on_signals()
    with command():
        outputs.check(plot=plot)
        if target not in ("sim", "native", "bmv2"):
            raise P4ReduceError(f"--target {target}: accepted are sim, native and bmv2")
        check_aggregators(target, aggregators)
        if target == "bmv2":
            network.enter()
        report = Report(target=describe(target, aggregators), workers=workers, steps=steps, drop_rate=drop_rate)
        with ChildProcesses() as processes:
            train(processes, report, target, aggregators, seed, console)
    report.plot(plot)
    if as_json:
        print(json.dumps({**report.summary, "plot": os.fspath(plot), "passed": report.passed}))
    else:
        show_table(report.table(), console)
        console.print(f"plot: {plot}")
    if not report.passed:
        console.print("[red]the sums or the loss are wrong: see above[/]")
        raise typer.Exit(1)
