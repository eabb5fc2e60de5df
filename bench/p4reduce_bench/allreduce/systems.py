# SPDX-License-Identifier: Apache-2.0
"""The start of a system with its ranks, and the collection of the ranks' figures."""

from __future__ import annotations

import json
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
from p4reduce_bench.processes.children import Child, ChildFailed, ChildProcesses
from p4reduce_bench.processes.switches import (
    START_UP_S,
    rank_environment,
    rendezvous,
    start_controller,
    start_switches,
)
from p4reduce_controller.jobs.admission import DEFAULT_SLOTS
from p4reduce_controller.p4runtime.builds import DEFAULT_MTU, build_for

_TARGET_SLOTS = {"native": 512, "sim": 64, "bmv2": 16}
# More slots than these do not make links faster: the packets wait in the links' queues, and take more processor time.
_LINK_SLOTS = DEFAULT_SLOTS  # of links of at most 1 Gbit/s
_FAST_LINK_SLOTS = 64

Figures = dict[int, dict[str, Any]]
"""The figures of each rank, by rank."""


@dataclass(frozen=True)
class Setup:
    """The settings that all cases have in common."""

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
    """Threads of the engine of each p4reduce rank that sends packets."""
    calls: int = 1
    """Calls in a row of each repetition."""
    drop_rate: float = 0.0
    """The share of packets that the switch loses at each port, in each direction."""

    def in_memory(self, case: Case) -> bool:
        """Return whether p4reduce's ranks are all on one host and reduce in its memory."""
        together = self.links is None or case.ranks_per_host == case.workers
        return self.local == "auto" and self.target != "bmv2" and together

    def way(self, case: Case) -> str:
        """Return how p4reduce's ranks share hosts and streams; "" if each sends for itself."""
        if self.in_memory(case):
            return "in memory"
        threads = [f"{self.rank_threads} threads a rank"] if self.rank_threads > 1 else []
        if case.ranks_per_host == 1:
            return "".join(threads)
        alone = self.local == "off" or self.rank_threads > 1  # ranks with several threads share no stream
        return ", ".join(["a stream a rank" if alone else "a stream a host", *threads])

    def rendezvous(self) -> dict[str, str]:
        """Return the variables by which torch's ranks find each other."""
        return rendezvous() if self.links is None else rendezvous(self.links.address(0), INTERFACE)

    def on_host(self, host: int, command: list[str]) -> list[str]:
        """Return the command of a rank, which on links runs on its host and counts the traffic of the host's link."""
        return command if self.links is None else self.links.inside(host, [*command, "--counted", INTERFACE])

    @property
    def slots_used(self) -> int:
        """The slots of a job: `slots`, or if that is 0, what suits the target and the links."""
        build, usual = build_for(self.mtu), build_for(DEFAULT_MTU)
        suits = _TARGET_SLOTS[self.target] * usual.mtu // build.mtu or 1  # as many bytes under way
        if self.links is not None:
            suits = min(suits, _LINK_SLOTS if self.links.rate <= 10**9 else _FAST_LINK_SLOTS)
        return self.slots or suits


def rank_threads() -> int:
    """Return the value of P4REDUCE_THREADS, which ranks inherit. Raises P4ReduceError."""
    try:
        return settings.threads(None)
    except ValueError as error:
        raise P4ReduceError(str(error)) from None


def check_local(local: str, given: str, *, linked: bool, shared: bool) -> None:
    """Raise P4ReduceError if --local is unknown, or does not fit --input, --link and --ranks-per-host."""
    if local not in LOCAL_CHOICES:
        raise P4ReduceError(f"--local {local}: accepted are {', '.join(LOCAL_CHOICES)}")
    if local == "auto" and linked and not shared:
        raise P4ReduceError(
            "--local auto with --link: each worker is on a host of its own; accepted are --local off, or --local auto "
            "with --ranks-per-host"
        )
    if local == "off" and "shared" in given.split(","):
        raise P4ReduceError(f"--input {given} with --local off, which shares no memory: accepted is --local auto")


@dataclass(frozen=True)
class Failed:
    """The reason why a system failed on a case."""

    reason: str


def measure(system: str, cases: Sequence[Case], setup: Setup) -> Iterator[tuple[Case, Figures | Failed]]:
    """Yield every case with its figures; all have the same number of workers. A failed system is started again."""
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
    """The failure of a system that would not start for the next case either."""


def _run(system: str, cases: Sequence[Case], setup: Setup) -> Iterator[Figures]:
    workers = cases[0].workers
    with ChildProcesses() as processes:
        try:
            if system in SWITCHED:
                environment = {"P4REDUCE_CONTROLLER": start_switch(processes, workers, setup)}
            else:
                environment = setup.rendezvous()
            ranks = _start_ranks(processes, system, cases, setup, environment)
        except ChildFailed as error:
            raise _NeverStarted(str(error)) from None
        silence = START_UP_S + setup.timeout * (setup.repeat + setup.warm_up)
        yield from collect(processes, ranks, workers, len(cases), silence)


def collect(
    processes: ChildProcesses, ranks: Sequence[Child], world: int, cases: int, silence: float
) -> Iterator[Figures]:
    """Yield the figures of `world` ranks, case by case. Raises ChildFailed, also after `silence` seconds of silence."""
    reported: list[Figures] = [{} for _ in range(cases)]
    done = 0
    for _, event in processes.events(ranks, silence):
        if "error" in event:
            # Case -1: the rank failed before its first case, and would again.
            raise (_NeverStarted if event["case"] < 0 else ChildFailed)(event["error"])
        reported[event["case"]][event["rank"]] = event
        while done < cases and len(reported[done]) == world:
            yield reported[done]
            done += 1
    if done < cases:
        raise ChildFailed("the ranks ended early")


def start_switch(processes: ChildProcesses, workers: int, setup: Setup) -> str:
    """Start the target's switches and their controller; return the controller's address."""
    linked = setup.links is not None
    switches = start_switches(
        processes, setup.target, cables=workers if setup.target == "bmv2" else 0,
        host=SWITCH if linked else "127.0.0.1",
        aggregators=setup.aggregators, options=["--threads", str(setup.threads)] if setup.threads > 1 else [],
    )  # fmt: skip
    options = ["--mtu", str(setup.mtu), *(["--drop-rate", str(setup.drop_rate)] if setup.drop_rate else [])]
    if linked:
        return start_controller(processes, switches, *options, "--insecure", listen=f"{CONTROL}:0")
    return start_controller(processes, switches, *options)


def _start_ranks(
    processes: ChildProcesses, system: str, cases: Sequence[Case], setup: Setup, environment: dict[str, str]
) -> list[Child]:
    workers, each = cases[0].workers, cases[0].ranks_per_host
    cabled = system in SWITCHED and setup.target == "bmv2"
    command = rank_command(system, cases, setup)
    commands = [
        setup.on_host(rank // each, [*command, *(["--interface", f"worker{rank}"] if cabled else [])])
        for rank in range(workers)
    ]
    chosen = {"local": setup.local, "transport": "raw" if cabled else "udp"}
    if setup.links is not None:
        chosen["link"] = f"{setup.links.rate / 1000:.12g}kbit"
    variables = [{**environment, **rank_environment(rank, workers, **chosen)} for rank in range(workers)]
    if system in MPIS:
        joined = [part for command in commands for part in (":", "-n", "1", *command)][1:]
        # MPI gets the same way as p4reduce: memory, the links, or loopback.
        interface = None if setup.in_memory(cases[0]) else INTERFACE if setup.links else "lo"
        return [
            processes.start_command(
                "mpirun", [mpi.mpirun(system), *joined], variables[0] | mpi.environment(system, interface)
            )
        ]
    pairs = enumerate(zip(commands, variables, strict=True))
    return [processes.start_command(f"{system} rank {rank}", command, own) for rank, (command, own) in pairs]


def rank_command(system: str, cases: Sequence[Case], setup: Setup) -> list[str]:
    """Return the command of a rank. Which rank it is, torchrun's variables tell it, or under mpirun MPI."""
    return [
        sys.executable, "-m", "p4reduce_bench.allreduce.rank", "--system", system, "--cases",
        json.dumps([asdict(case) for case in cases]), "--repeat", str(setup.repeat),
        "--warm-up", str(setup.warm_up), "--timeout", str(setup.timeout),
        "--slots", str(setup.slots_used), "--calls", str(setup.calls),
    ]  # fmt: skip
