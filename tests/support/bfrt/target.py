# SPDX-License-Identifier: Apache-2.0
"""A Tofino under test, which `p4reduce switch --target tofino` drives: P4Runtime, then BF Runtime, then a device.

The device executes the program in this process. Where the environment variable BFRT_SWITCH names a real server, as
HOST:PORT, there is another one, with the program of the folder BFRT_PROGRAM/PROFILE. BFRT_CPU_INTERFACE is the
interface at the CPU port, and BFRT_INTERFACES those at the device ports 1 to 4, as in veth3,veth5,veth7,veth9. The
tests then run where these interfaces are: with Intel's model, in its network namespace.
"""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from finsy.proto import p4i
from google.protobuf import text_format

from p4reduce_targets.bfrt.device_config import parse
from p4reduce_targets.bfrt.ports import PortRequest
from p4reduce_targets.bfrt.switch import Tofino, TofinoSwitch, open_cpu_interface
from p4reduce_targets.p4runtime import Server as P4RuntimeServer
from p4reduce_targets.ports import Port
from p4reduce_targets.switch import Switch as PacketLoop
from tests.support.dataplane.p4runtime import DEVICE
from tests.support.dataplane.targets import ETH_P_ALL, PORTS, TARGETS, SocketPort, Target, looping
from tests.support.tofino.builds import TofinoSwitch as SwitchUnderTest
from tests.support.tofino.builds import shared_p4info, tofino

from .programs import device, write_folder
from .server import Server

PROFILES = ("tofino1-32", "tofino1-64")  # ports 1 to 4 of Tofino 2 are no ports of the front panel

_folder = tempfile.TemporaryDirectory(prefix="p4reduce-bfrt-")


def folder(profile: str) -> Path:
    """Return a folder with a profile's device config, and the P4Info that all targets of the suite share.

    Raises Unavailable if p4c is missing.
    """
    to = Path(_folder.name) / profile
    if not to.is_dir():
        info = shared_p4info(profile)
        to.mkdir()
        write_folder(profile, to)
        (to / "p4info.txtpb").write_text(info)
    return to


def real_folder(profile: str) -> Path:
    """Return a folder with the device config of BFRT_PROGRAM, and the P4Info that all targets of the suite share."""
    to = Path(_folder.name) / f"real-{profile}"
    if not to.is_dir():
        build = Path(os.environ["BFRT_PROGRAM"]) / profile
        info = text_format.Parse(shared_p4info(profile), p4i.P4Info())
        built = text_format.Parse((build / "p4info.txtpb").read_text(), p4i.P4Info())
        for register in info.registers:
            register.size = built.registers[0].size
        to.mkdir()
        shutil.copy(build / "p4reduce.bin", to)
        (to / "p4info.txtpb").write_text(text_format.MessageToString(info))
    return to


class OverBfRuntime(Target):
    """A profile's program on a device that `p4reduce switch --target tofino` drives; its ports are socket pairs."""

    def __init__(self, profile: str) -> None:
        super().__init__()
        with ExitStack() as undo:
            undo.push(self)
            build = folder(profile)
            self.chip = device(profile)
            self.server = self.enter_context(Server(self.chip))
            cpu_port = tofino.PROFILES[profile].cpu_port
            of_switch, of_chip = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ports = [SocketPort(cpu_port, of_chip)]
            for number in range(1, PORTS + 1):
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self.sockets[number] = self.enter_context(ours)
                ports.append(SocketPort(number, theirs))
            loop = self.enter_context(PacketLoop(lambda *_: self.chip, ports, cpu_port))
            loop.run_program(self.chip)
            loop.on_packet_in = ports[0].send
            self.enter_context(looping(loop))
            requested = [PortRequest.parse(f"{port.number}:10G") for port in ports]
            self.grpc_address = _serve(
                self, self.server.address, build, requested, lambda number: SocketPort(number, of_switch)
            )
            undo.pop_all()


class OverRealBfRuntime(Target):
    """A profile's program on a real Tofino, or on Intel's model."""

    def __init__(self, profile: str) -> None:
        super().__init__()
        with ExitStack() as undo:
            undo.push(self)
            for number, interface in enumerate(os.environ["BFRT_INTERFACES"].split(","), 1):
                sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
                self.sockets[number] = self.enter_context(sock)
                sock.bind((interface, ETH_P_ALL))
            numbers = (*range(1, PORTS + 1), tofino.PROFILES[profile].cpu_port)
            requested = [PortRequest.parse(f"{number}:10G") for number in numbers]
            open_cpu_port = partial(open_cpu_interface, os.environ["BFRT_CPU_INTERFACE"])
            build = Path(os.environ["BFRT_PROGRAM"]) / profile
            self.grpc_address = _serve(self, os.environ[REAL], build, requested, open_cpu_port)
            undo.pop_all()


def _serve(
    target: Target, bfrt: str, build: Path, ports: list[PortRequest], open_cpu_port: Callable[[int], Port]
) -> str:
    """Drive a device until the target is closed, and return the address of the P4Runtime server."""
    run = target.enter_context(tempfile.TemporaryDirectory(prefix="p4reduce-test-"))
    program = parse((build / "p4reduce.bin").read_bytes())
    switch = target.enter_context(TofinoSwitch(Tofino(bfrt, program, build, ports, open_cpu_port)))
    address = f"unix:{run}/grpc"
    target.enter_context(P4RuntimeServer(switch, address=address, device_id=DEVICE, ports=switch.ports.values()))
    return address


REAL = "BFRT_SWITCH"
NAMES = {f"bfrt-{profile}": profile for profile in PROFILES}
# Without a second pass: on a real chip, the answers of a second pass come after the sentinels of the suite.
REAL_NAMES = {f"bfrt-real-{profile}": profile for profile in PROFILES[:1]} if REAL in os.environ else {}
TARGETS.update({name: partial(OverBfRuntime, profile) for name, profile in NAMES.items()})
TARGETS.update({name: partial(OverRealBfRuntime, profile) for name, profile in REAL_NAMES.items()})


class SwitchOverBfRuntime(SwitchUnderTest):
    """A profile of the program for Tofino under test, over BF Runtime."""

    cpu_port = 64  # of both profiles
    meters_have_bursts_at_rate_0 = False

    def __init__(self, name: str) -> None:
        if name in NAMES:
            super().__init__(NAMES[name], folder(NAMES[name]))
        else:
            super().__init__(REAL_NAMES[name], real_folder(REAL_NAMES[name]))
            self.pads_frames = self.sees_check_sequence = True
        self.name = name
