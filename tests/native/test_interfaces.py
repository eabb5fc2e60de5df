# SPDX-License-Identifier: Apache-2.0
"""Interfaces as ports, with all that Linux leaves to network cards: checksums and segments are not ready made."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from queue import Queue
from typing import Any

import pytest

from p4reduce.transport.addresses import family_of
from p4reduce_targets.native import NativeSwitch
from p4reduce_targets.ports import PortSpec
from tests.support.dataplane import frames
from tests.support.dataplane.direct import Direct
from tests.support.dataplane.frames import Aggregation
from tests.support.dataplane.switch import SHIPPED, SWITCH
from tests.support.own_network import Namespace, ip, wait_until_up

from .udp_switch import CONFIG, SOL_UDP, UDP_SEGMENT

pytestmark = pytest.mark.root

OWN = frames.Host(SWITCH.mac, "10.3.0.254")
OWN_IPV6 = frames.Host(SWITCH.mac, "fd03::fe")
TIMEOUT_S = 30
ICMPV6_FILTER = 1  # bits of types that a socket does not get
OFFLOAD = struct.Struct("=BBHHHH")  # struct virtio_net_hdr


def packet_socket(protocol: int) -> socket.socket:
    """Return a socket for the frames of `wire`, each behind the header for its offloads."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    sock.setsockopt(263, 15, 1)  # SOL_PACKET, PACKET_VNET_HDR
    sock.bind(("wire", protocol))
    return sock


class Host:
    """A network namespace whose interface `wire` is at a port of the switch; work is done there by a thread."""

    def __init__(self, stack: ExitStack, number: int) -> None:
        self.address, self.ipv6 = f"10.3.0.{number}", f"fd03::{number}"
        self._namespace = stack.enter_context(closing(Namespace()))
        self._pool = stack.enter_context(ThreadPoolExecutor(1))
        ip("link", "add", f"port{number}", "type", "veth", "peer", "name", "wire", "netns", self._namespace.path)
        with self._namespace.entered():
            ip("address", "add", f"{self.address}/24", "dev", "wire")
            ip("address", "add", f"{self.ipv6}/64", "dev", "wire", "nodad")
            ip("link", "set", "wire", "up")
        ip("link", "set", f"port{number}", "up")
        wait_until_up(f"port{number}")

    def __call__(self, work: Callable[[], Any]) -> Future[Any]:
        """Start work in the namespace, after all earlier work, and return its future."""

        def inside() -> Any:
            with self._namespace.entered():
                return work()

        return self._pool.submit(inside)


@pytest.fixture
def hosts(alone: None) -> Iterator[tuple[NativeSwitch, list[Host]]]:  # noqa: ARG001
    """Yield a switch that floods and answers for an address, and two hosts at its ports 1 and 2."""
    with ExitStack() as stack:
        made = [Host(stack, number) for number in (1, 2)]
        switch = stack.enter_context(NativeSwitch([PortSpec(1, "eth", "port1"), PortSpec(2, "eth", "port2")]))
        plane = switch.load(CONFIG)
        switch.run_program(plane)
        direct = Direct("native", plane, SHIPPED)
        direct.own_address(OWN)
        direct.own_address(OWN_IPV6)
        direct.flood_unknown(1)
        yield switch, made


def test_a_tcp_connection_passes_the_switch(hosts: tuple[NativeSwitch, list[Host]]) -> None:
    _, (first, second) = hosts
    data = os.urandom(1 << 20) * 8
    listening: Future[int] = Future()

    def serve() -> bytes:
        with socket.create_server((first.address, 0)) as server:
            server.settimeout(TIMEOUT_S)
            listening.set_result(server.getsockname()[1])
            connection, _ = server.accept()
            with connection, connection.makefile("rb") as stream:
                return stream.read()

    def send() -> None:
        with socket.create_connection((first.address, listening.result(TIMEOUT_S)), timeout=TIMEOUT_S) as connection:
            connection.sendall(data)

    received = first(serve)
    second(send).result(2 * TIMEOUT_S)
    assert received.result(2 * TIMEOUT_S) == data


@pytest.mark.parametrize("own", [OWN, OWN_IPV6], ids=["IPv4", "IPv6"])
def test_a_chain_of_datagrams_is_taken_apart(hosts: tuple[NativeSwitch, list[Host]], own: frames.Host) -> None:
    """Before it, the host asks for the switch's MAC address, by ARP or by a neighbour solicitation."""
    switch, (first, _) = hosts
    source = first.address if own is OWN else first.ipv6
    headers = len(frames.udp_frame(own, own, b""))
    heard: Queue[bytes] = Queue()
    switch.on_packet_in = heard.put
    hellos = [Aggregation(op=frames.HELLO, worker=rank, keys=(rank,) * 4).pack() for rank in range(50)]

    def send() -> None:
        with socket.socket(family_of(own.ip), socket.SOCK_DGRAM) as sock:
            sock.bind((source, 4000))
            control = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", len(hellos[0])))]
            sock.sendmsg([b"".join(hellos)], control, 0, (own.ip, frames.AGGREGATION_PORT))

    first(send).result(TIMEOUT_S)
    came = [heard.get(timeout=TIMEOUT_S) for _ in hellos]
    assert [frame[6 + headers :] for frame in came] == hellos
    lengths = len(hellos[0]) + 8
    for frame in came:
        assert frame[6 + headers - 4 : 6 + headers] == struct.pack("!HH", lengths, 0)
        if own is OWN:
            assert frames.checksum(frame[6 + 14 : 6 + 34]) == 0
        else:
            assert int.from_bytes(frame[6 + 18 : 6 + 20], "big") == lengths


def test_datagrams_in_one_gso_frame_with_a_tag(hosts: tuple[NativeSwitch, list[Host]]) -> None:
    """A VLAN interface hands several datagrams over as one frame, too."""
    switch, (first, _) = hosts
    heard: Queue[bytes] = Queue()
    switch.on_packet_in = heard.put
    sender = frames.Host("02:00:00:00:00:07", first.address, 4000, vlan=20)
    payloads = [Aggregation(op=frames.HELLO, job=number, keys=(0,) * 4).pack() for number in range(5)]
    frame = frames.udp_frame(sender, OWN, b"".join(payloads))
    headers = len(frame) - len(b"".join(payloads))
    udp_l4, needs_checksum = 5, 1  # VIRTIO_NET_HDR_GSO_UDP_L4, VIRTIO_NET_HDR_F_NEEDS_CSUM
    offload = OFFLOAD.pack(needs_checksum, udp_l4, headers, len(payloads[0]), headers - 8, 6)

    def send() -> None:
        with packet_socket(0) as sock:
            sock.send(offload + frame)

    first(send).result(TIMEOUT_S)
    came = [heard.get(timeout=TIMEOUT_S)[6:] for _ in payloads]
    assert [one[:18] for one in came] == [frame[:18]] * len(payloads)
    assert [one[46:] for one in came] == payloads


def test_offloads_of_a_frame_with_a_tag(hosts: tuple[NativeSwitch, list[Host]]) -> None:
    """A VLAN interface hands over TCP segments without a checksum and in one frame, longer than the MTU."""
    _, (first, second) = hosts
    sender = frames.Host("02:00:00:00:00:07", first.address)
    segments = struct.pack("!HHIIBBHHH", 4000, 4001, 1, 1, 5 << 4, 0x10, 1000, 0xABCD, 0) + bytes(3000)
    packet = frames.ipv4(sender.ip, second.address, socket.IPPROTO_TCP, segments)
    plain = frames.ethernet(sender.mac, frames.BROADCAST, frames.IPV4, packet)

    def offload(tag_bytes: int, hint: int) -> tuple[int, ...]:
        """Return the header for a frame with so many bytes of tags. The length of its headers is a hint."""
        needs_checksum, tcp_v4 = 1, 1  # VIRTIO_NET_HDR_F_NEEDS_CSUM, VIRTIO_NET_HDR_GSO_TCPV4
        return needs_checksum, tcp_v4, hint, 1000, tag_bytes + 34, 16

    ready: Future[None] = Future()

    def listen() -> tuple[tuple[int, ...], bytes]:
        with packet_socket(3) as sock:
            sock.settimeout(TIMEOUT_S)
            ready.set_result(None)
            while True:
                data = sock.recv(9000)
                if data[16:22] == frames.mac_bytes(sender.mac):
                    return OFFLOAD.unpack_from(data), data[OFFLOAD.size :]

    def send() -> None:
        with packet_socket(0) as sock:
            sock.send(OFFLOAD.pack(*offload(4, 58)) + frames.tagged(plain, 20))

    received = second(listen)
    ready.result(TIMEOUT_S)
    first(send).result(TIMEOUT_S)
    found, frame = received.result(TIMEOUT_S)  # its tag is in the auxiliary data
    assert (found, frame) == (offload(0, found[2]), plain)


def test_the_switch_answers_ping_and_arp(hosts: tuple[NativeSwitch, list[Host]]) -> None:
    _, (first, _) = hosts

    def ping() -> bytes:
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as sock:
            sock.settimeout(TIMEOUT_S)
            sock.sendto(frames.icmp_echo(8, 77, 1, b"hello"), (OWN.ip, 0))
            return sock.recv(2000)

    assert first(ping).result(TIMEOUT_S)[20:] == frames.icmp_echo(0, 77, 1, b"hello")


def test_the_switch_answers_ping_and_solicitations(hosts: tuple[NativeSwitch, list[Host]]) -> None:
    """The kernel fills in the request's checksum and checks the answer's."""
    _, (first, _) = hosts
    request = struct.pack("!BBHHH", 128, 0, 0, 77, 1) + b"hello"

    def ping() -> bytes:
        with socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6) as sock:
            sock.settimeout(TIMEOUT_S)
            all_but_replies = [0xFFFFFFFF] * 8
            all_but_replies[129 // 32] ^= 1 << 129 % 32
            sock.setsockopt(socket.IPPROTO_ICMPV6, ICMPV6_FILTER, struct.pack("=8I", *all_but_replies))
            sock.sendto(request, (OWN_IPV6.ip, 0))
            return sock.recv(2000)

    answer = first(ping).result(TIMEOUT_S)
    assert (answer[0], answer[4:]) == (129, request[4:])


def test_a_vlan_tag_stays_in_the_frame(hosts: tuple[NativeSwitch, list[Host]]) -> None:
    _, (first, second) = hosts
    tagged = b"\xff" * 6 + frames.mac_bytes("02:00:00:00:00:07") + b"\x81\x00\x00\x2a\x88\xb5" + bytes(range(60))
    ready: Future[None] = Future()

    def listen() -> bytes:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as sock:
            sock.bind(("wire", 3))
            sock.settimeout(TIMEOUT_S)
            sock.setsockopt(263, 8, 1)  # SOL_PACKET, PACKET_AUXDATA: tells the tag that the kernel takes out
            ready.set_result(None)
            while True:
                data, auxiliary, _, _ = sock.recvmsg(2000, 200)
                if data[6:12] == tagged[6:12]:
                    _, _, told = auxiliary[0]
                    status, *_, tag, _ = struct.unpack("=IIIHHHH", told[:20])
                    return data[:12] + (struct.pack("!HH", 0x8100, tag) if status & 0x10 else b"") + data[12:]

    def send() -> None:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0) as sock:
            sock.bind(("wire", 0))
            sock.send(tagged)

    received = second(listen)
    ready.result(TIMEOUT_S)
    first(send).result(TIMEOUT_S)
    assert received.result(TIMEOUT_S) == tagged
