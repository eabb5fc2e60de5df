# SPDX-License-Identifier: Apache-2.0
"""A soak test: many rounds through the native switch, with packet loss, where every sum is checked.

In a round of a slot, each worker sends a packet and gets one result. Workers, switch and controller are processes whose
memory is watched. With --state, a run adds to the runs before it, until all --rounds are done.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from p4reduce.commands.tables import show as show_table
from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.channel import open_channel
from p4reduce.errors import P4ReduceError
from p4reduce.local.host import digest
from p4reduce_bench.processes.children import Child, ChildFailed, ChildProcesses
from p4reduce_bench.processes.switches import rank_environment, start_controller, start_switches
from p4reduce_bench.processes.termination import command

VERSION = 1
SILENCE_S = 180.0
SUMMED = ("rounds", "operations", "elements_checked", "packets", "resent", "lost_in", "lost_out", "seconds")
PAGE = os.sysconf("SC_PAGE_SIZE")

Run = dict[str, Any]
Sample = tuple[float, int]
"""Rounds so far, bytes of memory."""


def resident(pid: int) -> int | None:
    """Return the bytes of a process that are in RAM; None for a process that has ended, also for a zombie."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * PAGE or None


def trend(samples: Sequence[Sample]) -> dict[str, float]:
    """Return how memory has changed, without the first quarter of the samples, in which programs still start up.

    slope_kib: by least squares, per million rounds. growth_kib: median of the last quarter minus that of the second.
    """
    rounds, sizes = (np.array(column, float) for column in zip(*samples, strict=True))
    quarter = len(sizes) // 4
    rounds, sizes = rounds[quarter:], sizes[quarter:] / 1024
    slope = np.polyfit(rounds / 1e6, sizes, 1)[0] if np.ptp(rounds) > 0 else 0.0
    growth = np.median(sizes[-max(1, quarter) :]) - np.median(sizes[: max(1, quarter)])
    return {"slope_kib": float(slope), "growth_kib": float(growth), "last_kib": float(sizes[-1])}


def soak(
    rounds: int,
    *,
    workers: int = 2,
    slots: int = 512,
    drop_rate: float = 0.01,
    threads: int = 1,
    rank_threads: int = 1,
    ranks_per_host: int = 1,
    seconds: float = float("inf"),
    on_progress: Callable[[Run], object] = lambda _: None,
) -> Run:
    """Run `rounds` rounds, or for so many seconds, or until KeyboardInterrupt; the counts are those of all workers.

    drop_rate: share of packets lost at the switch's port, each way.
    ranks_per_host: so many consecutive ranks take each other for ranks of one host, and send one stream.

    Raises ChildFailed when a sum is wrong (its message says which), or when a process ends or is silent for long.
    """
    with ChildProcesses() as processes:
        switches = start_switches(processes, "native", options=["--threads", str(threads)])
        address = start_controller(processes, switches, "--slots", str(slots), "--drop-rate", str(drop_rate))
        ranks = []
        for rank in range(workers):
            environment = rank_environment(
                rank,
                workers,
                controller=address,
                local="auto" if ranks_per_host > 1 else "off",
                threads=str(rank_threads),
            )
            ranks.append(processes.start(f"rank {rank}", "tests.chaos.soak_rank", str(slots), str(rounds),
                                         str(rank // ranks_per_host), environment=environment))  # fmt: skip
        return _follow(processes, list(processes.children), ranks, address, seconds, on_progress)


def _follow(
    processes: ChildProcesses,
    watched: Iterable[Child],
    ranks: Sequence[Child],
    controller: str,
    seconds: float,
    on_progress: Callable[[Run], object],
) -> Run:
    """Collect the ranks' reports until they end."""
    started = time.monotonic()
    last_reports: dict[int, Run] = {}
    memory: dict[str, list[Sample]] = defaultdict(list)
    run: Run = {"interrupted": False}
    events = processes.events(ranks, SILENCE_S)
    while True:
        try:
            if time.monotonic() - started > seconds:
                seconds = float("inf")
                _stop(ranks)
            _, event = next(events)
            if "error" in event:
                raise ChildFailed(event["error"])
            last_reports[event["rank"]] = event
            if len(last_reports) < len(ranks):
                continue
            said = last_reports.values()
            run |= {name: sum(each[name] for each in said) for name in ("elements_checked", "packets", "resent")}
            run["operations"] = min(each["operations"] for each in said)
            run["rounds"] = max(each["rounds"] for each in said)  # a stream's are its sender's
            run["backends"] = sorted({each["backend"] for each in said})
            run["seconds"] = time.monotonic() - started
            run |= {f"lost_{way}": lost for way, lost in packets_lost_on_purpose(controller).items()}
            for child in watched:
                if child.process.poll() is None and (size := resident(child.process.pid)) is not None:
                    memory[child.name].append((run["rounds"], size))
            on_progress(run)
        except KeyboardInterrupt:
            run["interrupted"] = True
            _stop(ranks)
            events = processes.events(ranks, SILENCE_S)
        except StopIteration:
            break
    run["memory"] = {name: trend(samples) for name, samples in memory.items() if len(samples) >= 4}
    return run


def packets_lost_on_purpose(controller: str) -> dict[str, int]:
    """Return the packets that the switches' ports have dropped, by direction: "in" (toward the switch) and "out"."""
    with open_channel(controller, None) as channel:
        reply: Any = rpc.JobsStub(channel).Status(pb.StatusRequest(), timeout=10)
    lost = {"in": 0, "out": 0}
    for switch in reply.switches:
        for port in switch.losses:
            lost["in" if port.direction == pb.IN else "out"] += port.lost
    return lost


def _stop(ranks: Iterable[Child]) -> None:
    for child in ranks:
        child.process.terminate()


def totals(runs: Sequence[Run]) -> Run:
    """Return the sums of all runs' counts, and for each process the run in which its memory has grown most."""
    made: Run = {name: sum(run[name] for run in runs) for name in SUMMED}
    made["runs"] = len(runs)
    made["memory"] = {}
    for run in runs:
        for name, found in run["memory"].items():
            worst = made["memory"].get(name)
            if worst is None or found["growth_kib"] > worst["growth_kib"]:
                made["memory"][name] = found
    return made


def _read(state: Path | None) -> list[Run]:
    if state is None or not state.exists():
        return []
    try:
        saved = json.loads(state.read_text())
        if saved["version"] != VERSION:
            raise ValueError(f"version {saved['version']}")
        runs: list[Run] = saved["runs"]
        totals(runs)
    except (ValueError, KeyError, TypeError) as error:
        raise P4ReduceError(f"--state {state}: {error!r}; accepted is a file that this program has written") from None
    return runs


def _show(found: Run, console: Console) -> None:
    table = Table(title="soak: every sum was right", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name in ("runs", *SUMMED[:-1]):
        table.add_row(name.replace("_", " "), f"{found[name]:,}")
    table.add_row("seconds", f"{found['seconds']:,.1f}")
    table.add_row("rounds a second", f"{found['rounds'] / found['seconds']:,.0f}")
    for name, memory in found["memory"].items():
        grown = f"{memory['last_kib'] / 1024:.1f} MiB, {memory['growth_kib']:+.0f} KiB"
        table.add_row(f"memory of {name}", f"{grown}, {memory['slope_kib']:+.1f} KiB a million rounds")
    show_table(table, console)


def main(
    rounds: Annotated[float, typer.Option(min=1, help="Rounds of slots, in all runs together.")] = 1e7,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds after which this run stops.")] = float("inf"),
    state: Annotated[
        Path | None, typer.Option(help="JSON file with the state: a run continues from it and writes to it.")
    ] = None,
    workers: Annotated[int, typer.Option(min=1, max=32)] = 2,
    slots: Annotated[
        int, typer.Option(min=1, max=512, help="Slots of the job, which is the number of packets in flight.")
    ] = 512,
    drop_rate: Annotated[
        float, typer.Option(min=0, max=0.5, help="Share of packets that the switch's port loses, in each direction.")
    ] = 0.01,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the switch.")] = 1,
    rank_threads: Annotated[int, typer.Option(min=1, help="Threads of each worker's engine.")] = 1,
    ranks_per_host: Annotated[
        int, typer.Option(min=1, help="Number of workers that send as one, like the ranks of one host.")
    ] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run rounds through the native switch with losses; check every sum and watch memory. Ctrl-C stops and reports."""
    console = Console(stderr=as_json)
    with command(stopped="stopped before the first round"):
        if 1 < ranks_per_host >= workers:
            raise P4ReduceError(
                f"--ranks-per-host {ranks_per_host} of --workers {workers}: accepted are fewer, so that there are hosts"
            )
        if ranks_per_host > 1 and (rank_threads > 1 or not digest()):
            why = (
                f"--rank-threads is {rank_threads}" if rank_threads > 1 else "this machine's processes share no memory"
            )
            raise P4ReduceError(f"--ranks-per-host {ranks_per_host}: no streams can be shared where {why}")
        runs = _read(state)
        before = sum(run["rounds"] for run in runs)
        if before < rounds:
            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            with Progress(*columns, console=console) as progress:
                bar = progress.add_task("starting", total=rounds, completed=before)

                def show(run: Run) -> None:
                    done = before + run["rounds"]
                    said = f"{done:,} rounds, {run['lost_in'] + run['lost_out']:,} lost, {run['resent']:,} resent"
                    progress.update(bar, completed=done, description=said)

                run = soak(round(rounds - before), workers=workers, slots=slots, drop_rate=drop_rate, threads=threads,
                           rank_threads=rank_threads, ranks_per_host=ranks_per_host, seconds=seconds,
                           on_progress=show)  # fmt: skip
            if "rounds" in run:
                runs.append(run)
            if state is not None:
                state.parent.mkdir(parents=True, exist_ok=True)
                state.write_text(json.dumps({"version": VERSION, "runs": runs}, indent=1) + "\n")
    if not runs:
        console.print("stopped before the first round")
        raise typer.Exit(130)
    found = totals(runs)
    if as_json:
        print(json.dumps({"version": VERSION, **found}))
    else:
        _show(found, console)
    if runs[-1]["interrupted"]:
        raise typer.Exit(130)


if __name__ == "__main__":
    typer.run(main)
