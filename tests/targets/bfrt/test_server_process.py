# SPDX-License-Identifier: Apache-2.0
"""The BF Runtime server of the tests as a process: ports that are sockets, a program from a client, kills and hangs."""

from __future__ import annotations

import ipaddress
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from p4reduce.protocol.constants import AGGREGATION_PORT
from tests.support.bfrt import programs
from tests.support.bfrt.plain_client import PlainClient
from tests.support.bfrt.process import BfrtProcess
from tests.support.bfrt.schema import fixed, parse
from tests.support.dataplane.targets import Unavailable
from tests.support.waiting import wait_until

pytestmark = pytest.mark.p4c

PROFILE = "tofino1-32"
OWN_ADDRESSES = "pipe.SwitchIngress.own_address.own_addresses"
MACS, FORWARD = "pipe.SwitchIngress.forwarding.mac_addresses", "SwitchIngress.forwarding.forward"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[BfrtProcess]:
    try:
        program = programs.write_folder(PROFILE, tmp_path)
    except Unavailable as missing:
        pytest.skip(str(missing))
    own = ipaddress.IPv4Address((127 << 24) + (1 << 16) + os.getpid() % (1 << 16))  # of no other test
    with BfrtProcess(PROFILE, [f"4=udp:{own}:0", "8=udp:127.0.0.1:0"], tmp_path, program) as process:
        yield process


def connected(process: BfrtProcess) -> PlainClient:
    tables = {**parse(fixed("tf1")), **parse(programs.device_config(PROFILE).bfruntime_info)}
    client = PlainClient(process.address, tables)
    client.subscribe()
    client.bind()
    return client


def nothing_waits(host: str, port: int) -> bool:
    """Return whether the program with this UDP socket has received all that was sent to it."""
    local = f"{int.from_bytes(ipaddress.IPv4Address(host).packed, sys.byteorder):08X}:{port:04X}"
    sockets = [line.split() for line in Path("/proc/net/udp").read_text().splitlines()]
    [queues] = [fields[4] for fields in sockets if fields[1] == local]
    return int(queues.partition(":")[2], 16) == 0


def forwarding(client: PlainClient, mac: int) -> None:
    """Add both ports, and forward an address to the second."""
    settings = {"$SPEED": "BF_SPEED_100G", "$FEC": "BF_FEC_TYP_NONE", "$PORT_ENABLE": True}
    ports = [("INSERT", client.entry("$PORT", {"$DEV_PORT": number}, settings)) for number in (4, 8)]
    entry = client.entry(MACS, {"mac": mac}, {"port": 8}, FORWARD)
    assert client.write(*ports, ("INSERT", entry)) == [""] * 3


def test_a_frame_goes_through_the_process(process: BfrtProcess) -> None:
    """A datagram comes in at port 4 as a frame, and leaves at port 8 to the address that port 4 has."""
    host, _, number = process.ports[4].removeprefix("udp:").rpartition(":")
    with connected(process) as client, ExitStack() as stack:
        receiver, sender = (stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) for _ in range(2))
        receiver.bind((host, AGGREGATION_PORT))
        receiver.settimeout(20)
        sender.sendto(b"lost: no port is up", (host, int(number)))
        wait_until(lambda: nothing_waits(host, int(number)), "the process to receive it")
        forwarding(client, 0x0200 << 32 | int(ipaddress.IPv4Address(host)))
        sender.sendto(b"a datagram", (host, int(number)))
        assert receiver.recv(100) == b"a datagram"


def test_a_restart_after_a_kill(process: BfrtProcess) -> None:
    """Address and ports stay, and the state is gone."""
    address, ports = process.address, dict(process.ports)
    with connected(process) as client:
        forwarding(client, 1)
        process.kill()
        assert client.ended.wait(20)
        assert client.end is grpc.StatusCode.UNAVAILABLE
    process.restart()
    assert (process.address, process.ports) == (address, ports)
    with connected(process) as client:
        assert len(client.read(client.entry(MACS))) == 1
        assert client.read(client.entry("$PORT")) == []


def test_a_process_that_hangs(process: BfrtProcess) -> None:
    with connected(process) as client:
        process.hang()
        with pytest.raises(grpc.RpcError) as error:
            client._channel.unary_unary("/bfrt_proto.BfRuntime/Write")(b"", timeout=0.3)
        assert error.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED  # type: ignore[attr-defined]
        process.go_on()
        forwarding(client, 1)
