# SPDX-License-Identifier: Apache-2.0
"""Data planes under test. Each port is a socket of the test, on which a message is a frame."""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from p4reduce_targets.bmv2 import TargetMissing, find
from p4reduce_targets.p4runtime import Server
from p4reduce_targets.ports import PACKET_AUXDATA, SOL_PACKET, with_tag
from p4reduce_targets.switch import Load, Switch
from tests.support.own_network import own_cables

from .p4runtime import DEVICE

PORTS = 4
CPU_PORT = 510
START_TIMEOUT_S = 30.0
ETH_P_ALL = 3
PACKET_OUTGOING = 4


class Unavailable(RuntimeError):
    """A tool or right is missing that the target needs; the message names it."""


class Target(ExitStack):
    """A running data plane, which must be closed: the address of its P4Runtime server, and a socket for each port."""

    def __init__(self) -> None:
        super().__init__()
        self.grpc_address = ""
        self.sockets: dict[int, socket.socket] = {}

    def receive(self, port: int) -> bytes | None:
        """Return the next frame out of `port`, or None if the message is a frame that the test has sent."""
        data, auxiliary, _, address = self.sockets[port].recvmsg(65536, 64)
        if isinstance(address, tuple) and address[2] == PACKET_OUTGOING:
            return None
        return with_tag(data, auxiliary)

    def check(self) -> None:
        """Raise RuntimeError, with the end of its log, if the target has ended."""


class Process(Target):
    """A switch process on veth pairs, in a network namespace of its own."""

    target = ""  # the name for `p4reduce switch --target`

    def __init__(self) -> None:
        super().__init__()
        if os.geteuid() != 0:
            raise Unavailable("network namespaces need root")
        if shutil.which("ip") is None:
            raise Unavailable("ip (iproute2) is not on PATH")
        with ExitStack() as undo:
            undo.push(self)
            folder = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="p4reduce-test-")))
            with own_cables(PORTS):
                for port in range(1, PORTS + 1):
                    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
                    self.sockets[port] = self.enter_context(sock)
                    sock.bind((f"host{port}", ETH_P_ALL))
                    sock.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
                self._start(folder)
            undo.pop_all()

    def _start(self, folder: Path) -> None:
        self.grpc_address = f"unix:{folder}/grpc"
        self._log = folder / "log"
        command = [sys.executable, "-m", "p4reduce_targets", "--target", self.target, "--grpc", self.grpc_address]
        command += ["--device-id", str(DEVICE), "--cpu-port", str(CPU_PORT), "--json"]
        command += [f"--port={port}=eth:switch{port}" for port in range(1, PORTS + 1)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log)
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
    """BMv2: simple_switch_grpc."""

    target = "bmv2"

    def __init__(self) -> None:
        try:
            find()
        except TargetMissing as missing:
            raise Unavailable(str(missing)) from None
        super().__init__()


class NativeOnInterfaces(Process):
    """The native switch, on network interfaces."""

    target = "native"

    def __init__(self) -> None:
        _check_native()
        super().__init__()


@contextmanager
def looping(switch: Switch) -> Iterator[None]:
    """Run the switch in a thread during the block."""
    loop = threading.Thread(target=switch.run, name="switch")
    loop.start()
    try:
        yield
    finally:
        switch.stop()
        loop.join(START_TIMEOUT_S)
        assert not loop.is_alive()


class Embedded(Target):
    """A Python data plane in this process, whose ports are socket pairs instead of interfaces."""

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
            self.enter_context(looping(device))
            server = self.enter_context(Server(device, address=f"unix:{folder}/grpc", device_id=DEVICE))
            self.grpc_address = server.address
            undo.pop_all()


class SocketPort:
    """A switch port that is one end of a socket pair."""

    def __init__(self, number: int, sock: socket.socket) -> None:
        self.number, self.name, self._socket = number, f"socket:{number}", sock
        self.interface = None
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
    """The native switch in this process, with two threads, and socket pairs instead of interfaces as ports."""

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
