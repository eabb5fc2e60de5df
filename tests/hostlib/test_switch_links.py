# SPDX-License-Identifier: Apache-2.0
"""A rank reports packets that its own kernel refuses to send, or that no program at the other end receives."""

from __future__ import annotations

import errno
import os
import socket
import struct
import time
from contextlib import closing
from typing import Any

import pytest

from p4reduce.control.jobs_pb2 import Assigned, Endpoint, Ready
from p4reduce.fastpath.engine import packed
from p4reduce.join.joining import membership
from p4reduce.join.switch_links import SwitchLinks
from p4reduce.transport import StripedTransport, Switch, TransportError
from p4reduce.transport.base import LEAST_MTU, check_mtu, explain_refusal
from p4reduce.transport.frames import ip_and_udp_bytes
from tests.support.own_network import Namespace, ip

AT = Switch("10.0.0.254", 31314)
JOBS = struct.Struct("!I")  # a packet's job number and generation


def assigned(*ports: int, at: str = "127.0.0.1") -> Assigned:
    aggregators = [Endpoint(ip=at, udp_port=port, mac="02:00:7f:00:00:01") for port in ports]
    return Assigned(
        job=1, generation=1, worker=0, slots=4, lanes=4, block_size=64, first_seq=0, hello_nonce=7, abort_secret=0,
        aggregators=aggregators,
    )  # fmt: skip


def opened(reply: Assigned) -> Any:
    return SwitchLinks("udp", reply, membership(reply, 1), interface=None)


@pytest.mark.parametrize("closed", [0, 1])
def test_a_port_that_nobody_has_is_told(closed: int) -> None:
    """The closed port belongs to either of two switches."""
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as gone,
    ):
        there.bind(("127.0.0.1", 0))
        gone.bind(("127.0.0.1", 0))
        ports = [there.getsockname()[1], there.getsockname()[1]]
        ports[closed] = gone.getsockname()[1]
        gone.close()
        links = opened(assigned(*ports))
        try:
            assert links.trouble == ""
            end = time.monotonic() + 10
            while not links.trouble and time.monotonic() < end:
                links.say_hello()
            said = "Connection refused: no program listens on that UDP port"
            assert f"cannot send packets to 127.0.0.1:{ports[closed]}: {said}" in links.trouble
            assert "--address of the controller" in links.trouble
        finally:
            links.close()


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.EPERM, "Operation not permitted: a firewall on this host drops them"),
        (errno.EACCES, "Permission denied: a route of this host prohibits them, or this is the broadcast address"),
        (errno.EINVAL, "Invalid argument: a route of this host drops them; see `ip route get 10.0.0.254`"),
        (errno.EMSGSIZE, "Message too long: the packets are longer than the MTU of the path"),
        (errno.ENETUNREACH, "Network is unreachable: this host has no route there"),
        (errno.EHOSTUNREACH, "No route to host: no host answers for that address"),
        (errno.ENETDOWN, "Network is down: the interface is down"),
        (errno.EADDRNOTAVAIL, "Cannot assign requested address: it has no IPv4 address that can be used"),
        (errno.EAFNOSUPPORT, "Address family not supported by protocol: its kernel has no IPv4"),
        (errno.ENOBUFS, "No buffer space available"),
    ],
)
def test_what_the_kernel_says_comes_with_advice(number: int, said: str) -> None:
    text = explain_refusal(OSError(number, os.strerror(number)), AT)
    assert text.startswith(f"this host cannot send packets to 10.0.0.254:31314: {said}")


@pytest.mark.parametrize("kept", [(), (1,), (1, 2), (0, 2)])
def test_each_thread_has_a_number_at_each_aggregator(switches: list[socket.socket], kept: tuple[int, ...]) -> None:
    reply = assigned(*(one.getsockname()[1] for one in switches))
    reply.more_jobs.append(4 << 16 | 9)
    jobs = [[1 << 16 | 1, 4 << 16 | 9], [2 << 16 | 7, 5 << 16 | 8], [3 << 16 | 6, 6 << 16 | 5]]
    for at, own in zip(reply.aggregators, jobs, strict=True):
        at.jobs.extend(own)
    with closing(opened(reply)) as links:
        links.say_hello()
        assert [{JOBS.unpack_from(one.recv(2000), 4)[0] for _ in range(2)} for one in switches] == list(map(set, jobs))
        indices = [*kept, *(3 + index for index in kept)]
        links.keep(indices)
        member = membership(reply, 1, Ready(aggregators=indices))
        first = kept[0] if kept else 0
        assert [member.job << 16 | member.generation, *packed(member.more_jobs)] == jobs[first]
        links.say_hello()
        for index in kept or range(3):
            assert {JOBS.unpack_from(switches[index].recv(2000), 4)[0] for _ in range(2)} == set(jobs[index])


def test_spares_are_the_last_links_of_each_thread(switches: list[socket.socket]) -> None:
    reply = assigned(*(one.getsockname()[1] for one in switches))
    reply.more_jobs.append(4 << 16 | 9)
    with closing(opened(reply)) as links:
        links.keep([2, 5], [0, 3])
        for part, at in zip(links.transport.parts, links.switches, strict=True):  # type: ignore[union-attr]
            assert isinstance(part, StripedTransport)
            assert (part.aggregators, part.spares) == (1, 1)
            assert [one.udp_port for one in at] == [switches[index].getsockname()[1] for index in (2, 0)]


@pytest.mark.root
@pytest.mark.parametrize(("kind", "said"), [("prohibit", "prohibits them"), ("blackhole", "drops them")])
def test_a_route_that_forbids_packets_is_told(kind: str, said: str) -> None:
    with closing(Namespace()) as namespace, namespace.entered():
        ip("route", "add", kind, "127.0.0.9/32", "table", "local")
        with pytest.raises(TransportError, match=said):
            opened(assigned(31314, at="127.0.0.9"))


@pytest.mark.parametrize(
    ("payload", "mtu", "ip", "advice"),
    [
        (8242, 1500, "10.0.0.254", "raise the MTU to 8270 or more, or give the controller --mtu 1500"),
        (8242, 1500, "fd00::fe", "raise the MTU to 8290 or more, or give the controller --mtu 1500"),
        (8242, 1000, "10.0.0.254", "raise the MTU to 8270 or more"),
        (8242, LEAST_MTU, "fd00::fe", "raise the MTU to 8290 or more"),
        (LEAST_MTU - 28, 1000, "10.0.0.254", f"raise the MTU to {LEAST_MTU} or more"),
        (LEAST_MTU - 28, LEAST_MTU, "fd00::fe", f"raise the MTU to {LEAST_MTU + 20} or more"),
    ],
)
def test_no_mtu_is_advised_that_a_controller_refuses(payload: int, mtu: int, ip: str, advice: str) -> None:
    with pytest.raises(TransportError) as error:
        check_mtu(mtu, payload, "'eth0'", ip)
    assert str(error.value).endswith(advice)
    check_mtu(payload + ip_and_udp_bytes(ip), payload, "'eth0'", ip)


@pytest.mark.parametrize(("ip", "command"), [("10.0.0.254", "`iptables -S"), ("fd00::fe", "`ip6tables -S")])
def test_a_firewall_is_named_by_its_family(ip: str, command: str) -> None:
    assert command in explain_refusal(PermissionError(errno.EPERM, "Operation not permitted"), Switch(ip, 31314))
