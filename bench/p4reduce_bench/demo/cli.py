# SPDX-License-Identifier: Apache-2.0
"""The command `p4reduce demo`."""

import json
import os
import socket
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from p4reduce.commands.signals import exit_on_signals
from p4reduce.commands.tables import show as show_table
from p4reduce.errors import P4ReduceError
from p4reduce_bench import outputs
from p4reduce_bench.demo.report import Report
from p4reduce_bench.processes import network
from p4reduce_bench.processes.children import Child, Family
from p4reduce_bench.processes.endings import command
from p4reduce_bench.processes.switches import START_UP_S, check_aggregators, describe, start_switches

SILENCE = 90.0  # seconds


def free_port() -> int:
    """Return a TCP port that is free now, for torch's rendezvous."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def start_switch(family: Family, target: str, workers: int, aggregators: int) -> list[str]:
    """Start the target's switches; gives the controller's options for them."""
    if target == "bmv2":
        network.star(workers)
        ports = [f"{port}=eth:port{port}" for port in range(1, workers + 1)]
        return start_switches(family, target, ports, address="10.0.0.254:31314")
    return start_switches(family, target, ["1=udp:127.0.0.1:0"], aggregators=aggregators)


def start_workers(family: Family, controller: str, target: str, workers: int, options: list[str]) -> list[Child]:
    """Start the ranks, each with torchrun's variables."""
    common = {
        "WORLD_SIZE": str(workers),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
        "P4REDUCE_CONTROLLER": controller,
        "P4REDUCE_LOCAL": "off",
        "OMP_NUM_THREADS": "1",
    }
    children = []
    for rank in range(workers):
        interface = ["--interface", f"worker{rank}"] if target == "bmv2" else []
        environment = {**common, "RANK": str(rank), "P4REDUCE_TRANSPORT": "raw" if target == "bmv2" else "udp"}
        children.append(
            family.start(f"worker {rank}", "p4reduce_bench.demo.worker", *options, *interface, environment=environment)
        )
    return children


def train(family: Family, report: Report, target: str, aggregators: int, seed: int, console: Console) -> None:
    """Start everything, and follow the workers to their end."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total} steps"),
               TextColumn("loss {task.fields[loss]:.3f}"), TextColumn("{task.fields[sent]:.1f} MB sent"),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("starting the switch", total=report.steps, loss=float("nan"), sent=0.0)
        places = start_switch(family, target, report.workers, aggregators)
        progress.update(bar, description="starting the controller")
        controller = family.start("controller", "p4reduce", "controller", *places, "--json",
                                  "--listen", "127.0.0.1:0", "--drop-rate", str(report.drop_rate))  # fmt: skip
        listen = controller.first(START_UP_S)["listen"]
        progress.update(bar, description="starting the workers")
        options = ["--steps", str(report.steps), "--seed", str(seed)]
        workers = start_workers(family, listen, target, report.workers, options)
        for child, event in family.events(workers, SILENCE):
            rank = workers.index(child)
            report.add(rank, event)
            if rank == 0 and "step" in event:
                progress.update(bar, description="training", completed=event["step"],
                                loss=report.losses[-1][1] if report.losses else float("nan"),
                                sent=event["stats"]["bytes_sent"] * report.workers / 1e6)  # fmt: skip


def demo(
    target: Annotated[
        str,
        typer.Option(
            help="Target that runs the switch: sim (the P4 program in Python), native (in C) or bmv2 (needs root)."
        ),
    ] = "sim",
    workers: Annotated[int, typer.Option(min=1, max=16, help="Number of worker processes.")] = 4,
    steps: Annotated[int, typer.Option(min=1, help="Number of training steps.")] = 100,
    drop_rate: Annotated[
        float,
        typer.Option(min=0, max=0.5, help="Probability that a packet is lost, at each switch port, in each direction."),
    ] = 0.0,
    aggregators: Annotated[
        int, typer.Option(min=1, max=8, help="Number of switches that share the gradients (sim or native).")
    ] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the model and of the order of the text.")] = 1,
    plot: Annotated[Path, typer.Option(help="File for the plot.")] = Path("out/demo.png"),
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of the table.")] = False,
) -> None:
    """Train a word-level language model with DDP; the P4 program adds up the gradients, and every sum is checked."""
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
        with Family() as family:
            train(family, report, target, aggregators, seed, console)
    report.plot(plot)
    if as_json:
        print(json.dumps({**report.summary, "plot": os.fspath(plot), "passed": report.passed}))
    else:
        show_table(report.table(), console)
        console.print(f"plot: {plot}")
    if not report.passed:
        console.print("[red]the sums or the loss are wrong: see above[/]")
        raise typer.Exit(1)
