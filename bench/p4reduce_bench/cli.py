# SPDX-License-Identifier: Apache-2.0
"""The command `p4reduce bench`."""

from __future__ import annotations

from typing import Annotated, cast

import typer
from rich.console import Console
from typer import Option

from p4reduce.commands.signals import exit_on_signals
from p4reduce.commands.tables import show
from p4reduce.errors import P4ReduceError
from p4reduce.protocol.constants import MAX_AGGREGATORS, MAX_RANKS, MAX_WORKERS
from p4reduce.tensors.spec import WIRE_CHOICES, WireChoice
from p4reduce_bench import outputs
from p4reduce_bench.allreduce import grid, links, report
from p4reduce_bench.allreduce.measuring import chosen_systems, end, measure_all
from p4reduce_bench.allreduce.systems import Setup, check_local, rank_threads
from p4reduce_bench.gradients.cli import gradients
from p4reduce_bench.options import JsonFile, Link, Plot, Repeat, Slots, Timeout, WarmUp
from p4reduce_bench.processes import network
from p4reduce_bench.processes.children import ChildProcesses
from p4reduce_bench.processes.switches import check_aggregators
from p4reduce_bench.processes.termination import command
from p4reduce_bench.training.cli import train
from p4reduce_controller.p4runtime.builds import DEFAULT_MTU, LARGEST_BUILD, LEAST_MTU, MOST_MTU

_SYSTEMS = (
    f"Systems to measure: some of {', '.join(grid.ALL_SYSTEMS)}. Default: those of the first {len(grid.SYSTEMS)} that "
    "are installed, and with --local auto those of the first "
    f"{len(grid.SYSTEMS) + len(grid.SHARED_MEMORY)}."
)
_LOCAL = (
    "auto: ranks of one host reduce in its memory and send as one worker. off: each rank sends. Default: auto with "
    "--ranks-per-host, otherwise off."
)

bench = typer.Typer(
    help="Measure p4reduce and other libraries.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@bench.callback()
def root() -> None:
    """Measure p4reduce and other libraries, on the same inputs and the same links."""


# fmt: off
@bench.command()
def allreduce(
    target: Annotated[str, Option(help="Target that runs the switch: native, sim or bmv2 (needs root).")] = "native",
    systems: Annotated[str | None, Option(help=_SYSTEMS)] = None,
    workers: Annotated[str, Option(help="Numbers of workers, separated by commas.")] = "2,4,8",
    numel: Annotated[str, Option(help="Numbers of elements, or sizes such as 25MiB.")] = "26214400",
    dtype: Annotated[str, Option(help=f"Data type: one of {', '.join(grid.DTYPES)}.")] = "float32",
    wire: Annotated[str, Option(
        help=f"Integers that stand for floats in packets: {', '.join(WIRE_CHOICES)}.")] = "auto",
    density: Annotated[str, Option(help="Shares of blocks or elements that are non-zero.")] = grid.DENSITIES,
    overlap: Annotated[str, Option(
        help=f"Overlaps of the workers' non-zero blocks: some of {','.join(grid.OVERLAPS)}.")] = "random,all,none",
    sparsity: Annotated[str, Option(
        help=f"What is zero as a whole: some of {','.join(grid.SPARSITIES)}.")] = "block,element",
    given: Annotated[str, Option(
        "--input", help=f"Kinds of tensors that p4reduce gets: some of {','.join(grid.OURS)}.")] = "dense",
    link: Link = None,
    ranks_per_host: Annotated[int, Option(min=1, max=MAX_RANKS, help="Number of workers that share a host and its "
        "link. Needs --link, and --workers that are multiples of it.")] = 1,
    repeat: Repeat = 5,
    warm_up: WarmUp = 1,
    calls: Annotated[int, Option(
        min=1, help="Calls in a row that each measurement takes the average of: for small tensors.")] = 1,
    slots: Slots = 0,
    threads: Annotated[int, Option(min=1, help="Threads of the native switch.")] = 1,
    aggregators: Annotated[int, Option(
        min=1, max=MAX_AGGREGATORS, help="Number of switches that share the slots (native or sim).")] = 1,
    local: Annotated[str | None, Option(help=_LOCAL)] = None,
    mtu: Annotated[int, Option(min=LEAST_MTU, max=MOST_MTU,
        help=f"MTU of the links; from {LARGEST_BUILD} on, packets are larger.")] = DEFAULT_MTU,
    drop_rate: Annotated[float, Option(
        min=0, max=0.5, help="Share of packets that the switch loses at each port, in each direction.")] = 0.0,
    timeout: Timeout = 120.0,
    json_file: JsonFile = None,
    plot: Plot = None,
) -> None:
    # fmt: on
    """Time allreduce on the grid of OmniReduce's artifact, and compare every result with the exact sum."""
    console = Console()
    exit_on_signals()
    with command():
        outputs.check(json_file=json_file, plot=plot)
        grid.one_of("--target", target, grid.TARGETS)
        grid.one_of("--dtype", dtype, grid.DTYPES)
        if link is not None and target == "bmv2":
            raise P4ReduceError("--link with --target bmv2: BMv2 is slower than any link; accepted are native and sim")
        check_aggregators(target, aggregators)
        if ranks_per_host > 1 and link is None:
            raise P4ReduceError(f"--ranks-per-host {ranks_per_host} needs --link: only hosts with links are emulated")
        shared = ranks_per_host > 1
        local = local or ("auto" if shared else "off")
        check_local(local, given, linked=link is not None, shared=shared)
        rate = links.enter(link)
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
            wire=cast(WireChoice, grid.one_of("--wire", wire, WIRE_CHOICES)),
            ranks_per_host=ranks_per_host,
        )
        grid.check(names, cases)
        with ChildProcesses() as processes:
            most = max(case.workers for case in cases)
            made = links.Links(processes, most // ranks_per_host, rate, mtu) if rate is not None else None
            if target == "bmv2" and set(names) & set(grid.SWITCHED):
                network.enter()
                network.star(most, mtu)
            setup = Setup(target=target, slots=slots, threads=threads, repeat=repeat, warm_up=warm_up, timeout=timeout,
                          links=made, aggregators=aggregators, local=local, mtu=mtu,
                          rank_threads=rank_threads(), calls=calls, drop_rate=drop_rate)  # fmt: skip
            rows, memory = measure_all(cases, names, setup, rate, console)
        show(report.table(rows), console)
        if json_file is not None:
            report.write_json(json_file, rows, memory)
        if plot is not None:
            report.plot(plot, rows)
            console.print(f"plot: {plot}")
        end(rows, console)


bench.command()(gradients)
bench.command()(train)


def _numbers_of_workers(text: str, ranks_per_host: int) -> list[int]:
    most = min(MAX_WORKERS * ranks_per_host, MAX_RANKS)

    def read(part: str) -> int:
        if not 2 <= (number := int(part)) <= most or number % ranks_per_host:
            raise ValueError
        return number

    multiples = f", multiples of {ranks_per_host}" if ranks_per_host > 1 else ""
    return grid.listed("--workers", text, read, f"2 to {most}{multiples}")
