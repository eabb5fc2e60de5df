# SPDX-License-Identifier: Apache-2.0
"""Interfaces as ports, with all that Linux leaves to network cards: checksums and segments are not ready made."""

from __future__ import annotations

import itertools
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from ctypes import CDLL

import pytest

from p4reduce_targets.dataplane import Call, Exact, Replica
from p4reduce_targets.native import NativeSwitch
from tests.support.dataplane import frames
from tests.support.dataplane.frames import Aggregation

from .udp_switch import COMPILED, LANES, SOL_UDP, UDP_SEGMENT

pytestmark = pytest.mark.root

CLONE_NEWNET = 0x40000000
SWITCH_IP, SWITCH_MAC = "10.3.0.254", 0x025A00000001
MAC_ADDRESSES = "SwitchIngress.forwarding.mac_addresses"
_numbers = itertools.count()


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


class Host:
    """A network namespace with an interface `link`, whose other end is `link` in the switch's namespace."""

    def __init__(self, name: str, address: str) -> None:
        self.name, self.address = name, address
        self._pool = ThreadPoolExecutor(1)

    def __call__(self, work: Callable[[], object]) -> Future[object]:
        """Does something in the namespace; in order."""
        return self._pool.submit(self._inside, work)

    def _inside(self, work: Callable[[], object]) -> object:
        with open(f"/run/netns/{self.name}") as file:
            assert CDLL(None).setns(file.fileno(), CLONE_NEWNET) == 0
        return work()

    def close(self) -> None:
        self._pool.shutdown()


@pytest.fixture
def hosts() -> Iterator[tuple[NativeSwitch, list[Host]]]:
    """Two hosts, at ports 1 and 2 of a switch that floods, and answers for SWITCH_IP."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make network namespaces")
    with ExitStack() as stack:
        name = f"p4reduce-native-{os.getpid()}-{next(_numbers)}"
        made = []
        for index in ("0", "1", "2"):
            try:
                run("ip", "netns", "add", f"{name}-{index}")
            except (OSError, subprocess.CalledProcessError) as error:
                pytest.skip(f"network namespaces cannot be made here: {error}")
            stack.callback(run, "ip", "netns", "del", f"{name}-{index}")
        for index in (1, 2):
            inside = ("ip", "-n", f"{name}-{index}")
            peer = ("peer", "name", f"port{index}", "netns", f"{name}-0")
            run(*inside, "link", "add", "wire", "type", "veth", *peer)
            run(*inside, "address", "add", f"10.3.0.{index}/24", "dev", "wire")
            run(*inside, "link", "set", "wire", "up")
            run("ip", "-n", f"{name}-0", "link", "set", f"port{index}", "up")
            made.append(Host(f"{name}-{index}", f"10.3.0.{index}"))
            stack.callback(made[-1].close)
        switch_host = Host(f"{name}-0", "")
        stack.callback(switch_host.close)
        ports = [f"{index}=eth:port{index}" for index in (1, 2)]
        switch = switch_host(lambda: NativeSwitch(ports)).result()
        assert isinstance(switch, NativeSwitch)
        stack.enter_context(switch)
        plane = switch.load((COMPILED / "p4reduce.json").read_bytes())
        switch.run_program(plane)
        own = Call("SwitchIngress.own_address.own", (SWITCH_MAC,))
        plane.insert("SwitchIngress.own_address.own_addresses", (Exact(frames.ip_number(SWITCH_IP)),), 0, own)
        plane.set_group(1, [Replica(1, 0), Replica(2, 0)])
        plane.set_default(MAC_ADDRESSES, Call("SwitchIngress.forwarding.flood", (1,)))
        yield switch, made


def test_a_tcp_connection_passes_the_switch(hosts: tuple[NativeSwitch, list[Host]]) -> None:
    _, (first, second) = hosts
    data = os.urandom(1 << 20) * 8
    listening: Future[int] = Future()

    def serve() -> bytes:
        with socket.create_server((first.address, 0)) as server:
            server.settimeout(30)
            listening.set_result(server.getsockname()[1])
            connection, _ = server.accept()
            with connection:
                connection.settimeout(30)
                received = bytearray()
                while part := connection.recv(1 << 20):
                    received += part
                return bytes(received)

    def send() -> None:
        with socket.create_connection((first.address, listening.result(30)), timeout=30) as connection:
            connection.sendall(data)

    received = first(serve)
    second(send).result(60)
    assert received.result(60) == data


def test_a_chain_of_datagrams_is_taken_apart(hosts: tuple[NativeSwitch, list[Host]]) -> None:
    switch, (first, _) = hosts
    heard: list[bytes] = []
    all_heard = threading.Event()

    def on_packet_in(frame: bytes) -> None:
        heard.append(frame)
        if len(heard) == 50:
            all_heard.set()

    switch.on_packet_in = on_packet_in
    hellos = [Aggregation(op=frames.HELLO, worker=rank, keys=(rank,) * LANES).pack() for rank in range(50)]

    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.bind((first.address, 4000))
            control = [(SOL_UDP, UDP_SEGMENT, struct.pack("=H", len(hellos[0])))]
            sock.sendmsg([b"".join(hellos)], control, 0, (SWITCH_IP, frames.AGGREGATION_PORT))

    first(send).result(30)
    assert all_heard.wait(30), f"{len(heard)} of 50"
    assert [frame[6 + 42 :] for frame in heard] == hellos
    assert all(frames.checksum(frame[6 + 14 : 6 + 34]) == 0 for frame in heard)


def test_the_switch_answers_ping_and_arp(hosts: tuple[NativeSwitch, list[Host]]) -> None:
    _, (first, _) = hosts

    def ping() -> bytes:
        with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as sock:
            sock.settimeout(10)
            sock.sendto(frames.icmp_echo(8, 77, 1, b"hello"), (SWITCH_IP, 0))
            return sock.recv(2000)

    answer = first(ping).result(30)
    assert isinstance(answer, bytes)
    assert answer[20:] == frames.icmp_echo(0, 77, 1, b"hello")


def test_a_vlan_tag_stays_in_the_frame(hosts: tuple[NativeSwitch, list[Host]]) -> None:
    _, (first, second) = hosts
    tagged = b"\xff" * 6 + frames.mac_bytes("02:00:00:00:00:07") + b"\x81\x00\x00\x2a\x88\xb5" + bytes(range(60))
    ready: Future[None] = Future()

    def listen() -> bytes:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as sock:
            sock.bind(("wire", 3))
            sock.settimeout(10)
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
    ready.result(10)
    first(send).result(10)
    assert received.result(30) == tagged
