# SPDX-License-Identifier: Apache-2.0
"""The processes that chaos kills and stops: native switches, etcd, and two controllers of which one serves."""

from __future__ import annotations

import contextlib
import shutil
import signal
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import grpc
from finsy.proto import p4r, p4r_grpc

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.grpc_channels import open_grpc_channel
from p4reduce.errors import P4ReduceError
from p4reduce_bench.processes import network
from p4reduce_bench.processes.children import Child, ChildFailed, ChildProcesses
from p4reduce_bench.processes.switches import start_switches
from tests.support.free_ports import free_ports

START_UP_S = 60.0
_NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # loopback is not behind one
STATUS_S = 0.5
ETCD_MEMBERS = 3
SOFTWARE = ("native", "sim")
TARGETS = (*SOFTWARE, "tofino1-32", "tofino1-64")
TARGET_HELP = f"Switches: {' or '.join(SOFTWARE)}, or a profile for Tofino behind BF Runtime, which needs root and p4c."
TOFINO_SLOTS = 1024
LEASE_S = 2
USERS = """\
[users.operator]
token_sha256 = "{operator}"
role = "operator"
"""
TENANT = """\
[users.{name}]
token_sha256 = "{digest}"
[tenants.{name}]
slots = {slots}
jobs = {jobs}
"""


def users_file(tokens: Mapping[str, str], jobs: Mapping[str, int], slots: int) -> str:
    """Return a users file with an operator and tenants, each with a quota of so many jobs of so many slots."""
    from p4reduce_controller.tenants.users import digest  # needs the controller's extra

    tenants = [
        TENANT.format(name=name, digest=digest(tokens[name]), slots=slots * most, jobs=most)
        for name, most in jobs.items()
    ]
    return USERS.format(operator=digest(tokens["operator"])) + "".join(tenants)


class Cluster:
    """An etcd cluster on loopback that keeps its data in `folder`."""

    def __init__(self, folder: Path, processes: ChildProcesses) -> None:
        if shutil.which("etcd") is None:
            raise P4ReduceError("etcd is not on PATH: it comes with Debian's package etcd-server")
        self._folder = folder
        self._processes = processes
        addresses = [f"127.0.0.1:{port}" for port in free_ports(2 * ETCD_MEMBERS)]
        self._clients, self._peers = addresses[:ETCD_MEMBERS], addresses[ETCD_MEMBERS:]
        self.members: list[Child] = []
        for number in range(ETCD_MEMBERS):
            self.members.append(self._start(number))
        for address in self._clients:
            _wait_until(partial(_is_healthy, address), f"etcd at {address} is healthy")

    @property
    def url(self) -> str:
        return f"etcd://{','.join(self._clients)}"

    def _start(self, number: int) -> Child:
        client, peer = f"http://{self._clients[number]}", f"http://{self._peers[number]}"
        everyone = ",".join(f"m{at}=http://{one}" for at, one in enumerate(self._peers))
        command = ["etcd", "--name", f"m{number}", "--data-dir", str(self._folder / f"m{number}")]
        command += ["--listen-client-urls", client, "--advertise-client-urls", client]
        command += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        command += ["--initial-cluster", everyone, "--log-level", "error"]
        child = Child(f"etcd {number}", command)
        self._processes.children.append(child)
        return child

    def begin_again(self, number: int) -> None:
        """Start a killed member again."""
        self.members[number].process.wait()
        self.members[number] = self._start(number)


class Controllers:
    """The controllers of one store. A restarted controller keeps its address."""

    def __init__(self, processes: ChildProcesses, options: Sequence[str], token: str, count: int = 2) -> None:
        self._processes = processes
        self._options = options
        self._token = token
        self.addresses = ["127.0.0.1:0"] * count
        self.running: list[Child | None] = [None] * count
        for number in range(count):
            said = self.start(number).first(START_UP_S)
            self.addresses[number] = said["listen"]

    @property
    def all_addresses(self) -> str:
        return ",".join(self.addresses)

    def start(self, number: int) -> Child:
        """Start a controller, without waiting until it is ready."""
        options = [*self._options, "--listen", self.addresses[number], "--json"]
        child = self.running[number] = self._processes.start(f"controller {number}", "p4reduce", "controller", *options)
        return child

    def signal(self, number: int, what: signal.Signals) -> None:
        child = self.running[number]
        assert child is not None
        ends = what in (signal.SIGKILL, signal.SIGTERM)
        if ends:
            self.running[number] = None
        child.process.send_signal(what)
        if ends:
            child.process.wait(START_UP_S)

    def check(self) -> None:
        """Raise ChildFailed for one that has ended by itself."""
        for number, child in enumerate(list(self.running)):
            if child is not None and child.process.poll() is not None and self.running[number] is child:
                raise child.failure()

    def status(self, number: int) -> pb.StatusReply | None:
        """Return the status that the operator sees; None if that controller does not serve."""
        with open_grpc_channel(self.addresses[number]) as channel:
            metadata = (("authorization", f"Bearer {self._token}"),)
            try:
                reply: pb.StatusReply = rpc.JobsStub(channel).Status(
                    pb.StatusRequest(), timeout=STATUS_S, metadata=metadata
                )
            except grpc.RpcError:
                return None
            return reply

    def serving(self) -> tuple[int, pb.StatusReply] | None:
        """Return the number and the status of the controller that serves, if any."""
        for number, child in enumerate(self.running):
            if child is not None and (reply := self.status(number)) is not None:
                return number, reply
        return None

    def wait_until_serving(self, within: float = START_UP_S) -> tuple[int, pb.StatusReply]:
        deadline = time.monotonic() + within
        while (found := self.serving()) is None:
            self.check()
            if time.monotonic() >= deadline:
                raise ChildFailed(f"no controller serves after {within:g} s")
            time.sleep(0.02)
        return found


def child_processes(target: str) -> ChildProcesses:
    """Return child processes in which `start_switches` can start switches of a target. Raises P4ReduceError."""
    if target in SOFTWARE:
        return ChildProcesses()
    from tests.support.bfrt.stack import OnTofino, program  # needs p4c
    from tests.support.dataplane.targets import Unavailable

    network.run("ip", "link", "set", "lo", "up")
    try:
        return OnTofino(program(target, TOFINO_SLOTS))
    except Unavailable as missing:
        raise P4ReduceError(f"--target {target}: {missing}") from None


def check_target(target: str, module: str) -> None:
    """Raise P4ReduceError for an unknown target. Starts `module` again in an own network if the target needs that."""
    if target not in TARGETS:
        raise P4ReduceError(f"--target {target}: accepted are {', '.join(TARGETS)}")
    if target not in SOFTWARE:
        network.enter(module)


def switches(processes: ChildProcesses, target: str, count: int) -> tuple[list[str], list[str]]:
    """Start switches; return the controller's options for them, and their P4Runtime addresses."""
    options = start_switches(processes, target, aggregators=count)
    return options, [value for key, value in pairwise(options) if key == "--switch"]


def entries(address: str) -> list[str]:
    """Return all entries of a switch's tables and multicast groups as text; reading needs no right."""
    with open_grpc_channel(address) as channel:
        stub = p4r_grpc.P4RuntimeStub(channel)
        wanted = [p4r.Entity(table_entry=p4r.TableEntry()), p4r.Entity()]
        wanted[1].packet_replication_engine_entry.multicast_group_entry.SetInParent()
        replies: Iterator[Any] = stub.Read(p4r.ReadRequest(device_id=1, entities=wanted), timeout=10)
        return sorted(str(entity) for reply in replies for entity in reply.entities)


def _is_healthy(address: str) -> bool:
    with contextlib.suppress(OSError), _NO_PROXY.open(f"http://{address}/health", timeout=1) as reply:
        return b'"true"' in reply.read()
    return False


def _wait_until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_UP_S
    while not done():
        if time.monotonic() >= deadline:
            raise ChildFailed(f"after {START_UP_S:g} s it is not so that {what}")
        time.sleep(0.05)
