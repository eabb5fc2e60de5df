# SPDX-License-Identifier: Apache-2.0
"""Switches of a running job are killed at random moments, or an uplink is cut, until one aggregator or a spare is left.

The job's ranks add without a pause, and check every sum bit for bit. The figures are the times for which they paused:
the longest gap between two results of a rank. Each job has several aggregators, or the trees of several spines, and
its ranks have one to four threads. When all but one are lost, or all but the spare, the job ends, the switches are
started again, and the next job begins.
"""

from __future__ import annotations

import json
import random
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Annotated

import typer
from rich.console import Console

from p4reduce_bench.processes.termination import command
from tests.support.cluster.rank import Call
from tests.support.cluster.stack import Ranks, Stack, go_on, job, over_udp, slots_used
from tests.support.waiting import wait_until

CALLS = [Call((size,), density=density, seed=size) for size in (40, 3000, 20_000) for density in (0.1, 1.0)]
LIMIT_S = 60.0  # for ranks to go on


@dataclass(frozen=True)
class Lost:
    """One loss, and the pause of the ranks in seconds. also: the loss came while another one's slots moved."""

    what: str
    pause_s: float
    also: bool


def pause_since(ranks: Ranks, since: float) -> float:
    """Return the longest gap between two results of a rank, of which the second came after `since` (Unix time)."""
    gaps = [0.0]
    for events in ranks.events.values():
        times = [event["at"] for event in events if "done" in event]
        gaps += [after - before for before, after in pairwise(times) if after > since]
    return max(gaps)


def cut(stack: Stack, leaf: int, port: int, rate: int) -> None:
    """Let a leaf lose every packet at a port, or none."""
    options = ["--controller", stack.controller, "--switch", stack.names[leaf]]
    arguments = [sys.executable, "-m", "p4reduce", "loss", "--port", str(port), "--rate", str(rate), *options]
    subprocess.run(arguments, check=True, capture_output=True, timeout=LIMIT_S)


def lose_all_but_one(
    stack: Stack, choose: random.Random, spines: int, spare: int | None, name: str, console: Console
) -> list[Lost]:
    """Run a job, and lose its aggregators one after the other. Raises AssertionError if the job does not go on well.

    spare: the index of the spare, which is the one that is left.
    """
    count = spines or len(stack.switches)
    found, cuts = [], []
    at = stack.names[spines:] if spines else ()
    options = {"threads": choose.choice((1, 2, 3, 4)), "at": at, "local": "off"}
    console.print(f"{name}: {options['threads']} threads a rank")
    with stack.ranks(CALLS, job=name, world_size=4, repeat=True, timeout=LIMIT_S, **options) as ranks:
        go_on(ranks)
        order = choose.sample(range(count), count)
        order.remove(order[0] if spare is None else spare)
        together = choose.random() < 0.3
        for number, index in enumerate(order):
            ranks.work(choose.uniform(0, 0.5))
            since = time.time()
            if spines and choose.random() < 0.3:
                leaf = choose.randrange(spines, len(stack.names))
                cut(stack, leaf, 2 + index, 1)
                cuts.append((leaf, 2 + index))
                what = "uplink"
            else:
                stack.switches[index].process.kill()
                what = "spine" if spines else "switch"
            if together and number + 1 < len(order):
                found.append((what, since, True))
                ranks.work(choose.uniform(0, 6))
                continue
            wait_until(
                lambda n=number: sum("went on at" in text for text in job(stack, name)["in_trouble"]) == n + 1,
                f"{number + 1} takeovers",
                LIMIT_S,
            )
            go_on(ranks)
            found.append((what, since, together and number > 0))
        losses = [Lost(what, pause_since(ranks, since), also) for what, since, also in found]
    for leaf, port in cuts:
        cut(stack, leaf, port, 0)
    for index in order:
        if stack.switches[index].process.poll() is not None:
            stack.restart_switch(index)
    wait_until(lambda: slots_used(stack) == 0, "all slots to be free", LIMIT_S)
    wait_until(lambda: all(one["state"] == "Ready" for one in stack.status()["switches"]), "all switches", LIMIT_S)
    for one in losses:
        console.print(f"{one.what}{', while others moved' if one.also else ''}: paused for {one.pause_s:.1f} s")
    return losses


def main(
    losses: Annotated[int, typer.Option(min=1, help="How many switches or uplinks to lose, at least.")] = 20,
    aggregators: Annotated[
        int, typer.Option(min=1, help="Aggregators, or spines above two leaves, of a job; without a spare, at least 2.")
    ] = 3,
    with_spare: Annotated[bool, typer.Option("--spare", help="Add a spare, and lose all aggregators.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of what is lost, and when.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Kill switches of running jobs at random moments, and print how long the ranks paused."""
    console, choose = Console(stderr=as_json), random.Random(seed)
    found: list[Lost] = []
    if aggregators < 2 and not with_spare:
        raise typer.BadParameter(f"{aggregators}: accepted are 2 or more without --spare", param_hint="--aggregators")
    with command():
        while len(found) < losses:
            count, spare = aggregators + with_spare, aggregators if with_spare else None
            spines = count if choose.random() < 0.5 else 0
            shape = {"leaves": 2, "spines": spines} if spines else {"aggregators": count}
            with over_udp(target="native", spare=spare, **shape) as stack:
                for number in range(3):
                    if len(found) < losses:
                        found += lose_all_but_one(stack, choose, spines, spare, f"job {number}", console)
        pauses = sorted(one.pause_s for one in found)
        if as_json:
            print(json.dumps({"seed": seed, "losses": [asdict(one) for one in found]}))
        console.print(
            f"{len(found)} losses, every sum right; pauses: median {statistics.median(pauses):.1f} s, "
            f"longest {pauses[-1]:.1f} s"
        )


if __name__ == "__main__":
    typer.run(main)
