# SPDX-License-Identifier: Apache-2.0
"""Jobs of three tenants, while ranks, controllers and members of etcd are killed and stopped at random.

The jobs run over switches (--target), two controllers and etcd. Every sum is checked, and every error must say who
failed and why. In the end no slot may be missing, and no table entry left.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from p4reduce.commands.tables import show as show_table
from p4reduce.errors import P4ReduceError
from p4reduce_bench.processes.termination import command
from tests.chaos.ranks import LONG_S
from tests.chaos.run import Run
from tests.chaos.site import TARGET_HELP, check_target

VERSION = 1


def main(
    jobs: Annotated[int, typer.Option(min=1)] = 200,
    at_a_time: Annotated[int, typer.Option(min=3, help="Number of jobs at a time, from three tenants in turn.")] = 16,
    ranks: Annotated[int, typer.Option(min=1, max=32, help="Ranks of each job.")] = 4,
    switches: Annotated[int, typer.Option(min=1, max=8, help="Number of switches that share the slots.")] = 2,
    seed: Annotated[int, typer.Option(help="Seed of the order of events; the timing of processes still varies.")] = 1,
    faults: Annotated[bool, typer.Option(help="Kill and stop processes.")] = True,
    target: Annotated[str, typer.Option(help=TARGET_HELP)] = "native",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run jobs in chaos and check everything. Ends with status 1 where something was wrong. Needs etcd."""
    console = Console(stderr=as_json)
    with command():
        check_target(target, "tests.chaos")
        columns = (BarColumn(), TextColumn("{task.completed}/{task.total} jobs"), TimeElapsedColumn())
        with Progress(*columns, TextColumn("{task.description}"), console=console) as progress:
            bar = progress.add_task("starting", total=jobs)

            def show(done: int, what: str) -> None:
                progress.update(bar, completed=done, **({"description": what} if what else {}))  # type: ignore[arg-type]

            found = Run(
                jobs=jobs,
                at_a_time=at_a_time,
                ranks=ranks,
                switches=switches,
                seed=seed,
                faults=faults,
                target=target,
                on_progress=show,
            ).measure()
        if as_json:
            print(json.dumps({"version": VERSION, "seed": seed, **found}))
        else:
            _show(found, console)
        if found["problems"]:
            raise P4ReduceError(f"{len(found['problems'])} things were wrong, the first: {found['problems'][0]}")


def _show(found: dict[str, Any], console: Console) -> None:
    table = Table(title=f"chaos: {len(found['problems'])} things were wrong", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name in ("jobs", "attempts", "done_well", "ranks_killed", "ranks_stopped", "errors", "quota_samples"):
        table.add_row(name.replace("_", " "), f"{found[name]:,}")
    for what, count in found["faults"].items():
        table.add_row(what, f"{count}")
    for name, title in (("join_s", "join to ready"), ("serves_after_s", "served again after a kill or end")):
        spread = found[name]
        if spread["count"]:
            figures = " / ".join(f"{1e3 * spread[key]:.0f}" for key in ("median", "p95", "longest"))
            table.add_row(f"{title}, ms (median / 95th percentile / longest)", figures)
    for name, title in (
        ("pause_s", "longest pause of a loop as controllers change"),
        ("longest_gap_s", "longest of all"),
    ):
        table.add_row(f"{title}, ms", f"{1e3 * found[name]:.0f}" if found[name] else f"under {1e3 * LONG_S:.0f}")
    table.add_row("seconds", f"{found['seconds']:.1f}")
    show_table(table, console)
    for text in found["problems"]:
        console.print(f"[red]wrong:[/] {text}", highlight=False, soft_wrap=True, markup=True)


if __name__ == "__main__":
    typer.run(main)
