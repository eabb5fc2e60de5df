# SPDX-License-Identifier: Apache-2.0
"""A whole system as processes: switches, a controller, and ranks."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.grpc_channels import open_grpc_channel
from p4reduce.transport.addresses import join_host_port
from p4reduce_bench.processes import network
from p4reduce_bench.processes.children import Child, ChildProcesses
from p4reduce_controller.commands.access import plain
from tests.support.controller.proxy import Proxy
from tests.support.own_network import Namespace, ip, with_ipv6
from tests.support.waiting import wait_until

from .forked_child import ForkedChild
from .rank import Call
from .rank import main as rank_main

START_UP_S = 60.0
RANK = Path(__file__).with_name("rank.py")

Event = dict[str, Any]


class Stack(ChildProcesses):
    """Switches and their controller. Leaving the block ends every process."""

    _proxy: Proxy | None = None

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
        spines: int = 1,
        listen: str = "127.0.0.1:0",
        flooded: str = "",
        spare: int | None = None,
        ips: Sequence[str] = ("",),
    ) -> None:
        """Start all, and wait until they are ready.

        ports: the ports of each switch, such as "1=udp:127.0.0.1:0". A {} stands for the switch's number, from 1.
        address: the address of the aggregator; {} as in `ports`. The default is the address of port 1.
        options: further options of the controller.
        enter: a function that returns a context manager, within which processes are started.
        aggregators: the number of switches that share the slots of jobs.
        uplink: if not 0, the first `spines` switches are spines and the others are leaves. Their port `uplink` leads to
            the first spine, the next port to the second, and so on.
        listen: the address of the controller.
        flooded: the ports to which frames are flooded. The default is all ports.
        spare: the index of a switch that is a spare.
        ips: what {ip} stands for in `ports`, for each switch in turn.
        """
        super().__init__()
        self.enter: Any = enter
        self._target = target
        self._ports = [port.partition("=")[0] for port in ports]
        try:
            self.switches = [
                self.start(
                    "switch", "p4reduce", "switch", "--target", target, "--grpc", "127.0.0.1:0", "--json",
                    *(option for port in ports for option in ("--port", port.format(number, ip=ip))),
                )
                for number, ip in zip(range(1, aggregators + 1), itertools.cycle(ips), strict=False)
            ]  # fmt: skip
            self.addresses: list[str] = []
            self.names: list[str] = []
            switch_options: list[str] = []
            self.ready = [switch.first(START_UP_S) for switch in self.switches]
            for number, ready in enumerate(self.ready, 1):
                self.addresses.append(address.format(number) or ready["ports"]["1"].removeprefix("udp:"))
                self.names.append(ready["grpc"])
                switch_options += ["--switch", ready["grpc"], "--address", self.addresses[-1]]
            for leaf in self.names[spines:] if uplink else ():
                for port, spine in enumerate(self.names[:spines], uplink):
                    switch_options += ["--uplink", f"{leaf}:{port}={spine}"]
            switch_options += ["--spare", self.names[spare]] if spare is not None else []
            self._controller_options = [*switch_options, "--ports", flooded or ",".join(self._ports), *options]
            self.controller = listen
            self.start_controller()
        except BaseException:
            self.__exit__()
            raise

    def start(self, name: str, module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> Child:
        with self.entered():
            return super().start(name, module, *arguments, environment=environment)

    def add_controller_options(self, *options: str) -> None:
        """Add options for the next start of the controller."""
        self._controller_options += options

    def start_controller(self) -> None:
        """Start the controller, with the same options and the same address each time."""
        options = [*self._controller_options, "--listen", self.controller, "--json"]
        self.controller_process = self.start("controller", "p4reduce", "controller", *options)
        self.served: Event = self.controller_process.first(START_UP_S)
        self.controller = self.served["listen"]

    def stop_controller(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the controller by a signal. `start_controller` starts it again."""
        self._end(self.controller_process, number)

    def restart_switch(self, index: int) -> None:
        """Restart a switch at the same addresses. It loses all its state."""
        self._end(self.switches[index], signal.SIGKILL)
        ready = self.ready[index]
        ports = [option for port, address in ready["ports"].items() for option in ("--port", f"{port}={address}")]
        self.switches[index] = self.start(
            "switch", "p4reduce", "switch", "--target", self._target, "--grpc", ready["grpc"], "--json", *ports
        )
        self.switches[index].first(START_UP_S)

    def _end(self, child: Child, number: signal.Signals) -> None:
        self.children.remove(child)
        child.process.send_signal(number)
        child.process.wait(START_UP_S)
        child.stop()

    def status(self) -> dict[str, Any]:
        """Return the output of `p4reduce status --json`. Tests call this often, so no process is started for it."""
        return status_of(self._reached)

    @cached_property
    def _reached(self) -> str:
        """The address at which this process reaches the controller, which may be in another network namespace."""
        if self.enter is contextlib.nullcontext:
            return self.controller
        self._proxy = Proxy(self.controller, self.enter)
        return self._proxy.address

    def __exit__(self, *raised: Any) -> None:
        if self._proxy is not None:
            self._proxy.close()
        super().__exit__(*raised)

    def entered(self) -> AbstractContextManager[object]:
        context: AbstractContextManager[object] = self.enter()
        return context

    @contextlib.contextmanager
    def losing(self, rate: float) -> Iterator[None]:
        """Make every port of the switch lose this share of packets, in both directions, during the block."""
        self._lose(rate)
        try:
            yield
        finally:
            self._lose(0)

    def _lose(self, rate: float) -> None:
        with open_grpc_channel(self._reached) as channel:
            for port in self._ports:
                request = pb.SetLossRequest(port=int(port), direction=pb.BOTH, rate=rate)
                rpc.JobsStub(channel).SetLoss(request, timeout=START_UP_S, wait_for_ready=True)

    def ranks(
        self,
        calls: Sequence[Call],
        *,
        job: str = "default",
        world_size: int = 4,
        present: Sequence[int] | None = None,
        repeat: bool = False,
        forget: bool = False,
        barrier: bool = True,
        interfaces: str = "",
        calls_of: Mapping[int, Sequence[Call]] | None = None,
        backends: Mapping[int, str] | None = None,
        at: Sequence[str] = (),
        hosts: Sequence[int | None] = (),
        namespaces: Sequence[Namespace] = (),
        limits: Mapping[int, Mapping[str, int]] | None = None,
        **options: Any,
    ) -> Ranks:
        """Start a job's ranks.

        present: the ranks to start. The default is all.
        repeat: whether to repeat the calls until an error.
        forget: whether ranks leave their communicator open.
        barrier: whether ranks wait for each other after the calls.
        interfaces: the prefix of interfaces: "worker" gives rank 2 the interface worker2.
        calls_of: the calls of ranks that differ from `calls`.
        backends: the backends of ranks that must use a certain one.
        at: the switches of the ranks, assigned in turn.
        hosts: the number of each rank's pretended host. A rank with None does not share its stream with others.
        namespaces: the network namespace of each rank. The default is that of the switches.
        limits: the resource limits of ranks, by their names in `resource`.
        options: arguments of Communicator.
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
                "barrier": barrier,
                "limits": (limits or {}).get(rank, {}),
                "host": hosts[rank] if hosts else None,
            }
            environment = {"OMP_NUM_THREADS": "1"}
            if backends is not None:
                environment["P4REDUCE_BACKEND"] = backends[rank]
            name, argument = f"rank {rank} of {job}", json.dumps(plan)
            with namespaces[rank].entered() if namespaces else self.entered():
                if forget:  # what happens at the interpreter's exit counts
                    children[rank] = Child(name, [sys.executable, str(RANK), argument], environment)
                else:
                    children[rank] = ForkedChild(name, rank_main, argument, environment)
        return Ranks(children)


class Ranks:
    """The rank processes of a job, and the events that they have printed. Leaving the block ends the processes."""

    def __init__(self, children: dict[int, Child]) -> None:
        self.children = children
        self.events: dict[int, list[Event]] = {rank: [] for rank in children}

    def wait_for(self, key: str, timeout: float = 60.0) -> None:
        """Wait until every rank has printed an event with `key`."""
        self.wait_until(key, lambda rank: any(key in event for event in self.events[rank]), timeout)

    def wait_for_ends(self, timeout: float = 60.0) -> dict[int, Event]:
        """Wait until all ranks have exited with status 0, and return the last event of each."""
        self.wait_until("end", lambda rank: self.children[rank].process.poll() is not None, timeout)
        self._read()
        for child in self.children.values():
            if child.process.returncode != 0:
                raise child.failure()
        return {rank: events[-1] if events else {} for rank, events in self.events.items()}

    def end_well(self, timeout: float = 90.0, *, loss: bool = False) -> dict[int, Event]:
        """Wait for the end of all ranks, and return the last event of each, which must contain its statistics.

        loss: whether packets were lost, so that there must be retransmissions.
        """
        lasts = self.wait_for_ends(timeout)
        assert all("stats" in last for last in lasts.values()), lasts
        assert not loss or sum(last["stats"]["retransmissions"] for last in lasts.values()) > 0
        return lasts

    def kill_and_end(self, gone: int, within: float = 15.0) -> None:
        """Kill a rank. Assert that all others end in time, with an error that names it."""
        self.kill(gone)
        killed_at = time.monotonic()
        self.wait_for("error", within)
        assert time.monotonic() - killed_at < within
        for rank in self.children:
            last = self.events[rank][-1]
            assert (last["error"], last["rank"]) == ("JobAborted", gone), last
            assert f"rank {gone}" in last["message"]
        self.wait_for_ends()

    def work(self, seconds: float) -> None:
        """Let the ranks work for `seconds`. Their output is read meanwhile, since a full pipe would block them."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._read()
            time.sleep(0.05)

    def kill(self, rank: int) -> None:
        """Kill a rank by SIGKILL, and stop following it."""
        child = self.children.pop(rank)
        child.process.kill()
        child.stop()

    def wait_until(self, what: str, settled: Callable[[int], object], timeout: float = 60.0) -> None:
        """Wait until `settled` is true of every rank."""
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


def status_of(controller: str) -> dict[str, Any]:
    """Return the output of `p4reduce status --json` for the controller at this address."""
    with open_grpc_channel(controller) as channel:
        return plain(rpc.JobsStub(channel).Status(pb.StatusRequest(), timeout=60, wait_for_ready=True))


PORTS = 4


@dataclass(frozen=True)
class Setting:
    """A stack, with the options by which ranks reach its switch."""

    stack: Stack
    options: dict[str, Any] = field(default_factory=dict)

    def ranks(self, calls: Sequence[Call], **options: Any) -> Ranks:
        return self.stack.ranks(calls, **self.options, **options)


@contextlib.contextmanager
def over_udp(
    *controller_options: str,
    target: str = "sim",
    aggregators: int = 1,
    leaves: int = 0,
    spines: int = 1,
    spare: int | None = None,
    ip: str | Sequence[str] = "127.0.0.1",
) -> Iterator[Stack]:
    """Run a stack whose switches have one UDP port for all ranks. It needs no rights and no interfaces.

    ip: the address of the ports; several are those of the switches in turn.
    With leaves, the first switches are their spines. Port 2 of each leaf leads to the first one, port 3 to the next.
    """
    ips = [join_host_port(one, 0) for one in ([ip] if isinstance(ip, str) else ip)]
    ports = [f"{port}=udp:{{ip}}" for port in range(1, 2 + (spines if leaves else 0))]
    switches, uplink = (spines + leaves, 2) if leaves else (aggregators, 0)
    shape = {"aggregators": switches, "uplink": uplink, "spines": spines, "spare": spare, "ips": ips}
    with Stack(target, ports, options=controller_options, **shape) as stack:
        yield stack


@contextlib.contextmanager
def over_wires(
    target: str, *controller_options: str, mtu: int = 1500, narrow: str = "", ipv6: bool = False
) -> Iterator[Stack]:
    """Run a stack in a network namespace, in which a veth pair connects interface worker<r> with switch port r + 1.

    narrow: an interface whose MTU is 1,500 instead of `mtu`.
    """
    if target == "bmv2" and shutil.which("simple_switch_grpc") is None:
        pytest.skip("needs simple_switch_grpc")
    with contextlib.closing(Namespace()) as namespace:
        with namespace.entered():
            network.star(PORTS, mtu)
            if narrow:
                ip("link", "set", narrow, "mtu", "1500")
            for rank in range(PORTS) if ipv6 else ():
                with_ipv6(f"worker{rank}", f"fd00::{rank + 1}")
        ports = [f"{port}=eth:port{port}" for port in range(1, PORTS + 1)]
        address = "[fd00::fe]:31314" if ipv6 else "10.0.0.254:31314"
        with Stack(target, ports, address, enter=namespace.entered, options=controller_options) as stack:
            yield stack


REPEATED = [Call((20_000,), density=1.0, seed=seed, pause=0.02) for seed in range(3)]
"""Calls for ranks that repeat them. Without pauses, they would take all processors while the test waits."""


def added(stack: Stack) -> list[int]:
    """Return the number of packets that each switch has added to slots so far."""
    outcomes = [switch["outcomes"] for switch in stack.status()["switches"]]
    return [counts["started"] + counts["added"] for counts in outcomes]


@contextlib.contextmanager
def kept(folder: Path, rejoin_s: float = 60.0, **shape: Any) -> Iterator[Stack]:
    """Run a stack whose controller keeps its state in a file."""
    with over_udp("--state", str(folder / "state"), "--rejoin-time", str(rejoin_s), **shape) as stack:
        yield stack


def go_on(*jobs: Ranks, steps: int = 10) -> None:
    """Wait until every rank of each job has made `steps` more calls."""
    for ranks in jobs:
        ranks.wait_for("done")
        before = {rank: events[-1] for rank, events in ranks.events.items()}
        assert all("done" in last for last in before.values()), before
        goals = {rank: last["done"] + steps for rank, last in before.items()}
        ranks.wait_until(
            f"{steps} more calls", lambda rank, r=ranks, g=goals: r.events[rank][-1].get("done", 0) >= g[rank]
        )


def job(stack: Stack, name: str) -> dict[str, Any]:
    """Return the controller's status of a job, or {} if it knows no such job."""
    return next((one for one in stack.status()["jobs"] if one["name"] == name), {})


def slots_used(stack: Stack) -> int:
    return sum(switch["slots_used"] for switch in stack.status()["switches"])


def wait_until_back(stack: Stack, name: str) -> None:
    wait_until(lambda: not any(member["away"] for member in job(stack, name)["members"]), "the ranks to be back")


def placement(stack: Stack, name: str) -> dict[str, Any]:
    """Return the parts of a job's status that must not change."""
    known = job(stack, name)
    members = [(member["rank"], member["places"]) for member in known["members"]]
    return {
        "members": members,
        **{key: known[key] for key in ("number", "generation", "state", "pools", "slots")},
    }
