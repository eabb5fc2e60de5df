# SPDX-License-Identifier: Apache-2.0
"""Packets that do not follow the protocol exactly are dropped and counted, and change no slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product

import pytest

from tests.support.dataplane import frames
from tests.support.dataplane.frames import AGGREGATION_PORT, Aggregation, Host
from tests.support.dataplane.jobs import Job, sums, values_of, with_lanes
from tests.support.dataplane.switch import SWITCH, Switch

ETHERNET, IPV4_END, UDP_END, HEADER_END = 14, 34, 42, 60


@pytest.fixture
def job(switch: Switch) -> Iterator[Job]:
    """Yield a job whose slot 0 has rank 1's packet. Nothing that the test sends may change the slot."""
    job = Job(switch, 2).start()
    switch.exchange(job.data(1, 2, values=values_of(1, switch, [0]), keys=(0x700,) * switch.lanes)).expect()
    before = switch.query(job.pool_base), switch.query(job.pool_base + 1)
    yield job
    assert (switch.query(job.pool_base), switch.query(job.pool_base + 1)) == before


def good(job: Job) -> Aggregation:
    return job.packet(0, 2, values=values_of(2, job.switch, [0]))


def test_truncated_at_every_offset(switch: Switch, job: Job) -> None:
    """Up to the end of the aggregation header it is no packet of ours, and silently dropped; after that, malformed."""
    packet = job.packet(0, 2, values=values_of(2, switch, range(min(2, switch.lanes))))
    port, frame = job.sent(packet)
    for length in range(ETHERNET, len(frame)):
        switch.exchange((port, frame[:length])).expect()
    assert switch.counts() == {"reset": 4, "started": 1, "query": 2, "malformed": len(frame) - HEADER_END}


def test_lanes_announced_but_not_there(switch: Switch, job: Job) -> None:
    """Lengths that fit the frame do not make up for values that are missing."""
    member = job.members[0].host
    packet = replace(good(job), present=1, values={})
    switch.exchange((1, frames.frame(member, SWITCH, packet))).expect()
    packet = replace(good(job), present=0)  # values that nobody announced
    switch.exchange((1, frames.frame(member, SWITCH, packet))).expect()
    assert switch.counts()["malformed"] == 2


Change = Callable[[Switch, Aggregation], Aggregation]
WRONG_HEADERS: dict[str, Change] = {
    "version 0": lambda _, packet: replace(packet, version=0),
    "version 2": lambda _, packet: replace(packet, version=2),
    "version 15": lambda _, packet: replace(packet, version=15),
    "present beyond active": lambda _, packet: with_lanes(packet, 0),
    "present beside active": lambda _, packet: with_lanes(packet, 2),
    "active beyond the lanes": lambda switch, packet: with_lanes(packet, 1 | 1 << switch.lanes),
    "all active bits": lambda _, packet: with_lanes(packet, 0xFF),
    "other lanes than its fingerprint": lambda _, packet: replace(packet, fingerprint=packet.fingerprint & ~0xFF),
    "fewer lanes than its fingerprint": lambda _, packet: replace(packet, active=0, values={}),
}


def test_wrong_headers(switch: Switch, job: Job) -> None:
    every_bit_is_a_lane = {"active beyond the lanes", "all active bits"} if switch.lanes == 8 else set()
    for count, wrong in enumerate([name for name in WRONG_HEADERS if name not in every_bit_is_a_lane], 1):
        switch.exchange(job.sent(WRONG_HEADERS[wrong](switch, good(job)))).expect()
        assert switch.counts() == {"reset": 4, "started": 1, "query": 2, "malformed": count}, wrong


def test_present_beyond_the_lanes(switch: Switch, job: Job) -> None:
    if switch.lanes == 8:
        pytest.skip("with 8 lanes, every bit is one")
    bit = 1 << switch.lanes
    switch.exchange(job.sent(replace(with_lanes(good(job), 1 | bit), present=1 | bit))).expect()
    switch.exchange(job.sent(replace(good(job), active=1, present=1 | bit))).expect()
    assert switch.counts()["malformed"] == 2


def test_wrong_lengths(switch: Switch, job: Job) -> None:
    payload = good(job).pack()
    for count, (which, change) in enumerate(product(("udp", "ip", "both"), (-8, -4, -1, 1, 4, 1000, 0xFFFF)), 1):
        udp_length = (8 + len(payload) + (change if which != "ip" else 0)) & 0xFFFF
        ip_length = (28 + len(payload) + (change if which != "udp" else 0)) & 0xFFFF
        frame = frames.udp_frame(job.members[0].host, SWITCH, payload, udp_length=udp_length, total_length=ip_length)
        switch.exchange((1, frame)).expect()
        assert switch.counts() == {"reset": 4, "started": 1, "query": 2, "malformed": count}, (which, change)


def test_wrong_ip_checksum(switch: Switch, job: Job) -> None:
    for count, bits in enumerate((1, 0x8000, 0xFFFF), 1):
        frame = frames.frame(job.members[0].host, SWITCH, good(job), wrong_checksum=bits)
        switch.exchange((1, frame)).expect()
        assert switch.counts() == {"reset": 4, "started": 1, "query": 2, "malformed": count}, bits


NOT_OURS: dict[str, dict[str, object]] = {
    "options": {"options": bytes([1, 1, 1, 0])},
    "first fragment": {"fragment": 0x2000},
    "last fragment": {"fragment": 0x0001},
    "some fragment": {"fragment": 0x2010},
    "version 6": {"version": 6},
    "version 0": {"version": 0},
}


def test_ip_that_is_not_read_further(switch: Switch, job: Job) -> None:
    """Sent to the switch's own address, so it goes nowhere; not an aggregation packet, so it is not counted."""
    for kind, fields in NOT_OURS.items():
        switch.exchange((1, frames.frame(job.members[0].host, SWITCH, good(job), **fields))).expect()
        assert switch.counts() == {"reset": 4, "started": 1, "query": 2}, kind


def test_other_udp_ports_and_protocols(switch: Switch, job: Job) -> None:
    member = job.members[0].host
    payload = good(job).pack()
    for port in (AGGREGATION_PORT - 1, AGGREGATION_PORT + 1, 0):
        switch.exchange((1, frames.udp_frame(member, Host(SWITCH.mac, SWITCH.ip, port), payload))).expect()
    tcp = frames.ipv4(member.ip, SWITCH.ip, 6, frames.udp(member.udp_port, AGGREGATION_PORT, payload))
    switch.exchange((1, frames.ethernet(member.mac, SWITCH.mac, frames.IPV4, tcp))).expect()
    assert switch.counts() == {"reset": 4, "started": 1, "query": 2}


def test_trailing_padding_is_not_part_of_the_packet(switch: Switch) -> None:
    """Ethernet pads short frames. The answer to one may be padded too, after the end of the datagram."""
    job = Job(switch, 2).start()
    packets = [job.packet(rank, 2, values=values_of(rank, switch, [0])) for rank in range(2)]
    padding = bytes(range(1, 10))
    for packet in packets:
        port, frame = job.sent(packet)
        outputs = switch.exchange((port, frame + padding))
    total = sums(switch, [0], *(packet.values for packet in packets))
    wanted = job.to_all(job.result(packets[1], keys=packets[1].keys, values=total))
    assert sorted(outputs.ports) == sorted(wanted)
    for port, (data,) in outputs.ports.items():
        assert data.startswith(wanted[port][0])
        assert data[len(wanted[port][0]) :] in (b"", padding)
    assert switch.query(job.pool_base).bitmap == 0b11
