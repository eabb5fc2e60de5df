# SPDX-License-Identifier: Apache-2.0
"""A Tofino under test: P4Runtime, then BF Runtime, then a device that executes the program, all in this process."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from p4reduce_targets.bfrt.device_config import parse
from p4reduce_targets.bfrt.ports import PortRequest
from p4reduce_targets.bfrt.switch import Tofino, TofinoSwitch
from p4reduce_targets.p4runtime import Server as P4RuntimeServer
from p4reduce_targets.switch import Switch as PacketLoop
from tests.support.dataplane.p4runtime import DEVICE
from tests.support.dataplane.targets import PORTS, TARGETS, SocketPort, Target, looping
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


class OverBfRuntime(Target):
    """A profile's program on a device that `p4reduce switch --target tofino` drives; its ports are socket pairs."""

    def __init__(self, profile: str) -> None:
        super().__init__()
        with ExitStack() as undo:
            undo.push(self)
            run = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="p4reduce-test-")))
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
            program = parse((build / "p4reduce.bin").read_bytes())
            wanted = Tofino(
                self.server.address, program, build, requested, lambda number: SocketPort(number, of_switch)
            )
            self.switch = self.enter_context(TofinoSwitch(wanted))
            server = self.enter_context(
                P4RuntimeServer(self.switch, address=f"unix:{run}/grpc", device_id=DEVICE, ports=[])
            )
            self.grpc_address = server.address
            undo.pop_all()


def _target(profile: str) -> Callable[[], Target]:
    return lambda: OverBfRuntime(profile)


NAMES = {f"bfrt-{profile}": profile for profile in PROFILES}
TARGETS.update({name: _target(profile) for name, profile in NAMES.items()})


class SwitchOverBfRuntime(SwitchUnderTest):
    """A profile of the program for Tofino under test, over BF Runtime."""

    meters_have_bursts_at_rate_0 = False

    def __init__(self, name: str) -> None:
        super().__init__(NAMES[name], folder(NAMES[name]))
        self.name = name
