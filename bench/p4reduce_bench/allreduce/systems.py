# SPDX-License-Identifier: Apache-2.0
"""Starts a system with its ranks, and collects what they measured."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from p4reduce import settings
from p4reduce.errors import P4ReduceError
from p4reduce.local.host import LOCAL_CHOICES
from p4reduce_bench.allreduce import mpi
from p4reduce_bench.allreduce.grid import MPIS, SWITCHED, Case
from p4reduce_bench.allreduce.links import CONTROL, INTERFACE, SWITCH, Links
from p4reduce_bench.processes.children import Child, ChildFailed, Family
from p4reduce_bench.processes.switches import START_UP_S, start_switches
from p4reduce_controller.jobs.admission import DEFAULT_SLOTS
from p4reduce_controller.p4runtime.builds import DEFAULT_MTU, build_for

_DEFAULT_SLOTS = {"native": 512, "sim": 64, "bmv2": 16}
# More slots than these do not make links faster: the packets wait in the links' queues, and take more processor time.
_LINK_SLOTS = DEFAULT_SLOTS  # of links of at most 1 Gbit/s
_FAST_LINK_SLOTS = 64

Figures = dict[int, dict[str, Any]]
"""What each rank measured, by rank."""


@dataclass(frozen=True)
class Setup:
    """How all cases are run."""

    target: str
    slots: int
    threads: int
    repeat: int
    warm_up: int
    timeout: float
    links: Links | None = None
    aggregators: int = 1
    local: str = "off"
    mtu: int = DEFAULT_MTU
    rank_threads: int = 1
    """Of each of p4reduce's ranks, where packets are sent."""
    calls: int = 1
    """In a row, each repetition."""

    def in_memory(self, case: Case) -> bool:
        """Whether p4reduce's ranks are all on one host and reduce in its memory."""
        together = self.links is None or case.ranks_per_host == case.workers
        return self.local == "auto" and self.target != "bmv2" and together

    def way(self, case: Case) -> str:
        """How p4reduce's ranks share hosts and streams, where that is not each for itself; or ""."""
        if self.in_memory(case):
            return "in memory"
        threads = [f"{self.rank_threads} threads a rank"] if self.rank_threads > 1 else []
        if case.ranks_per_host == 1:
            return "".join(threads)
        return ", ".join(["a stream a rank" if self.local == "off" or threads else "a stream a host", *threads])

    @property
    def slots_used(self) -> int:
        """`slots`, or where that is 0, what suits the target and the links."""
        build, usual = build_for(self.mtu), build_for(DEFAULT_MTU)
        suits = _DEFAULT_SLOTS[self.target] * usual.mtu // build.mtu or 1  # as many bytes under way
        if self.links is not None:
            suits = min(suits, _LINK_SLOTS if self.links.rate <= 10**9 else _FAST_LINK_SLOTS)
        return self.slots or suits


def rank_threads() -> int:
    """As P4REDUCE_THREADS says, which ranks inherit. Raises P4ReduceError."""
    try:
        return settings.threads(None)
    except ValueError as error:
        raise P4ReduceError(str(error)) from None


def check_local(local: str, given: str, *, linked: bool, shared: bool) -> None:
    """Raise P4ReduceError where --local is none, or do not go with --input, --link and --ranks-per-host."""
    if local not in LOCAL_CHOICES:
        raise P4ReduceError(f"--local {local}: accepted are {', '.join(LOCAL_CHOICES)}")
    if local == "auto" and linked and not shared:
        raise P4ReduceError(
            "--local auto with --link: each worker is on a host of its own; accepted are off, and --ranks-per-host "
            "beside it"
        )
    if local == "off" and "shared" in given.split(","):
        raise P4ReduceError(f"--input {given} with --local off, which shares no memory: accepted is --local auto")


@dataclass(frozen=True)
class Failed:
    """A case that a system did not do, and why."""

    reason: str


def measure(system: str, cases: Sequence[Case], setup: Setup) -> Iterator[tuple[Case, Figures | Failed]]:
    """Every case with its figures, all cases of one number of workers. A system that fails is started again."""
    waiting = list(cases)
    while waiting:
        done = 0
        try:
            for figures in _run(system, waiting, setup):
                yield waiting[done], figures
                done += 1
        except ChildFailed as error:
            failed = waiting[done:] if isinstance(error, _NeverStarted) else waiting[done : done + 1]
            for case in failed:
                yield case, Failed(str(error))
            done += len(failed)
        del waiting[:done]


class _NeverStarted(ChildFailed):
    """A system that will not start for the next case either."""


def _run(system: str, cases: Sequence[Case], setup: Setup) -> Iterator[Figures]:
    workers = cases[0].workers
    with Family() as family:
        environment = {"WORLD_SIZE": str(workers), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment["P4REDUCE_LOCAL"] = setup.local
        if setup.links is not None:
            environment["P4REDUCE_LINK"] = f"{setup.links.rate / 1000:.12g}kbit"
        try:
            if system in SWITCHED:
                environment["P4REDUCE_CONTROLLER"] = start_switch(family, workers, setup)
            else:
                environment |= rendezvous(setup.links)
            ranks = _start_ranks(family, system, cases, setup, environment)
        except ChildFailed as error:
            raise _NeverStarted(str(error)) from None
        silence = START_UP_S + setup.timeout * (setup.repeat + setup.warm_up)
        yield from collect(family, ranks, workers, len(cases), silence)


def collect(family: Family, ranks: Sequence[Child], world: int, cases: int, silence: float) -> Iterator[Figures]:
    """What `world` ranks report, case by case. Raises ChildFailed, also when nothing comes for `silence` seconds."""
    reported: list[Figures] = [{} for _ in range(cases)]
    done = 0
    for _, event in family.events(ranks, silence):
        if "error" in event:
            raise (_NeverStarted if event["case"] < 0 else ChildFailed)(event["error"])
        reported[event["case"]][event["rank"]] = event
        while done < cases and len(reported[done]) == world:
            yield reported[done]
            done += 1
    if done < cases:
        raise ChildFailed("the ranks ended early")


def start_switch(family: Family, workers: int, setup: Setup) -> str:
    """Start the target's switches and their controller; gives the controller's address."""
    if setup.target == "bmv2":
        ports, address = [f"{port}=eth:port{port}" for port in range(1, workers + 1)], "10.0.0.254:31314"
    else:
        ports, address = [f"1=udp:{SWITCH if setup.links else '127.0.0.1'}:0"], ""
    threads = ["--threads", str(setup.threads)] if setup.threads > 1 else []
    places = start_switches(family, setup.target, ports, address=address, aggregators=setup.aggregators,
                            options=threads)  # fmt: skip
    listen = ["--listen", f"{CONTROL}:0", "--insecure"] if setup.links else ["--listen", "127.0.0.1:0"]
    controller = family.start("controller", "p4reduce", "controller", *places, *listen,
                              "--mtu", str(setup.mtu), "--json")  # fmt: skip
    return str(controller.first(START_UP_S)["listen"])


def rendezvous(links: Links | None) -> dict[str, str]:
    """Where torch's ranks meet."""
    if links is not None:
        return {"MASTER_ADDR": links.address(0), "MASTER_PORT": "29500", "GLOO_SOCKET_IFNAME": INTERFACE}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}


def _start_ranks(
    family: Family, system: str, cases: Sequence[Case], setup: Setup, environment: dict[str, str]
) -> list[Child]:
    workers = cases[0].workers
    bmv2 = system in SWITCHED and setup.target == "bmv2"
    commands, environments = [], []
    for rank in range(workers):
        command = rank_command(system, cases, setup)
        if bmv2:
            command += ["--interface", f"worker{rank}"]
        if setup.links is not None:
            command = setup.links.inside(rank // cases[0].ranks_per_host, [*command, "--counted", INTERFACE])
        commands.append(command)
        environments.append({**environment, "RANK": str(rank), "P4REDUCE_TRANSPORT": "raw" if bmv2 else "udp"})
    if system in MPIS:
        joined = [part for command in commands for part in (":", "-n", "1", *command)][1:]
        interface = None if setup.in_memory(cases[0]) else INTERFACE if setup.links else "lo"
        all_ranks = {**environment, **mpi.environment(system, interface)}
        ranks = [Child("mpirun", [mpi.mpirun(system), *joined], all_ranks)]
    else:
        ranks = [
            Child(f"{system} rank {rank}", command, variables)
            for rank, (command, variables) in enumerate(zip(commands, environments, strict=True))
        ]
    family.children.extend(ranks)
    return ranks


def rank_command(system: str, cases: Sequence[Case], setup: Setup) -> list[str]:
    """What runs one rank; torchrun's variables tell it which."""
    return [
        sys.executable, "-m", "p4reduce_bench.allreduce.rank", "--system", system, "--cases",
        json.dumps([asdict(case) for case in cases]), "--repeat", str(setup.repeat),
        "--warm-up", str(setup.warm_up), "--timeout", str(setup.timeout),
        "--slots", str(setup.slots_used), "--calls", str(setup.calls),
    ]  # fmt: skip
