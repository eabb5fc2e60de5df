# SPDX-License-Identifier: Apache-2.0
"""A Tofino that `p4reduce switch` drives, over the tests' BF Runtime server."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from p4reduce_targets.bfrt import bfruntime_pb2 as pb
from p4reduce_targets.bfrt.switch import Tofino, TofinoSwitch
from tests.support.bfrt import idle
from tests.support.bfrt.server import Server
from tests.support.dataplane.targets import SocketPort

PROFILE = "tofino1-64"
DEADLINE = 20.0


@pytest.fixture
def cpu() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Yield both ends of the CPU port: the program's, and the switch's."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ends[0].settimeout(DEADLINE)
    yield ends
    for end in ends:
        end.close()


def test_packets_do_not_wait_for_calls_of_bf_runtime(cpu: tuple[socket.socket, socket.socket]) -> None:
    """The controller's RESETs would stop otherwise, while the driver collects counters from the chip."""
    program = pb.ForwardingPipelineConfig.FromString(idle.device_config(PROFILE).SerializeToString())
    with ExitStack() as stack:
        server = stack.enter_context(Server(idle.device(PROFILE)))
        wanted = Tofino(server.address, program, Path(), [], lambda number: SocketPort(number, cpu[1]))
        switch = stack.enter_context(TofinoSwitch(wanted))
        with switch.exclusive():
            sender = threading.Thread(target=switch.packet_out, args=(b"to the program",))
            sender.start()
            assert cpu[0].recv(100) == b"to the program"
        sender.join(DEADLINE)
        assert not sender.is_alive()
