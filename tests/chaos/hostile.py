# SPDX-License-Identifier: Apache-2.0
"""The effect of a hostile tenant on another tenant.

For each attack, the other tenant's joins and allreduces are timed without it and during it. Afterwards the hostile
tenant tries to see and to end the other's job.
"""

from __future__ import annotations

import json
import re
import secrets
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import grpc
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from p4reduce import Communicator
from p4reduce.commands.tables import show as show_table
from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.channel import code_of, details
from p4reduce.control.grpc_channels import open_grpc_channel
from p4reduce.errors import P4ReduceError
from p4reduce.join.joining import join_job
from p4reduce.join.options import JoinOptions
from p4reduce_bench.processes.children import Child
from p4reduce_bench.processes.switches import START_UP_S, start_controller, start_switches
from p4reduce_bench.processes.termination import command
from tests.chaos.site import TARGET_HELP, check_target, child_processes, users_file

VERSION = 1
ATTACKS = ("joins", "statuses", "heartbeats", "slots", "connections", "streams", "giants")

RANKS = 4
SLOTS = 8
SETTLE_S = 1.0
PACE_S = 0.02
JOIN_PACE_S = 0.06  # its ranks begin within its own limit
QUOTA = {"victim": 4, "villain": 8}

Figures = dict[str, Any]


class Victim:
    """A tenant with a job that runs, and others that begin one after the other."""

    def __init__(self, controller: str, token: str) -> None:
        self._controller, self._token = controller, token
        self._calls: list[float] = []
        self._numbers = count()
        self._over = threading.Event()
        self.failures: list[str] = []
        self._rank = threading.Thread(target=self._reduce, name="victim", daemon=True)
        self._rank.start()

    def close(self) -> None:
        self._over.set()
        self._rank.join(START_UP_S)

    def measure(self, seconds: float) -> Figures:
        """Return the median and the longest time of joins and allreduces within so many seconds."""
        self._calls.clear()
        joins: list[float] = []
        until = time.monotonic() + seconds
        with ThreadPoolExecutor(RANKS) as pool:
            while time.monotonic() < until:
                try:
                    joins.append(self._join(pool))
                    time.sleep(JOIN_PACE_S)
                except P4ReduceError as error:
                    self.failures.append(str(error))
        return {"join_s": _spread(joins), "allreduce_s": _spread(self._calls[:])}

    def _join(self, pool: ThreadPoolExecutor) -> float:
        name, began = f"joins-{next(self._numbers)}", time.perf_counter()

        def one(rank: int) -> float:
            options = JoinOptions(self._controller, name, rank, RANKS, slots=SLOTS, token=self._token, timeout=30.0)
            joined = join_job(options, on_abort=lambda _: None)
            took = time.perf_counter() - began
            joined.leave()
            return took

        return max(pool.map(one, range(RANKS)))

    def _reduce(self) -> None:
        try:
            with Communicator(
                self._controller, job="mine", rank=0, world_size=1, slots=SLOTS, token=self._token, local="off"
            ) as communicator:
                while not self._over.wait(PACE_S):
                    tensor = np.ones(1 << 14, np.float32)
                    began = time.perf_counter()
                    communicator.allreduce(tensor)
                    self._calls.append(time.perf_counter() - began)
                    if not (tensor == 1).all():
                        raise P4ReduceError("a sum was wrong")
        except P4ReduceError as error:
            self.failures.append(f"its job: {error}")


def reach(controller: str, token: str) -> dict[str, str]:
    """Return the reply to each request of another tenant about the victim's job; "" if the request succeeds."""
    key = pb.ClientMessage(rejoin=pb.Rejoin(job=1, generation=1, rank=0, key="0" * 32))
    asks: dict[str, tuple[str, Any]] = {
        "see it": ("Status", pb.StatusRequest()),
        "end it": ("AbortJob", pb.AbortJobRequest(job="mine")),
        "end it by the tenant's name": ("AbortJob", pb.AbortJobRequest(job="mine", tenant="victim")),
        "read its slots": ("Slots", pb.SlotsRequest(job="mine", tenant="victim")),
        "take a rank's seat": ("Session", iter([key])),
        "lose its packets": ("SetLoss", pb.SetLossRequest(rate=1.0)),
        "take its switch away": ("RemoveSwitch", pb.RemoveSwitchRequest(name="x", now=True)),
    }
    metadata = (("authorization", f"Bearer {token}"),)
    heard: dict[str, str] = {}
    with open_grpc_channel(controller) as channel:
        for what, (method, request) in asks.items():
            try:
                reply = getattr(rpc.JobsStub(channel), method)(request, timeout=10, metadata=metadata)
                said = str(list(reply) if method == "Session" else reply)
                harmless = method in ("Status", "Session") and not re.search(r"victim|mine|ready \{", said)
                heard[what] = "nothing of it" if harmless else ""
            except grpc.RpcError as error:
                heard[what] = "" if "victim" in str(error) else f"{code_of(error)}: {details(error)}"
    return heard


def measure(
    seconds: float,
    attacks: Sequence[str],
    options: Sequence[str],
    on_progress: Callable[[str], object],
    target: str = "native",
) -> Figures:
    """Measure the victim before each attack and during it. `options`: of the controller. Raises ChildFailed."""
    tokens = {name: secrets.token_urlsafe(32) for name in ("operator", *QUOTA)}
    with child_processes(target) as processes, tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "users.toml"
        file.write_text(users_file(tokens, QUOTA, SLOTS))
        controller = start_controller(processes, start_switches(processes, target), "--users", str(file), *options)
        process = processes.children[-1]
        victim = Victim(controller, tokens["victim"])
        victim.measure(SETTLE_S)
        rows: dict[str, Figures] = {}
        for attack in attacks:
            on_progress(f"before {attack}")
            alone = victim.measure(seconds)
            environment = {"P4REDUCE_CONTROLLER": controller, "P4REDUCE_TOKEN": tokens["villain"]}
            on_progress(attack)
            child = processes.start(attack, "tests.chaos.attacks", attack, environment=environment)
            child.first(START_UP_S)
            time.sleep(SETTLE_S)
            beside = victim.measure(seconds)
            rows[attack] = {"alone": alone, "beside": beside, "attacker": _last(child), "memory": _memory(process)}
            child.stop(grace=0.1)
            processes.children.remove(child)
        found = {"rows": rows, "reach": reach(controller, tokens["villain"]), "failures": victim.failures}
        victim.close()
        return found


def _last(child: Child) -> dict[str, int]:
    said = child.read()
    return said[-1] if said else {}


def _memory(child: Child) -> int:
    """Return the bytes of the process that are in RAM."""
    pages = int(Path(f"/proc/{child.process.pid}/statm").read_text().split()[1])
    return pages * 4096


def _spread(values: list[float]) -> Figures:
    if not values:
        return {"count": 0, "median": float("inf"), "longest": float("inf")}
    return {"count": len(values), "median": statistics.median(values), "longest": max(values)}


def main(
    seconds: Annotated[float, typer.Option(min=0.5, help="Length of each measurement, in seconds.")] = 8.0,
    attack: Annotated[list[str] | None, typer.Option(help="Attack to run. May be repeated. Default: all.")] = None,
    controller_option: Annotated[
        list[str] | None, typer.Option(help="Option for the controller, such as --lease=5.")
    ] = None,
    target: Annotated[str, typer.Option(help=TARGET_HELP)] = "native",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Attack a controller as one tenant, and measure what another notices."""
    console = Console(stderr=as_json)
    with command():
        check_target(target, "tests.chaos.hostile")
        if unknown := set(attack or ()) - set(ATTACKS):
            raise P4ReduceError(f"--attack {', '.join(sorted(unknown))}: accepted are {', '.join(ATTACKS)}")
        with console.status("starting") as status:
            found = measure(seconds, attack or ATTACKS, controller_option or (), status.update, target)
        if as_json:
            print(json.dumps({"version": VERSION, **found}))
        else:
            _show(found, console)


def _show(found: Figures, console: Console) -> None:
    table = Table(
        "attack", *("join ms", "beside it", "allreduce ms", "beside it", "longest", "let in", "refused", "MiB")
    )
    for attack, row in found["rows"].items():
        alone, beside = row["alone"], row["beside"]
        figures = [f"{1e3 * one[key]['median']:.1f}" for key in ("join_s", "allreduce_s") for one in (alone, beside)]
        longest, said = beside["allreduce_s"]["longest"], row["attacker"]
        counts = [f"{said.get(key, 0):,}" for key in ("let_in", "refused")]
        table.add_row(attack, *figures, f"{1e3 * longest:.1f}", *counts, f"{row['memory'] / 2**20:.0f}")
    show_table(table, console)
    for what, answer in found["reach"].items():
        console.print(f"{what}: {answer or '[red]yes[/]'}", highlight=False)
    for text in found["failures"]:
        console.print(f"[red]the victim fails:[/] {text}", highlight=False)


if __name__ == "__main__":
    typer.run(main)
