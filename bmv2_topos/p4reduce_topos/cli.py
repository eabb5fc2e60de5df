# SPDX-License-Identifier: Apache-2.0
"""The command `p4reduce topo`."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from p4reduce.commands.tables import show as show_table
from p4reduce.control.diagnostics import check_folder
from p4reduce.errors import P4ReduceError
from p4reduce_bench.allreduce import grid
from p4reduce_bench.allreduce.grid import Case
from p4reduce_bench.allreduce.systems import Setup
from p4reduce_bench.processes import network as own_network
from p4reduce_bench.processes.termination import command
from p4reduce_controller.p4runtime.builds import DEFAULT_MTU, LARGEST_BUILD, LEAST_MTU, MOST_MTU
from p4reduce_topos.arguments import LINK_PROPERTIES, build
from p4reduce_topos.emulation import signals
from p4reduce_topos.model import Topology
from p4reduce_topos.topologies.catalogue import ACCEPTED, TOPOLOGIES

if TYPE_CHECKING:
    from p4reduce_topos.emulation.network import Network
    from p4reduce_topos.experiments.measurement import Measurement
    from p4reduce_topos.experiments.series import Experiment

T = TypeVar("T")

topo = typer.Typer(
    help="Emulate networks of switches in Mininet.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Target = Annotated[str, typer.Option(help="Target that runs every switch: native, sim or bmv2.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@topo.callback()
def root() -> None:
    """Emulate networks in Mininet: topologies, experiments and faults. Needs root. Each has its own namespace."""


@topo.command("list")
def list_topologies() -> None:
    """Show the topologies and their diagrams."""
    for name, builder in TOPOLOGIES.items():
        typer.echo(f"{name}  (--shape: {', '.join(builder.shape) or 'none'})\n\n{builder.description}\n")


_MEASUREMENT_OPTIONS = (
    "system",
    "numel",
    "density",
    "overlap",
    "repeat",
    "slots",
    "timeout",
    "mtu",
    "drop_rate",
    "cli",
)


@topo.command()
def run(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help=f"Topology: one of {ACCEPTED}.")],
    target: Target = "native",
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=32, help="Number of workers. Default: 4, or those that the topology's file names."),
    ] = None,
    edge: Annotated[str, typer.Option(help=f"Properties of the hosts' links, as {LINK_PROPERTIES}.")] = "",
    core: Annotated[str, typer.Option(help="Properties of the links between switches, likewise.")] = "",
    shape: Annotated[
        str, typer.Option(help="Parameters of the topology, as leaves=2,spines=2; p4reduce topo list shows them.")
    ] = "",
    system: Annotated[
        str, typer.Option(help="System that reduces: p4reduce, gloo, gloo-sparse, or server (one host adds up).")
    ] = "p4reduce",
    numel: Annotated[str, typer.Option(help="Number of elements, or a size such as 1MiB.")] = "1MiB",
    density: Annotated[float, typer.Option(min=0, max=1, help="Share of blocks that are non-zero.")] = 0.1,
    overlap: Annotated[
        str, typer.Option(help=f"Overlap of the workers' non-zero blocks: {', '.join(grid.OVERLAPS)}.")
    ] = "random",
    repeat: Annotated[int, typer.Option(min=1, help="Number of reductions to measure.")] = 3,
    slots: Annotated[
        int, typer.Option(min=1, max=512, help="Slots of the job, which is the number of packets in flight.")
    ] = 16,
    timeout: Annotated[float, typer.Option(min=1, help="Time limit for one reduction, in seconds.")] = 60.0,
    mtu: Annotated[
        int,
        typer.Option(
            min=LEAST_MTU, max=MOST_MTU, help=f"MTU of all links; from {LARGEST_BUILD} on, packets are larger."
        ),
    ] = DEFAULT_MTU,
    drop_rate: Annotated[
        float,
        typer.Option(min=0, max=1, help="Share of packets that the switches lose, at every port, in both directions."),
    ] = 0.0,
    fault: Annotated[str, typer.Option(help="Fault to cause during the run; `list` shows all faults.")] = "",
    cli: Annotated[bool, typer.Option("--cli", help="Open Mininet's prompt instead of measuring.")] = False,
    pcap: Annotated[Path | None, typer.Option(help="Folder for a capture of every switch port.")] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            help="File for a trace of the rounds, as `p4reduce trace record` writes it; its page is written beside it."
        ),
    ] = None,
    pipeline: Annotated[
        Path | None, typer.Option(help="Folder with a compiled P4 program of your own, as p4src/compile.py writes it.")
    ] = None,
    program: Annotated[
        str,
        typer.Option("--exec", help="Script with its arguments, which runs at every worker instead of a measurement."),
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Set up a network, reduce on it, and compare every sum with the exact one.

    With --fault, the run checks that each rank ends as it must: with right sums, or with an error that says what
    happened. With --exec, a training script runs at every worker, with RANK, WORLD_SIZE, P4REDUCE_CONTROLLER and so on
    set for it.
    """
    if fault == "list":
        from p4reduce_topos.faults.catalogue import FAULTS

        for one, known in FAULTS.items():
            typer.echo(f"{one:24} {known.summary} Ends in: {known.outcome}.")
        return

    sources = {one: context.get_parameter_source(one) for one in _MEASUREMENT_OPTIONS}
    given = [one for one, source in sources.items() if source is not None and source.name == "COMMANDLINE"]

    def inputs() -> Topology:
        _check(target, system, overlap, fault)
        if fault and given:
            option = f"--{given[0].replace('_', '-')}"
            raise P4ReduceError(f"--fault {fault} and {option}: give only one of them; a fault chooses its own sums")
        _check_program_options(pipeline, program, fault, trace)
        if pcap is not None:
            check_folder("--pcap", pcap)
        topology = build(name, workers, edge, core, shape)
        if not fault:
            return topology
        from p4reduce_topos.faults.catalogue import FAULTS
        from p4reduce_topos.faults.injection import prepare_topology

        return prepare_topology(FAULTS[fault], topology)

    def work(console: Console, topology: Topology) -> None:
        from p4reduce_topos.emulation.network import Network
        from p4reduce_topos.emulation.recording import recorded
        from p4reduce_topos.experiments.measurement import measure

        if fault:
            _run_fault(console, topology, target, fault, pcap, pipeline, as_json=as_json)
            return
        case = Case(
            len(topology.workers) if workers is None else workers,
            grid.elements(numel, "float32"),
            "float32",
            density,
            overlap,
            "block",
        )
        setup = Setup(target=target, slots=slots, threads=1, repeat=repeat, warm_up=1, timeout=timeout, mtu=mtu)
        options = ["--drop-rate", str(drop_rate)] if drop_rate else []
        with (
            console.status(escape(f"{name}: starting")) as status,
            Network(topology, target, controller_options=options, pcap=pcap, mtu=mtu, pipeline=pipeline) as network,
        ):
            if program:
                status.stop()
                with recorded(trace, partial(print, file=sys.stderr)):
                    _run_program(console, network, program, as_json=as_json)
                return
            if cli:
                said = f"workers {', '.join(topology.workers)}; leave the prompt with Ctrl-D"
                console.print(f"[bold]{escape(name)}[/]: {said}", highlight=False, soft_wrap=True)
                status.stop()
                network.prompt()
                return
            with recorded(trace, partial(print, file=sys.stderr)):
                measured = measure(network, system, case, setup)
        if as_json:
            print(json.dumps(measured.as_dict()))
        else:
            show_table(_table(topology, measured), console)
        if measured.row.wrong:
            raise P4ReduceError(f"{measured.row.wrong} elements are wrong")

    _as_command(inputs, work, as_json=as_json)


@topo.command()
def experiment(
    name: Annotated[
        str,
        typer.Argument(
            help="Experiment, or your own as FILE.yaml, FILE.json or FILE.py:NAME; `list` shows all experiments."
        ),
    ],
    target: Target = "native",
    repeat: Annotated[int, typer.Option(min=1, help="Number of reductions at each point.")] = 5,
    out: Annotated[Path, typer.Option(help="Folder for the figures (JSON) and the plot.")] = Path("out/topo"),
    values: Annotated[
        str, typer.Option(help="Values of what varies, separated by commas. Default: those that `list` shows.")
    ] = "",
    systems: Annotated[str, typer.Option(help="Systems to measure: some of p4reduce, gloo, gloo-sparse, server.")] = "",
    workers: Annotated[str, typer.Option(help="Number of workers, at every point.")] = "",
    numel: Annotated[str, typer.Option(help="Number of elements, or a size such as 4MiB, at every point.")] = "",
    density: Annotated[str, typer.Option(help="Share of blocks that are non-zero, at every point.")] = "",
    slots: Annotated[str, typer.Option(help="Slots of the job, at every point.")] = "",
    rate: Annotated[str, typer.Option(help="Rate of every link, such as 50mbit, at every point.")] = "",
    drop_rate: Annotated[str, typer.Option(help="Share of packets that the switch loses, at every point.")] = "",
    topology: Annotated[str, typer.Option(help=f"Topology: one of {ACCEPTED}. Default: star.")] = "",
    shape: Annotated[
        str, typer.Option(help="Parameters of the topology, as leaves=2,spines=2; p4reduce topo list shows them.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Measure time and bytes while one parameter varies. A new run continues from the figures in --out."""
    from p4reduce_topos.experiments import congestion
    from p4reduce_topos.experiments.measurement import check_systems
    from p4reduce_topos.experiments.selection import find, with_options
    from p4reduce_topos.experiments.series import EXPERIMENTS

    if name == "list":
        for one, known in EXPERIMENTS.items():
            typer.echo(f"{one:12} {known.summary} {', '.join(f'{value:g}' for value in known.values)}")
        typer.echo(f"{'congestion':12} {congestion.SUMMARY}")
        return

    fixed = {"workers": workers, "numel": numel, "density": density, "slots": slots, "rate": rate,
             "drop_rate": drop_rate, "topology": topology, "shape": shape}  # fmt: skip

    def inputs() -> tuple[str, Experiment | None]:
        if target not in grid.TARGETS:
            raise P4ReduceError(f"--target {target}: accepted are {', '.join(grid.TARGETS)}")
        check_folder("--out", out)
        if name != "congestion":
            called, known = find(name)
            made = with_options(known, values, systems, **fixed)
            check_systems(made.systems)
            return called, made
        if any((values, systems, *fixed.values())):
            raise P4ReduceError("congestion is a fixed network: only --target and --repeat can be chosen")
        return name, None

    def work(console: Console, found: tuple[str, Experiment | None]) -> None:
        called, known = found
        if known is None:
            rows, wrong = _run_congestion(called, target, repeat, out, console)
        else:
            rows, wrong = _run_series(called, known, target, repeat, out, console)
        if as_json:
            print(json.dumps(rows))
        console.print(f"figures: {out / called}.json, plot: {out / called}.png", markup=False, soft_wrap=True)
        if wrong:
            raise P4ReduceError(f"{wrong} elements are wrong")
        if failed := sum(row.get("error") is not None for row in rows):
            raise P4ReduceError(f"{failed} points failed, see above; the next run tries them again")

    _as_command(inputs, work, as_json=as_json)


def _run_series(name: str, known: Experiment, target: str, repeat: int, out: Path, console: Console
          ) -> tuple[list[dict[str, Any]], int]:  # fmt: skip
    """Measure every point and draw the plot. Return the figures of every point, and the number of wrong elements."""
    from p4reduce_topos.experiments.series import plot, run

    rows = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with (
        contextlib.closing(run(known, out / f"{name}.json", target, repeat)) as measuring,
        Progress(*columns, console=console) as progress,
    ):
        bar = progress.add_task(name, total=len(known.points()))
        for point, measured in measuring:
            rows.append((point, measured))
            value = getattr(point, known.varied)
            said = measured["error"] or f"{measured['median_s'] * 1e3:.4g} ms"
            progress.console.print(
                f"{point.system}, {known.varied} {value:g}: {said}", highlight=False, markup=False, soft_wrap=True
            )
            progress.update(bar, advance=1)
    plot(out / f"{name}.png", name, known, rows, target, repeat)
    return [{**asdict(point), **measured} for point, measured in rows], sum(one["wrong"] or 0 for _, one in rows)


def _run_congestion(
    name: str, target: str, repeat: int, out: Path, console: Console
) -> tuple[list[dict[str, Any]], int]:
    """Run the experiment `congestion`, which has one network and no points. It returns the same as `_run_series`."""
    from p4reduce_bench.outputs import machine
    from p4reduce_topos.experiments.congestion import plot, run

    with console.status(name):
        found = run(target, repeat)
    rows: list[dict[str, Any]] = [{"run": one, **asdict(throughput)} for one, throughput in found.items()]
    plot(out / f"{name}.png", found, target, repeat)
    (out / f"{name}.json").write_text(json.dumps({"machine": machine(), "target": target, "rows": rows}, indent=1))
    for row in rows:
        said = f"{row['run']}: TCP {row['tcp'] / 1e6:.1f} Mbit/s, aggregation {row['aggregation'] / 1e6:.1f} Mbit/s"
        console.print(f"{said}, sent again {row['resent']:.1%}", highlight=False, soft_wrap=True)
    return rows, sum(row["wrong"] for row in rows)


def _as_command(inputs: Callable[[], T], work: Callable[[Console, T], None], *, as_json: bool) -> None:
    """Check the inputs, enter a new network namespace, and do the work there.

    To enter it, the process executes this program again, so the inputs are checked once outside and once inside.

    Errors and signals end the process with a message and an exit status, as those of every command do.
    """
    console = Console(stderr=as_json)
    with command(errors=(P4ReduceError, ValueError)):
        signals.install()
        checked = inputs()
        from p4reduce_topos.emulation.network import check_tools

        check_tools()
        with signals.blocked():  # until the new program has called `signals.install`
            own_network.enter()
        work(console, checked)


def _check(target: str, system: str, overlap: str, fault: str) -> None:
    from p4reduce_topos.experiments.measurement import SYSTEMS, check_systems
    from p4reduce_topos.faults.catalogue import FAULTS

    for option, value, accepted in (
        ("--target", target, grid.TARGETS),
        ("--system", system, SYSTEMS),
        ("--overlap", overlap, grid.OVERLAPS),
        ("--fault", fault, ("", *FAULTS)),
    ):
        if value not in accepted:
            raise P4ReduceError(f"{option} {value}: accepted are {', '.join(filter(None, accepted))}")
    check_systems([system])


def _check_program_options(pipeline: Path | None, program: str, fault: str, trace: Path | None) -> None:
    """Check the options for files of the user: a P4 program, a script for the workers, and a trace."""
    from p4reduce_topos.emulation.scripts import command_of

    for file in ("p4reduce.json", "p4info.txtpb"):
        if pipeline is not None and not (pipeline / file).is_file():
            raise P4ReduceError(f"--pipeline {pipeline}: the folder has no {file}, which p4src/compile.py writes")
    if program:
        command_of(program)
    if trace is not None and (fault or trace.suffix != ".json"):
        raise P4ReduceError(f"--trace {trace}: must be FILE.trace.json, and without --fault")
    if program and fault:
        raise P4ReduceError("--exec and --fault: give only one of them")


def _run_program(console: Console, network: Network, program: str, *, as_json: bool) -> None:
    from p4reduce_topos.emulation.scripts import command_of, run_at_workers

    def say(host: str, line: str) -> None:
        print(f"{host} | {line}", file=sys.stderr if as_json else sys.stdout, flush=True)

    statuses = run_at_workers(network, command_of(program), say)
    if as_json:
        print(json.dumps({"exec": program, "statuses": statuses}))
    if bad := {rank: status for rank, status in statuses.items() if status}:
        told = ", ".join(f"rank {rank} with status {status}" for rank, status in bad.items())
        raise P4ReduceError(f"{program} failed: {told}")
    console.print(f"{program}: all {len(statuses)} ranks completed", highlight=False, markup=False, soft_wrap=True)


def _run_fault(console: Console, topology: Topology, target: str, fault: str, pcap: Path | None, pipeline: Path | None,
            *, as_json: bool) -> None:  # fmt: skip
    from p4reduce_topos.emulation.network import Network
    from p4reduce_topos.faults import messages
    from p4reduce_topos.faults.catalogue import FAULTS, LEASE_S
    from p4reduce_topos.faults.injection import inject, violations

    known = FAULTS[fault]
    lease = ["--lease", str(LEASE_S)]
    with (
        console.status(escape(f"{topology.name}: {known.summary}")),
        Network(topology, target, controller_options=lease, pcap=pcap, pipeline=pipeline) as network,
    ):
        ends = inject(network, known)
    wrong = violations(known, ends)
    said = messages.verdict(fault, known, ends, wrong)
    if as_json:
        print(
            json.dumps({"fault": fault, "expected": known.outcome, "ranks": ends, "well": not wrong, "verdict": said})
        )
    else:
        for rank, end in ends.items():
            console.print(f"rank {rank}: {messages.describe_end(end)}", highlight=False, markup=False, soft_wrap=True)
    if wrong:
        raise P4ReduceError(said)
    if not as_json:
        console.print(said, highlight=False, markup=False, soft_wrap=True)


def _table(topology: Topology, measured: Measurement) -> Table:
    caption = "packets, and bytes on the wire: of one reduction, at the host with the most, or on a link"
    made = Table(title=escape(f"{topology.name}: allreduce, sum"), caption=caption, show_header=False)
    made.add_column("")
    made.add_column("", justify="right")
    names = ("system", "target", "workers", "numel", "density", "median_s", "min_s", "max_s", "tx_bytes", "rx_bytes",
             "packets", "retransmissions", "wrong")  # fmt: skip
    between = {way: count for way, count in measured.carried.items() if set(way.split(">")) <= set(topology.switches)}
    for key, value in {**{key: getattr(measured.row, key) for key in names}, **between}.items():
        if value is not None:
            made.add_row(key, f"{value:.4g}" if isinstance(value, float) else str(value))
    return made
