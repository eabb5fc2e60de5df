# SPDX-License-Identifier: Apache-2.0
"""The switch as a host: ARP and ping."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from tests.support.dataplane import frames
from tests.support.dataplane.frames import Host
from tests.support.dataplane.jobs import Job
from tests.support.dataplane.switch import SWITCH, Switch

HOST = Host("02:00:00:00:00:31", "10.0.0.31")
NOBODY = "00:00:00:00:00:00"


def arp_answer(asker: Host, own: Host) -> bytes:
    return frames.arp(2, own, asker, destination=asker.mac)


def ping(data: bytes, *, to: Host = SWITCH, identifier: int = 7, kind: int = 8, **fields: object) -> bytes:
    echo = frames.icmp_echo(kind, identifier, 3, data)
    return frames.ethernet(HOST.mac, to.mac, frames.IPV4, frames.ipv4(HOST.ip, to.ip, frames.ICMP, echo, **fields))


def pong(data: bytes, *, own: Host = SWITCH, identifier: int = 7, **fields: object) -> bytes:
    echo = frames.icmp_echo(0, identifier, 3, data)
    packet = frames.ipv4(own.ip, HOST.ip, frames.ICMP, echo, **fields)
    return frames.ethernet(own.mac, HOST.mac, frames.IPV4, packet)


def test_arp_is_answered(switch: Switch) -> None:
    request = frames.arp(1, HOST, Host(NOBODY, SWITCH.ip))
    for port in switch.ports:
        switch.exchange((port, request)).expect({port: [arp_answer(HOST, SWITCH)]})
    to_mac = frames.arp(1, HOST, Host(NOBODY, SWITCH.ip), destination=SWITCH.mac)
    switch.exchange((2, to_mac)).expect({2: [arp_answer(HOST, SWITCH)]})


def test_arp_keeps_its_padding(switch: Switch) -> None:
    request = frames.arp(1, HOST, Host(NOBODY, SWITCH.ip)) + bytes(18)
    switch.exchange((1, request)).expect({1: [arp_answer(HOST, SWITCH) + bytes(18)]})


def test_several_addresses(switch: Switch) -> None:
    other = Host("02:5a:00:00:00:09", "192.168.9.9")
    switch.own_address(other)
    for own in (SWITCH, other):
        request = frames.arp(1, HOST, Host(NOBODY, own.ip))
        switch.exchange((3, request)).expect({3: [arp_answer(HOST, own)]})
        switch.exchange((3, ping(b"x", to=own))).expect({3: [pong(b"x", own=own)]})


def test_arp_for_others_is_flooded(switch: Switch) -> None:
    switch.flood_unknown(0x50)
    request = frames.arp(1, HOST, Host(NOBODY, "10.0.0.77"))
    switch.exchange((2, request)).expect({port: [request] for port in (1, 3, 4)})


def test_arp_answers_and_odd_operations_end_here(switch: Switch) -> None:
    switch.flood_unknown(0x50)
    for op in (2, 3, 0):
        switch.exchange((1, frames.arp(op, HOST, SWITCH, destination=SWITCH.mac))).expect()


@pytest.mark.parametrize("length", [0, 1, 2, 31, 56, 1000, 1472])
def test_ping(switch: Switch, length: int) -> None:
    data = bytes(at * 7 & 255 for at in range(length))
    switch.exchange((4, ping(data))).expect({4: [pong(data)]})


def test_ping_checksums(switch: Switch) -> None:
    """Every carry of the incremental update, among them a sum that becomes all ones (which also stands for zero)."""
    for identifier in range(0, 0x10000, 251):
        answer = switch.exchange((1, ping(b"ab", identifier=identifier)))
        check_pong(answer.ports[1][0], pong(b"ab", identifier=identifier))
    for target in (0xF7FE, 0xF7FF, 0xF800, 0xFFFE, 0x0000, 0x0001, 0x07FF, 0x0800):
        base = frames.icmp_echo(8, 0, 3, b"ab")
        start = struct.unpack_from("!H", base, 2)[0]
        identifier = (start - target) % 0xFFFF
        sent = ping(b"ab", identifier=identifier)
        assert struct.unpack_from("!H", sent, 36)[0] % 0xFFFF == target % 0xFFFF
        check_pong(switch.exchange((1, sent)).ports[1][0], pong(b"ab", identifier=identifier))


def check_pong(answer: bytes, wanted: bytes) -> None:
    assert frames.checksum(answer[34:]) in (0, 0xFFFF)
    assert answer[:36] + answer[38:] == wanted[:36] + wanted[38:]


def test_ping_header_fields(switch: Switch) -> None:
    """The answer starts with a TTL of its own; the identification is the question's."""
    switch.exchange((1, ping(b"x", ttl=1, identification=0x4321))).expect({1: [pong(b"x", identification=0x4321)]})


def test_pings_that_get_no_answer(switch: Switch) -> None:
    switch.flood_unknown(0x50)
    for frame in (
        ping(b"x", kind=0),  # an answer to nothing
        ping(b"x", kind=13),
        ping(b"x", wrong_checksum=7),
        ping(b"x", fragment=0x2000),
        ping(b"x", fragment=0x0001),
        ping(b"x", options=bytes(4)),
        ping(b"x")[:36],
    ):
        switch.exchange((1, frame)).expect()


def test_ping_of_others_is_bridged(switch: Switch) -> None:
    other = Host("02:00:00:00:00:55", "10.0.0.55")
    switch.forward(other.mac, 2)
    frame = ping(b"x", to=other)
    switch.exchange((1, frame)).expect({2: [frame]})


def test_an_address_taken_away(switch: Switch) -> None:
    """The address and the packets to it: without its own address, the switch is no aggregator."""
    other = replace(SWITCH, ip="10.255.0.9")
    job = Job(switch, 2).start()
    packet = job.packet(0, 2)
    frame = frames.frame(job.members[0].host, other, packet)
    switch.exchange((1, frame)).expect()
    assert switch.counts() == {"reset": 4}
