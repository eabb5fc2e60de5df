# SPDX-License-Identifier: Apache-2.0
"""The measurement of all cases with all systems, and the least time that each case can take."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np
import typer
from rich.console import Console

from p4reduce.errors import P4ReduceError
from p4reduce_bench import outputs
from p4reduce_bench.allreduce import grid, mpi, report
from p4reduce_bench.allreduce.inputs import BLOCK, block_masks
from p4reduce_bench.allreduce.limit import Memory, Traffic, memory, traffic
from p4reduce_bench.allreduce.systems import Setup, measure
from p4reduce_bench.processes.switches import describe
from p4reduce_controller.p4runtime.builds import build_for


def chosen_systems(
    wanted: str | None, console: Console, also: Sequence[str] = (), usual: Sequence[str] = grid.SYSTEMS
) -> list[str]:
    """Return the systems of the option --systems, by default the installed ones of `usual`.

    also: names that the option accepts as well.
    """
    names = list(usual) if wanted is None else grid.choices("--systems", wanted, (*grid.ALL_SYSTEMS, *also))
    missing = {name: what for name in names if (what := mpi.missing(name))}
    for name, what in missing.items():
        if wanted is not None:
            raise P4ReduceError(f"--systems {wanted}: {name} is missing: {what}")
        console.print(f"without {name}: {what}", highlight=False, markup=False)
    return [name for name in names if name not in missing]


def end(rows: Sequence[report.Row], console: Console) -> None:
    """End a command that has shown its rows: with status 1 if any failed or had a wrong sum."""
    wrong, failed = any(row.wrong for row in rows), sum(row.error is not None for row in rows)
    if wrong:
        console.print("[red]some sums are wrong: see #wrong above[/]")
    if failed:
        console.print(f"[red]{failed} of {len(rows)} measurements failed: see above[/]")
    if wrong or failed:
        raise typer.Exit(1)


def measure_all(
    cases: Sequence[grid.Case], systems: Sequence[str], setup: Setup, rate: int | None, console: Console
) -> tuple[list[report.Row], Memory | None]:
    """Return rows in the order of the cases, and the rates of the memory if they are the limit.

    cases: ordered by number of workers.
    """
    grid.check(systems, cases)
    _check(systems, cases, setup)
    found: dict[tuple[grid.Case, str], report.Row] = {}
    here = None
    with outputs.progress(console) as progress:
        bar = progress.add_task("limits", total=len(cases) * len(systems))
        for workers, some in groupby(cases, lambda case: case.workers):
            group = list(some)
            progress.update(bar, description=f"{workers} workers: limits")
            if rate is None:
                here = memory(workers)
            limits = {case: limit(case, setup, rate, here) for case in group}
            for system in systems:
                progress.update(bar, description=f"{workers} workers: starting {system}")
                for case, figures in measure(system, group, setup):
                    target = describe(setup.target, setup.aggregators, setup.mtu)
                    row = report.row(system, target, case, figures, limits[case], rate, setup.way(case), setup.calls)
                    found[case, system] = row
                    said = row.error.splitlines()[0] if row.error else f"{row.median_s or 0:.4g} s"
                    progress.console.print(f"{system}, {case}: {said}", highlight=False, markup=False)
                    progress.update(bar, advance=1, description=f"{workers} workers: {system}")
    return [found[case, system] for case in cases for system in systems], here


def least_traffic(case: grid.Case, setup: Setup) -> Traffic:
    """Return the least traffic of the busiest host's link, if its workers send one stream."""
    build = build_for(setup.mtu)
    masks = block_masks(case, build.block_size)
    of_hosts = np.logical_or.reduce(masks.reshape(-1, case.ranks_per_host, masks.shape[1]), axis=1)
    return traffic(of_hosts, setup.slots_used, build.lanes, build.block_size)


def limit(case: grid.Case, setup: Setup, rate: int | None, here: Memory | None) -> float | None:
    """Return the least seconds of a case: on a host's link, or without links, in the memory that all ranks share.

    None if all workers are on one host with a link: they need not use it, and the memory was not measured.
    """
    if rate is not None and case.ranks_per_host == case.workers:
        return None
    if setup.in_memory(case) and here is not None:
        return floor(case, here)
    least = least_traffic(case, setup)
    if rate is not None:
        return least.seconds(rate)
    assert here is not None
    return here.seconds(_bytes_of_all(case), copied=case.workers * least.payload)


def floor(case: grid.Case, here: Memory) -> float:
    """Return the seconds to read each rank's tensor once, and to write the non-zero blocks of each result once."""
    union = float(np.logical_or.reduce(block_masks(case, BLOCK)).mean()) if case.numel else 0.0
    return here.seconds(_bytes_of_all(case), written=round(union * _bytes_of_all(case)))


def _bytes_of_all(case: grid.Case) -> int:
    return case.workers * case.numel * grid.DTYPES[case.dtype]


def _check(systems: Sequence[str], cases: Sequence[grid.Case], setup: Setup) -> None:
    """Raise P4ReduceError if a system does not support the setup."""
    for system in systems:
        if system in grid.ONE_HOST and not all(setup.in_memory(case) for case in cases):
            raise P4ReduceError(f"{system} reduces in the memory of one host: accepted with --local auto")
        if system not in grid.IN_PLACE and setup.calls > 1:
            raise P4ReduceError(f"--calls {setup.calls} with {system}: accepted are {', '.join(grid.IN_PLACE)}")
