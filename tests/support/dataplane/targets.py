# SPDX-License-Identifier: Apache-2.0
"""Starts each data plane with its ports in the test's hands: one socket a port, one frame a message."""

from __future__ import annotations

import ctypes
import itertools
import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

from p4reduce_targets.bmv2 import TargetMissing, find
from p4reduce_targets.p4runtime import Server
from p4reduce_targets.switch import Load, Switch

from .p4runtime import DEVICE

PORTS = 4
CPU_PORT = 510
START_TIMEOUT_S = 30.0
ETH_P_ALL = 3
PACKET_OUTGOING = 4
CLONE_NEWNET = 0x40000000

_instances = itertools.count()


class Unavailable(RuntimeError):
    """This machine lacks something that the target needs; the message names it."""


class Target(ExitStack):
    """A running data plane: where its P4Runtime server listens, and a socket for each port. Close it after use."""

    def __init__(self) -> None:
        super().__init__()
        self.grpc_address = ""
        self.sockets: dict[int, socket.socket] = {}

    def receive(self, port: int) -> bytes | None:
        """The next frame that came out of `port`; None where the message was not one."""
        data, address = self.sockets[port].recvfrom(65536)
        if isinstance(address, tuple) and address[2] == PACKET_OUTGOING:
            return None
        return data

    def check(self) -> None:
        """Raise RuntimeError, with what it last said, where the target is no longer there."""


class Process(Target):
    """A switch in a process of its own, on veth pairs in a network namespace of its own."""

    target = ""  # as `p4reduce switch` knows it

    def __init__(self) -> None:
        super().__init__()
        if os.geteuid() != 0:
            raise Unavailable("network namespaces need root")
        if shutil.which("ip") is None:
            raise Unavailable("ip (iproute2) is not on PATH")
        with ExitStack() as undo:
            undo.push(self)
            folder = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="p4reduce-test-")))
            namespace = f"p4reduce-test-{os.getpid()}-{next(_instances)}"
            self._lay_cables(namespace)
            self._start(namespace, folder)
            undo.pop_all()

    def _lay_cables(self, namespace: str) -> None:
        try:
            _ip("netns", "add", namespace)
        except RuntimeError as error:
            raise Unavailable(f"network namespaces cannot be made here: {error}") from None
        self.callback(_ip, "netns", "del", namespace)
        for kind in ("all", "default"):
            path = f"/proc/sys/net/ipv6/conf/{kind}/disable_ipv6"  # without it, hosts would talk by themselves
            if Path(path).exists():
                _ip("netns", "exec", namespace, "sh", "-c", f"echo 1 > {path}")
        _ip("-n", namespace, "link", "set", "lo", "up")
        for port in range(1, PORTS + 1):
            _ip("-n", namespace, "link", "add", f"host{port}", "type", "veth", "peer", "name", f"switch{port}")
            for link in (f"host{port}", f"switch{port}"):
                _ip("-n", namespace, "link", "set", link, "mtu", "9000", "arp", "off", "up")
        with ThreadPoolExecutor(1) as pool:  # a thread's network namespace is its own
            self.sockets = pool.submit(_packet_sockets, namespace).result()
        for sock in self.sockets.values():
            self.enter_context(sock)

    def _start(self, namespace: str, folder: Path) -> None:
        self.grpc_address = f"unix:{folder}/grpc"
        self._log = folder / "log"
        command = [sys.executable, "-m", "p4reduce_targets", "--target", self.target, "--grpc", self.grpc_address]
        command += ["--device-id", str(DEVICE), "--cpu-port", str(CPU_PORT), "--json"]
        command += [f"--port={port}=eth:switch{port}" for port in range(1, PORTS + 1)]
        with self._log.open("wb") as log:
            inside = ("ip", "netns", "exec", namespace)  # which becomes the command, so signals reach that
            self._process = subprocess.Popen([*inside, *command], stdout=subprocess.PIPE, stderr=log)
        self.callback(self._stop)
        assert self._process.stdout is not None
        ready = select.select([self._process.stdout], [], [], START_TIMEOUT_S)[0] and self._process.stdout.readline()
        if not ready:
            raise RuntimeError(f"{self.target} is not ready: {self._last_words()}")

    def _stop(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _last_words(self) -> str:
        return self._log.read_text(errors="replace")[-2000:]

    def check(self) -> None:
        if self._process.poll() is not None:
            raise RuntimeError(f"{self.target} ended with {self._process.returncode}: {self._last_words()}")


class Bmv2(Process):
    """simple_switch_grpc."""

    target = "bmv2"

    def __init__(self) -> None:
        try:
            find()
        except TargetMissing as missing:
            raise Unavailable(str(missing)) from None
        super().__init__()


class NativeOnInterfaces(Process):
    """The native switch in C."""

    target = "native"

    def __init__(self) -> None:
        _check_native()
        super().__init__()


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def _packet_sockets(namespace: str) -> dict[int, socket.socket]:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}") as file:
        if libc.setns(file.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    sockets = {}
    for port in range(1, PORTS + 1):
        sockets[port] = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        sockets[port].bind((f"host{port}", ETH_P_ALL))
    return sockets


class Embedded(Target):
    """A data plane of p4reduce_targets in this process, its ports on socket pairs instead of interfaces."""

    def __init__(self, load: Load) -> None:
        super().__init__()
        with ExitStack() as undo:
            undo.push(self)
            folder = self.enter_context(tempfile.TemporaryDirectory(prefix="p4reduce-test-"))
            ports = []
            for number in range(1, PORTS + 1):
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self.sockets[number] = self.enter_context(ours)
                ports.append(SocketPort(number, theirs))
            device = self.enter_context(Switch(load, ports, CPU_PORT))
            thread = threading.Thread(target=device.run, name="switch")
            thread.start()
            self.callback(thread.join)
            self.callback(device.stop)
            server = self.enter_context(Server(device, address=f"unix:{folder}/grpc", device_id=DEVICE))
            self.grpc_address = server.address
            undo.pop_all()


class SocketPort:
    """A switch port that is one end of a socket pair."""

    def __init__(self, number: int, sock: socket.socket) -> None:
        self.number, self.name, self._socket = number, f"socket:{number}", sock
        self.received = self.sent = self.dropped = 0
        sock.setblocking(False)

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self, limit: int) -> list[bytes]:
        frames: list[bytes] = []
        with suppress(BlockingIOError):
            while len(frames) < limit and (frame := self._socket.recv(65536)):
                frames.append(frame)
        self.received += len(frames)
        return frames

    def send(self, frame: bytes) -> None:
        self._socket.send(frame)
        self.sent += 1

    def close(self) -> None:
        self._socket.close()


class Native(Target):
    """The native switch in this process, its ports on socket pairs instead of interfaces, dealt to two threads."""

    def __init__(self) -> None:
        _check_native()
        from p4reduce_targets.native import NativeSwitch

        super().__init__()
        with ExitStack() as undo:
            undo.push(self)
            folder = self.enter_context(tempfile.TemporaryDirectory(prefix="p4reduce-test-"))
            device = NativeSwitch(cpu_port=CPU_PORT, threads=2)
            for number in range(1, PORTS + 1):
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self.sockets[number] = self.enter_context(ours)
                device.add_socket(number, theirs.detach())
            self.enter_context(device)
            server = self.enter_context(Server(device, address=f"unix:{folder}/grpc", device_id=DEVICE))
            self.grpc_address = server.address
            undo.pop_all()


def _check_native() -> None:
    from p4reduce_targets.native.library import LibraryMissing, library

    try:
        library()
    except LibraryMissing as missing:
        raise Unavailable(str(missing)) from None


def _sim() -> Target:
    from p4reduce_targets.sim import load

    return Embedded(load)


TARGETS: dict[str, Callable[[], Target]] = {
    "sim": _sim,
    "native": Native,
    "native-eth": NativeOnInterfaces,
    "bmv2": Bmv2,
}
