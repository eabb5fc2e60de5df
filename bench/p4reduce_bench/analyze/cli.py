# SPDX-License-Identifier: Apache-2.0
"""The command `p4reduce analyze`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from rich.console import Console
from rich.markup import escape
from typer import Argument, Option

from p4reduce.commands.tables import show
from p4reduce.protocol.constants import BLOCK_SIZES_ACCEPTED, DEFAULT_BLOCK_SIZE
from p4reduce_bench import outputs, recordings
from p4reduce_bench.allreduce import grid
from p4reduce_bench.analyze.analysis import Analysis, ParameterRow
from p4reduce_bench.analyze.analysis import analyze as analyze_recordings
from p4reduce_bench.analyze.forms import WIRES, Forms
from p4reduce_bench.options import JsonFile
from p4reduce_bench.outputs import number
from p4reduce_bench.processes.termination import command

VERSION = 1
SIZES = ",".join(str(size) for size in BLOCK_SIZES_ACCEPTED)


# fmt: off
def analyze(
    paths: Annotated[list[Path], Argument(metavar="FILE...", show_default=False,
        help=".npz files of gradients, one for each rank, or folders of such files.")],
    link: Annotated[str, Option(help="Rate of each worker's link, such as 10gbit.")] = "10gbit",
    workers: Annotated[int | None, Option(min=2, max=32, show_default=False, help="Number of workers. Default: the "
        "number of recorded ranks. If more, gradients of other iterations stand in.")] = None,
    block_sizes: Annotated[str, Option(help="Elements in a block, separated by commas.")] = SIZES,
    most: Annotated[int, Option("--parameters", min=0, help="Number of parameters to show, the largest first.")] = 12,
    json_file: JsonFile = None,
) -> None:
    # fmt: on
    """Measure how sparse recorded gradients are, and what the switch would gain over a dense ring allreduce."""
    console = Console()
    with command(stopped="stopped"):
        outputs.check(json_file=json_file)
        rate = grid.bits_per_second(link)
        sizes = [int(size) for size in grid.choices("--block-sizes", block_sizes, SIZES.split(","))]
        found = recordings.find(paths)
        with outputs.progress(console, transient=True) as progress:
            bar = progress.add_task("iterations", total=len(found))
            analysis = analyze_recordings(
                found, workers=workers, block_sizes=[1, *sizes], bits_per_second=rate,
                step=lambda: progress.advance(bar),
            )  # fmt: skip
        _print(console, analysis, link, most)
        if json_file is not None:
            _write(json_file, analysis, link)


def _print(console: Console, analysis: Analysis, link: str, most: int) -> None:
    """Print three tables: all parameters together, the largest ones, and the layouts of buckets and of these."""
    for iteration in analysis.incomplete:
        console.print(f"iteration {iteration} is left out: not all {analysis.ranks} ranks recorded it")
    elements = sum(one.numel for one in analysis.parameters)
    together = outputs.table(
        f"{elements} gradients of {analysis.ranks} ranks, {len(analysis.iterations)} iterations: "
        f"{analysis.workers} workers", ("by",),
        ("density %", "of sum %", "overlap", "densification", "skew", "ring ms", "switch ms", "speed-up"),
        f"ring, switch: least time on a {link} link for a dense ring allreduce, and for the non-zero blocks",
    )  # fmt: skip
    for row in analysis.rows:
        measures, times = row.measures, row.expected
        together.add_row(
            "element" if row.block_size == 1 else f"blocks of {row.block_size}",
            number(measures.density, 100), number(measures.union, 100), number(measures.overlap),
            number(measures.densification), number(measures.skew), number(times.ring_s if times else None, 1e3),
            number(times.switch_s if times else None, 1e3), number(times.speed_up if times else None),
        )  # fmt: skip
    show(together, console)
    largest = sorted(analysis.parameters, key=lambda one: -one.numel)[:most]
    if largest:
        _print_parameters(console, largest)
    _print_forms(console, analysis, largest, link)


def _print_parameters(console: Console, largest: Sequence[ParameterRow]) -> None:
    single = outputs.table(
        "by parameter", ("parameter",), ("elements", "density %", "blocks %", "of sum %", "overlap"),
        f"blocks of {DEFAULT_BLOCK_SIZE}, from the parameter's first element",
    )  # fmt: skip
    for one in largest:
        shares = (one.elements.density, one.blocks.density, one.blocks.union)
        single.add_row(escape(one.name), str(one.numel), *(number(share, 100) for share in shares),
                       number(one.blocks.overlap))  # fmt: skip
    show(single, console)


def _print_forms(console: Console, analysis: Analysis, largest: Sequence[ParameterRow], link: str) -> None:
    """Print the layouts of the buckets, and of parameters that are reduced by themselves."""
    table = outputs.table(
        'the layout that layout="auto" chooses, and MB that a worker receives with each', ("reduced",),
        ("elements", *(f"{wire} {name}" for wire in WIRES for name in ("blocks", "elements", "auto"))),
        f"on {link} links, by allreduce's estimates; hooks and the backend use blocks unless told otherwise",
    )  # fmt: skip
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
        cells += [number(form.blocks_bytes, 1e-6), number(form.elements_bytes, 1e-6), auto]
    return cells


def _write(path: Path, analysis: Analysis, link: str) -> None:
    """Write the analysis and link_gbps with `outputs.write_json`."""
    made = {"link_gbps": grid.bits_per_second(link) / 1e9, **asdict(analysis)}
    for row, written in zip(analysis.rows, made["rows"], strict=True):
        if row.expected is not None:
            written["expected"]["speed_up"] = row.expected.speed_up
    outputs.write_json(path, VERSION, made)
