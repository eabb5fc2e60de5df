# SPDX-License-Identifier: Apache-2.0
"""The command `p4reduce analyze`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from p4reduce.commands.tables import show
from p4reduce.protocol.constants import BLOCK_SIZES_ACCEPTED, DEFAULT_BLOCK_SIZE
from p4reduce_bench import outputs
from p4reduce_bench.allreduce import grid
from p4reduce_bench.analyze import recordings
from p4reduce_bench.analyze.analysis import Analysis, ParameterRow
from p4reduce_bench.analyze.analysis import analyze as analyze_recordings
from p4reduce_bench.analyze.forms import WIRES, Forms
from p4reduce_bench.processes.endings import command

VERSION = 1
SIZES = ",".join(str(size) for size in BLOCK_SIZES_ACCEPTED)


def analyze(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help=".npz files of gradients, one for each rank, or folders of such files.",
            show_default=False,
        ),
    ],
    link: Annotated[str, typer.Option(help="Rate of each worker's link, such as 10gbit.")] = "10gbit",
    workers: Annotated[
        int | None,
        typer.Option(
            min=2,
            max=32,
            help="Number of workers. Default: the number of recorded ranks. If more, gradients of other iterations "
            "stand in.",
            show_default=False,
        ),
    ] = None,
    block_sizes: Annotated[str, typer.Option(help="Elements in a block, separated by commas.")] = SIZES,
    most: Annotated[
        int, typer.Option("--parameters", min=0, help="Number of parameters to show, the largest first.")
    ] = 12,
    json_file: Annotated[Path | None, typer.Option("--json", help="File to write all figures to, as JSON.")] = None,
) -> None:
    """Measure how sparse recorded gradients are, and what the switch would gain over a dense ring allreduce."""
    console = Console()
    with command(stopped="stopped"):
        outputs.check(json_file=json_file)
        rate = grid.bits_per_second(link)
        sizes = [int(size) for size in grid.choices("--block-sizes", block_sizes, SIZES.split(","))]
        found = recordings.find(paths)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            bar = progress.add_task("iterations", total=len(found))
            analysis = analyze_recordings(
                found, workers=workers, block_sizes=[1, *sizes], bits_per_second=rate,
                step=lambda: progress.advance(bar),
            )  # fmt: skip
        _print(console, analysis, link, most)
        if json_file is not None:
            _write(json_file, analysis, link)


def _print(console: Console, analysis: Analysis, link: str, most: int) -> None:
    """Three tables: of all parameters together, of the largest, and of how buckets and these are sent."""
    for iteration in analysis.incomplete:
        console.print(f"iteration {iteration} is left out: not all {analysis.ranks} ranks recorded it")
    elements = sum(one.numel for one in analysis.parameters)
    together = Table(
        title=f"{elements} gradients of {analysis.ranks} ranks, {len(analysis.iterations)} iterations: "
        f"{analysis.workers} workers",
        caption=f"ring, switch: least time on a {link} link for a dense ring allreduce, and for the non-zero blocks",
    )
    together.add_column("by")
    for name in ("density %", "of sum %", "overlap", "densification", "skew", "ring ms", "switch ms", "speed-up"):
        together.add_column(name, justify="right", no_wrap=True)
    for row in analysis.rows:
        measures, times = row.measures, row.expected
        together.add_row(
            "element" if row.block_size == 1 else f"blocks of {row.block_size}",
            _number(measures.density, 100),
            _number(measures.union, 100),
            _number(measures.overlap),
            _number(measures.densification),
            _number(measures.skew),
            _number(times.ring_s if times else None, 1e3),
            _number(times.switch_s if times else None, 1e3),
            _number(times.speed_up if times else None),
        )
    show(together, console)
    largest = sorted(analysis.parameters, key=lambda one: -one.numel)[:most]
    if largest:
        _print_parameters(console, largest)
    _print_forms(console, analysis, largest, link)


def _print_parameters(console: Console, largest: Sequence[ParameterRow]) -> None:
    single = Table(title="by parameter", caption=f"blocks of {DEFAULT_BLOCK_SIZE}, from the parameter's first element")
    single.add_column("parameter", overflow="fold")
    for name in ("elements", "density %", "blocks %", "of sum %", "overlap"):
        single.add_column(name, justify="right", no_wrap=True)
    for one in largest:
        shares = (one.elements.density, one.blocks.density, one.blocks.union)
        single.add_row(escape(one.name), str(one.numel), *(_number(share, 100) for share in shares),
                       _number(one.blocks.overlap))  # fmt: skip
    show(single, console)


def _print_forms(console: Console, analysis: Analysis, largest: Sequence[ParameterRow], link: str) -> None:
    """Buckets, and parameters by themselves."""
    table = Table(
        title='the layout that layout="auto" chooses, and MB that a worker receives with each',
        caption=f"on {link} links, by allreduce's estimates; hooks and the backend use blocks unless told otherwise",
    )
    table.add_column("reduced", overflow="fold")
    table.add_column("elements", justify="right", no_wrap=True)
    for wire in WIRES:
        for name in (f"{wire} blocks", f"{wire} elements"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column(f"{wire} auto", no_wrap=True)
    for bucket in analysis.buckets:
        others = len(bucket.parameters) - 1
        name = bucket.parameters[0] + (f" and {others} more" if others else "")
        table.add_row(escape(f"bucket: {name}"), str(bucket.numel), *_forms(bucket.forms, bucket.iterations))
    table.add_section()
    for one in largest:
        table.add_row(escape(one.name), str(one.numel), *_forms(one.forms, len(analysis.iterations)))
    show(table, console)


def _forms(forms: Forms, iterations: int) -> list[str]:
    cells = []
    for wire in WIRES:
        form = forms[wire]
        times = round(form.by_elements * iterations)
        both = f"elements in {times} of {iterations}"
        auto = {0: "blocks", iterations: "elements"}.get(times, both)
        cells += [_number(form.blocks_bytes, 1e-6), _number(form.elements_bytes, 1e-6), auto]
    return cells


def _number(value: float | None, factor: float = 1.0) -> str:
    return "-" if value is None else f"{value * factor:.3g}"


def _write(path: Path, analysis: Analysis, link: str) -> None:
    """One object: version, command, link_gbps, and the analysis."""
    made = {
        "version": VERSION,
        "command": sys.argv[1:],
        "link_gbps": grid.bits_per_second(link) / 1e9,
        **asdict(analysis),
    }
    for row, written in zip(analysis.rows, made["rows"], strict=True):
        if row.expected is not None:
            written["expected"]["speed_up"] = row.expected.speed_up
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made, indent=1) + "\n")
