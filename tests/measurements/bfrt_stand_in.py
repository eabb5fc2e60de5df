# SPDX-License-Identifier: Apache-2.0
"""The processes that `tests.measurements.bfrt` measures: a stand-in for `bf_switchd`, and P4Runtime in front of it.

The stand-in is the tests' BF Runtime server with an idle device, and sends each packet of the CPU port back at once. It
adds the time of its calls to `Served`, for the process that measures.
"""

from __future__ import annotations

import json
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path

import grpc
import numpy as np

from p4reduce_targets.bfrt.device_config import FILE, read_folder
from p4reduce_targets.bfrt.switch import Tofino, TofinoSwitch
from p4reduce_targets.p4runtime import Server as P4RuntimeServer
from p4reduce_targets.p4runtime.packets import PacketHeader
from p4reduce_targets.p4runtime.program import read_program
from tests.support.bfrt import bfruntime_pb2 as bfrt
from tests.support.bfrt import idle, programs
from tests.support.bfrt.device import Device
from tests.support.bfrt.server import Server
from tests.support.dataplane.targets import SocketPort

PROFILE = "tofino1-64"
_SEND_TIMEOUT_MS = 10_000
_FRAME = 1 << 16


@dataclass(frozen=True)
class Served:
    """Totals of a stand-in: seconds in its calls, and their number."""

    seconds: float
    writes: float
    updates: float
    reads: float
    entries: float

    @classmethod
    def file(cls, folder: Path) -> np.memmap:
        """Return the file of the totals, in memory that processes share."""
        path = folder / "served"
        return np.memmap(path, np.float64, "r+" if path.exists() else "w+", shape=(5,))

    def since(self, before: Served) -> Served:
        """Return what was added since then."""
        return Served(*(now - then for now, then in zip(astuple(self), astuple(before), strict=True)))


class TimedServer(Server):
    """The tests' server, which notes the time of its writes and reads."""

    def __init__(self, device: Device, served: np.memmap) -> None:
        self._served = served
        super().__init__(device)

    def _write(self, request: bfrt.WriteRequest, context: grpc.ServicerContext) -> bfrt.WriteResponse:
        with self._timed([1, len(request.updates), 0, 0]):
            return super()._write(request, context)

    def _read_stream(self, request: bfrt.ReadRequest, context: grpc.ServicerContext) -> Iterator[bfrt.ReadResponse]:
        answers = super()._read_stream(request, context)
        with self._timed([0, 0, 1, len(request.entities)]):
            first = next(answers)
        yield first
        yield from answers

    @contextmanager
    def _timed(self, calls: list[int]) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self._served += [time.perf_counter() - begun, *calls]


class CpuPort(SocketPort):
    """The switch's end of the CPU port, which waits while the stand-in does not read."""

    def send(self, frame: bytes) -> None:
        poll = select.poll()
        poll.register(self.fileno(), select.POLLOUT)
        if poll.poll(_SEND_TIMEOUT_MS):
            super().send(frame)


def write_build(folder: Path) -> None:
    """Write a build for the stand-in: the program's tables, with a binary that only the stand-in takes."""
    (folder / FILE).write_bytes(idle.device_config(PROFILE).SerializeToString())
    (folder / "p4info.txtpb").write_text(programs.tofino.p4info(PROFILE).read_text())


def serve(folder: Path) -> None:
    """Run the stand-in."""
    program = read_program(programs.p4info(PROFILE, slots=None))
    sent, received = PacketHeader(program.packet_out), PacketHeader(program.packet_in)
    with TimedServer(idle.device(PROFILE), Served.file(folder)) as server:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        listener.bind(str(folder / "cpu"))
        listener.listen()
        print(json.dumps({"address": server.address}), flush=True)
        cpu, _ = listener.accept()
        while frame := cpu.recv(_FRAME):
            cpu.send(bytes(received.size) + frame[sent.size :])


def run_switch(folder: Path, address: str) -> None:
    """Serve P4Runtime in front of the stand-in."""

    def open_cpu_port(number: int) -> CpuPort:
        connected = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        connected.connect(str(folder / "cpu"))
        return CpuPort(number, connected)

    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    wanted = Tofino(address, read_folder(folder), folder, [], open_cpu_port)
    with TofinoSwitch(wanted) as switch, P4RuntimeServer(switch, address="127.0.0.1:0", ports=[]) as server:
        print(json.dumps({"grpc": server.address}), flush=True)
        switch.run(ended)


if __name__ == "__main__":
    role, given, *more = sys.argv[1:]
    {"serve": serve, "switch": run_switch}[role](Path(given), *more)
