# SPDX-License-Identifier: Apache-2.0
"""A whole stack as processes: switches, controller, ranks."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from p4reduce_bench.processes.children import Child, Family

from .rank import Call

START_UP_S = 60.0
RANK = Path(__file__).with_name("rank.py")

Event = dict[str, Any]


class Stack(Family):
    """Switches and a controller on them. Leaving the block ends every process."""

    def __init__(
        self,
        target: str,
        ports: Sequence[str],
        address: str = "",
        *,
        options: Sequence[str] = (),
        enter: Any = contextlib.nullcontext,
        aggregators: int = 1,
        uplink: int = 0,
    ) -> None:
        """Starts all, and waits until they are ready.

        ports: of a switch, as "1=udp:127.0.0.1:0". address: of the aggregator; by default its first port's.
        options: more of them for the controller. enter: makes a context in which processes are started.
        aggregators: how many switches, each with such ports, share the slots of jobs; a {} in `ports` or `address`
            stands for the switch's number, from 1.
        uplink: the port of all but the first that leads to the first: then that is a spine, and they are leaves.
        """
        super().__init__()
        self._enter: Any = enter
        self._target = target
        self._ports = [port.partition("=")[0] for port in ports]
        try:
            self.switches = [
                self.start(
                    "switch", "p4reduce", "switch", "--target", target, "--grpc", "127.0.0.1:0", "--json",
                    *(option for port in ports for option in ("--port", port.format(number))),
                )
                for number in range(1, aggregators + 1)
            ]  # fmt: skip
            self.addresses: list[str] = []
            self.names: list[str] = []
            places: list[str] = []
            self._ready = [switch.first(START_UP_S) for switch in self.switches]
            for number, ready in enumerate(self._ready, 1):
                self.addresses.append(address.format(number) or ready["ports"]["1"].removeprefix("udp:"))
                self.names.append(ready["grpc"])
                places += ["--switch", ready["grpc"], "--address", self.addresses[-1]]
            for leaf in self.names[1:] if uplink else ():
                places += ["--uplink", f"{leaf}:{uplink}={self.names[0]}"]
            self._controller_options = [*places, "--ports", ",".join(self._ports), *options]
            self.controller = "127.0.0.1:0"
            self.start_controller()
        except BaseException:
            self.__exit__()
            raise

    def start(self, name: str, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Child:
        with self.entered():
            return super().start(name, module, *arguments, environment=environment)

    def start_controller(self) -> None:
        """As it was first started, at the same address."""
        options = [*self._controller_options, "--listen", self.controller, "--json"]
        self.controller_process = self.start("controller", "p4reduce", "controller", *options)
        self.served: Event = self.controller_process.first(START_UP_S)
        self.controller = self.served["listen"]

    def stop_controller(self, number: signal.Signals = signal.SIGKILL) -> None:
        """By that signal. `start_controller` starts it again."""
        self._end(self.controller_process, number)

    def restart_switch(self, index: int) -> None:
        """With nothing of what it held, at the same addresses."""
        self._end(self.switches[index], signal.SIGKILL)
        ready = self._ready[index]
        ports = [option for port, place in ready["ports"].items() for option in ("--port", f"{port}={place}")]
        self.switches[index] = self.start(
            "switch", "p4reduce", "switch", "--target", self._target, "--grpc", ready["grpc"], "--json", *ports
        )
        self.switches[index].first(START_UP_S)

    def _end(self, child: Child, number: signal.Signals) -> None:
        self.children.remove(child)
        child.process.send_signal(number)
        child.process.wait(START_UP_S)
        child.stop()

    def entered(self) -> AbstractContextManager[object]:
        context: AbstractContextManager[object] = self._enter()
        return context

    @contextlib.contextmanager
    def losing(self, rate: float) -> Iterator[None]:
        """Every port of the switch loses this share of packets, in both directions."""
        self._lose(rate)
        try:
            yield
        finally:
            self._lose(0)

    def _lose(self, rate: float) -> None:
        command = [sys.executable, "-m", "p4reduce", "loss", "--controller", self.controller, "--rate", str(rate)]
        for port in self._ports:
            with self.entered():
                subprocess.run([*command, "--port", port], check=True, capture_output=True, timeout=START_UP_S)

    def ranks(
        self,
        calls: Sequence[Call],
        *,
        job: str = "default",
        world_size: int = 4,
        present: Sequence[int] | None = None,
        repeat: bool = False,
        forget: bool = False,
        interfaces: str = "",
        calls_of: Mapping[int, Sequence[Call]] | None = None,
        backends: Mapping[int, str] | None = None,
        at: Sequence[str] = (),
        hosts: Sequence[int | None] = (),
        limits: Mapping[int, Mapping[str, int]] | None = None,
        **options: Any,
    ) -> Ranks:
        """Starts a job's ranks.

        present: which; by default all. repeat: make the calls again until an error. forget: do not close.
        interfaces: "worker" gives rank 2 the interface worker2. calls_of: those of ranks that differ.
        backends: of ranks that shall have a certain one. at: the switches that they are at, in
            turn. hosts: of each rank, a number of the host that it takes this one for; None for one that keeps its own
            stream. limits: of ranks' processes, by their names in `resource`. options: of Communicator.
        """
        children = {}
        for rank in present if present is not None else range(world_size):
            plan = {
                "options": {
                    "controller": self.controller,
                    "job": job,
                    "rank": rank,
                    "world_size": world_size,
                    "interface": f"{interfaces}{rank}" if interfaces else None,
                    **({"switch": at[rank % len(at)]} if at else {}),
                    **options,
                    **({"local": "off"} if hosts and hosts[rank] is None else {}),
                },
                "calls": [asdict(call) for call in (calls_of or {}).get(rank, calls)],
                "repeat": repeat,
                "forget": forget,
                "limits": (limits or {}).get(rank, {}),
                "host": hosts[rank] if hosts else None,
            }
            command = [sys.executable, str(RANK), json.dumps(plan)]
            environment = {"OMP_NUM_THREADS": "1"}
            if backends is not None:
                environment["P4REDUCE_BACKEND"] = backends[rank]
            with self.entered():
                children[rank] = Child(f"rank {rank} of {job}", command, environment)
        return Ranks(children)


class Ranks:
    """The rank processes of one job, and what they have said. Leaving the block ends them."""

    def __init__(self, children: dict[int, Child]) -> None:
        self.children = children
        self.events: dict[int, list[Event]] = {rank: [] for rank in children}

    def wait_for(self, key: str, timeout: float = 60.0) -> None:
        """Until every rank has said something with `key`."""
        self._follow(timeout, key, lambda rank: any(key in event for event in self.events[rank]))

    def wait_until(self, what: str, settled: Callable[[int], object], timeout: float = 60.0) -> None:
        """Until that holds for every rank."""
        self._follow(timeout, what, settled)

    def wait_for_ends(self, timeout: float = 60.0) -> dict[int, Event]:
        """What each rank said last, when all have ended well."""
        self._follow(timeout, "end", lambda rank: self.children[rank].process.poll() is not None)
        self._read()
        for child in self.children.values():
            if child.process.returncode != 0:
                raise child.failure()
        return {rank: events[-1] if events else {} for rank, events in self.events.items()}

    def work(self, seconds: float) -> None:
        """For so long. What they say is read, or they would wait until it is."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._read()
            time.sleep(0.05)

    def kill(self, rank: int) -> None:
        """Without any chance to say good-bye. The rank is no longer followed."""
        child = self.children.pop(rank)
        child.process.kill()
        child.stop()

    def _follow(self, timeout: float, what: str, settled: Any) -> None:
        deadline = time.monotonic() + timeout
        while True:
            ended = {rank for rank, child in self.children.items() if child.process.poll() is not None}
            self._read()
            waiting = [rank for rank in self.children if not settled(rank)]
            if not waiting:
                return
            for rank in ended & set(waiting):
                raise AssertionError(
                    f"no {what!r} of rank {rank}: {self.events[rank][-1:]} {self.children[rank].failure()}"
                )
            assert time.monotonic() < deadline, f"no {what!r} of ranks {waiting} within {timeout} s: {self.events}"
            time.sleep(0.01)

    def _read(self) -> None:
        for rank, child in self.children.items():
            self.events[rank] += child.read()

    def __enter__(self) -> Ranks:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.children.values():
            child.stop()
