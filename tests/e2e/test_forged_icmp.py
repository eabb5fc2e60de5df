# SPDX-License-Identifier: Apache-2.0
"""A flood of forged ICMP that says the path's MTU is small, while ranks send."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from scapy.layers.inet import ICMP, IP, UDP
from scapy.layers.inet6 import ICMPv6PacketTooBig, IPv6
from scapy.packet import Packet

from p4reduce.transport.addresses import is_ipv6, join_host_port
from tests.support.cluster.stack import REPEATED, Stack, go_on, job
from tests.support.own_network import Namespace

FLOODERS = 2

pytestmark = [pytest.mark.root, pytest.mark.slow]


def forged(ip: str, rank_port: int, switch_port: int) -> bytes:
    """Return an ICMP message about a datagram of a rank to the switch, without an IP header of its own."""
    about: Packet = UDP(sport=rank_port, dport=switch_port) / bytes(100)
    if is_ipv6(ip):
        said: Packet = ICMPv6PacketTooBig(mtu=1280)
        return bytes(said / IPv6(src=ip, dst=ip) / about)  # the kernel adds the checksum
    said = ICMP(type=3, code=4, nexthopmtu=552)
    return bytes(said / IP(src=ip, dst=ip) / about)


@contextlib.contextmanager
def flood(ip: str, messages: list[bytes]) -> Iterator[None]:
    """Send the messages over and over during the block."""
    ended = threading.Event()

    def run() -> None:
        how = (socket.AF_INET6, socket.IPPROTO_ICMPV6) if is_ipv6(ip) else (socket.AF_INET, socket.IPPROTO_ICMP)
        with socket.socket(how[0], socket.SOCK_RAW, how[1]) as sock:
            while not ended.is_set():
                for message in messages * 20:
                    sock.sendto(message, (ip, 0))

    threads = [threading.Thread(target=run) for _ in range(FLOODERS)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def serving(namespace: Namespace, ip: str) -> Iterator[Stack]:
    with Stack("native", [f"1=udp:{join_host_port(ip, 0)}"], enter=namespace.entered) as stack:
        yield stack  # type: ignore[misc]


@pytest.mark.parametrize("backend", ["c", "python"])
@pytest.mark.parametrize("ip", ["127.0.0.1", "::1"])
def test_a_job_goes_on(monkeypatch: pytest.MonkeyPatch, backend: str, ip: str) -> None:
    """In a network namespace of its own: the kernel believes such ICMP for ten minutes."""
    monkeypatch.setenv("P4REDUCE_BACKEND", backend)
    with (
        closing(Namespace()) as namespace,
        serving(namespace, ip) as stack,
        stack.ranks(REPEATED, job="job", repeat=True, world_size=2, hosts=[0, 1]) as ranks,
    ):
        go_on(ranks)
        switch_port = int(stack.addresses[0].rpartition(":")[2])
        ports = [member["places"][0]["udp_port"] for member in job(stack, "job")["members"]]
        with namespace.entered(), flood(ip, [forged(ip, port, switch_port) for port in ports]):
            go_on(ranks, steps=30)
