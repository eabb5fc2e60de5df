# SPDX-License-Identifier: Apache-2.0
"""The C engine over AF_PACKET, on one end of a veth pair; the model of the switch is at the other end."""

from __future__ import annotations

import contextlib
import re
import select
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scapy.layers.inet import UDP as Datagram
from scapy.layers.inet6 import ICMPv6PacketTooBig, IPv6
from scapy.layers.l2 import Ether

from p4reduce.engine.python_engine import PythonEngine
from p4reduce.errors import CollectiveTimeout
from p4reduce.fastpath.engine import NativeEngine
from p4reduce.protocol import Membership, Operation, Worker
from p4reduce.protocol.constants import ECN_CE, ECN_ECT_0
from p4reduce.protocol.numbers import reference_allreduce
from p4reduce.transport import Switch, TransportError, open_transport
from p4reduce.transport.addresses import is_ipv6
from p4reduce.transport.frames import ETHERNET, ip_and_udp_bytes
from tests.support.dataplane import frames
from tests.support.hostlib.engines import CLOSED
from tests.support.hostlib.operations import end_of
from tests.support.hostlib.udp_switch import members
from tests.support.own_network import OwnNetwork, ip
from tests.support.waiting import wait_until

from .frame_switch import FrameSwitch, traffic_class_of

pytestmark = pytest.mark.root
BARE_BYTES, LANE_BYTES = 34, 256  # of a packet of four lanes of 64 values


def start(membership: Membership, endpoint: Switch, network: OwnNetwork) -> NativeEngine:
    transport = open_transport("raw", endpoint, interface=network.host)
    transport.send([Worker(membership).hello(1)])  # or the switch would not know where to send results
    return NativeEngine(transport, membership, switch=str(endpoint))


@contextlib.contextmanager
def running(
    network: OwnNetwork, membership: Membership, kind: str, *, hello: bool = True, in_python: bool = False
) -> Iterator[tuple[FrameSwitch, Any]]:
    """Yield a switch, and the engine of a job's only rank."""
    ip("neighbour", "add", network.switch_ip, "lladdr", network.switch_mac, "dev", network.host)
    with contextlib.closing(FrameSwitch(network, membership)) as switch:
        transport = open_transport(kind, switch.endpoint, interface=network.host)
        if hello:
            transport.send([Worker(membership).hello(1)])
        where = {"switch": str(switch.endpoint)}
        made: PythonEngine | NativeEngine
        if in_python:
            made = PythonEngine(transport, Worker(membership), **where)
        else:
            made = NativeEngine(transport, membership, **where)
        yield switch, made
        made.close(CLOSED)


@pytest.mark.parametrize(("lanes", "block_size"), [(4, 64), (1, 32), (2, 128)])
@pytest.mark.parametrize("ring", ["blocks", "none"])
def test_reduces(
    either_network: OwnNetwork, monkeypatch: pytest.MonkeyPatch, ring: str, lanes: int, block_size: int
) -> None:
    monkeypatch.setenv("P4REDUCE_RING", ring)
    memberships = members(2, lanes=lanes, block_size=block_size)
    network = either_network
    with contextlib.closing(FrameSwitch(network, memberships[0])) as switch:
        engines = [start(membership, switch.endpoint, network) for membership in memberships]
        wait_until(lambda: switch.ranks_heard == 2, "the switch to hear all ranks")
        random = np.random.default_rng(1)
        ended: list[BaseException | None] = []
        for size in (0, 1, 5000, 2049 * 256, 3000):  # of which one is long enough for the ring
            arrays = [random.standard_normal(size).astype(np.float32) for _ in engines]
            for array in arrays:
                array[: size // 2] *= random.random(size // 2) < 0.02
            expected = reference_allreduce(arrays, block_size=block_size)
            ended.clear()
            for engine, array in zip(engines, arrays, strict=True):
                engine.submit(Operation(array), name="sum", timeout=20, on_end=ended.append)
            wait_until(lambda: len(ended) == 2, "the operations to end", 30)
            assert ended == [None, None]
            for array in arrays:
                np.testing.assert_array_equal(array.view(np.int32), expected.view(np.int32))
        described = {"blocks": ", TPACKET_V3 ring", "none": ""}[ring]
        for engine in engines:
            assert engine.link() == f"AF_PACKET{described}"
            assert engine.stats.foreign == 0
            engine.close(CLOSED)


@pytest.mark.parametrize("ring", ["blocks", "none"])
@pytest.mark.parametrize("ecn", range(4))
def test_marks(either_network: OwnNetwork, monkeypatch: pytest.MonkeyPatch, ring: str, ecn: int) -> None:
    """Packets leave with ECT(0). The first operation is for batches, the second for the ring."""
    monkeypatch.setenv("P4REDUCE_RING", ring)
    with running(either_network, members(1, slots=64)[0], "raw") as (switch, engine):
        switch.traffic_class = 0x28 | ecn
        for blocks in (4, 2049 * 4):
            before = engine.stats.marks
            assert end_of(engine, Operation(np.ones(blocks * 64, np.float32))) is None
            assert (engine.stats.marks > before) == (ecn == ECN_CE)
        assert {traffic_class_of(frame) for frame in switch.frames} == {ECN_ECT_0}


def test_super_packets_that_do_not_arrive(either_network: OwnNetwork) -> None:
    """A veth pair hands a super-packet over as one frame, which no switch understands: the engine sends singly then."""
    with running(either_network, members(1, slots=64)[0], "udp", hello=False) as (switch, engine):
        array = np.ones(64 * 64 * 8, np.float32)
        assert end_of(engine, Operation(array)) is None
        assert engine.link() == "UDP, GRO"
        single = {BARE_BYTES + lanes * LANE_BYTES for lanes in range(5)}

        def lengths() -> list[int]:
            return [len(frame) - ETHERNET.size - ip_and_udp_bytes(either_network.host_ip) for frame in switch.frames]

        def lost() -> int:
            return int(engine.stats.packets_sent) - sum(length in single for length in lengths())

        assert set(lengths()) - single  # more than one packet in a frame
        wait_until(lambda: lost() <= 128, lambda: f"{lost()} of 576 packets are lost, and not only the first")


def test_an_interface_that_goes_down_is_no_busy_loop(network: OwnNetwork) -> None:
    with running(network, members(1)[0], "raw") as (_, engine):
        ip("link", "set", network.host, "down")
        error = end_of(engine, Operation(np.ones(100, np.float32)), timeout=1.0)
        assert isinstance(error, CollectiveTimeout)
        assert re.search(r"has not answered for \d\.\d s \(Network is down\)", str(error))
        assert engine.stats.packets_sent < 200


@pytest.mark.parametrize("kind", ["udp", "raw"])
@pytest.mark.parametrize("slots", [1, 50])
def test_a_path_that_becomes_too_narrow(either_network: OwnNetwork, kind: str, slots: int) -> None:
    """Interfaces with IPv6 have an MTU of 1280 or more."""
    with running(either_network, members(1, slots=slots, block_size=80)[0], kind) as (_, engine):
        ip("link", "set", either_network.host, "mtu", "1280")
        error = end_of(engine, Operation(np.ones(320 * slots, np.float32)))
        assert isinstance(error, TransportError)
        assert "a packet of 1314 bytes is longer than the MTU of the path" in str(error)


def forged_icmp(network: OwnNetwork, endpoint: Switch, local: tuple[str, int]) -> bytes:
    """Return a frame with which a neighbour claims, by ICMP, that the path to the switch has a small MTU."""
    if is_ipv6(endpoint.ip):
        told = IPv6(src="fd00:9::66", dst=local[0]) / ICMPv6PacketTooBig(mtu=1280)
        sent = IPv6(src=local[0], dst=endpoint.ip) / Datagram(sport=local[1], dport=endpoint.udp_port) / bytes(1000)
        return bytes(Ether(src="02:00:00:00:00:66", dst=network.host_mac) / told / sent)
    ours = frames.udp(local[1], endpoint.udp_port, bytes(BARE_BYTES + 4 * LANE_BYTES))
    message = frames.icmp_too_big(552, frames.ipv4(local[0], endpoint.ip, frames.UDP, ours))
    packet = frames.ipv4("10.9.0.66", local[0], frames.ICMP, message)
    return frames.ethernet("02:00:00:00:00:66", network.host_mac, frames.IPV4, packet)


def too_big() -> bool:
    """Return whether this network namespace has received "packet too big" over IPv6."""
    counters = dict(line.split() for line in Path("/proc/thread-self/net/snmp6").read_text().splitlines())
    return counters["Icmp6InPktTooBigs"] != "0"


@pytest.mark.parametrize("in_python", [False, True])
def test_forged_icmp_ends_nothing(network: OwnNetwork, in_python: bool) -> None:
    with (
        running(network, members(1)[0], "udp", in_python=in_python) as (switch, engine),
        socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as wire,
    ):
        wire.bind((network.wire, 0))
        forged = forged_icmp(network, switch.endpoint, engine._transport.local_address)
        for _ in range(5):
            wire.send(forged)
            array = np.ones(5000, np.float32)
            assert end_of(engine, Operation(array)) is None
            assert (array == 1).all()


def test_forged_icmp_is_no_reason_not_to_send(either_network: OwnNetwork) -> None:
    """Over IPv4, the socket is told of it, and over IPv6 it is not."""
    network = either_network
    ipv6 = is_ipv6(network.switch_ip)
    ip("neighbour", "add", network.switch_ip, "lladdr", network.switch_mac, "dev", network.host)
    endpoint = Switch(network.switch_ip, 31314)
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as wire:
        wire.bind((network.wire, 0))
        transport = open_transport("udp", endpoint, interface=network.host)
        wire.send(forged_icmp(network, endpoint, transport.local_address))
        poll = select.poll()
        poll.register(transport.fileno(), 0)
        wait_until(lambda: too_big() if ipv6 else bool(poll.poll(0)), "the kernel to have heard of it")
        wire.bind((network.wire, 0x86DD if ipv6 else 0x0800))
        wire.settimeout(10)
        payload = bytes(range(256)) * 5
        assert transport.send([payload]) == 1
        assert (transport.trouble is None) == ipv6
        while not (frame := wire.recv(2000)).endswith(payload):
            assert frame
        transport.close()
