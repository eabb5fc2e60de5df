# SPDX-License-Identifier: Apache-2.0
"""Workers with IPv6 addresses, and the switch as their neighbour."""

from __future__ import annotations

import struct
from dataclasses import replace

import pytest

from tests.support.dataplane import frames
from tests.support.dataplane.frames import Aggregation, Host
from tests.support.dataplane.jobs import Job, Member, Round, values_of
from tests.support.dataplane.p4runtime import PacketIn
from tests.support.dataplane.switch import CONTROLLER, FORGERIES, SWITCH, SWITCH_IPV6, Switch

SPINE = Host("02:00:00:00:97:01", "fd00::97:1", 6000)
HOST = Host("02:00:00:00:00:31", "fd00::31", 4000)
OTHER = Host("02:00:00:00:00:32", "fd00::32", 4000)
ECT_0, CE = 2, 3
CLASS = 0xB8  # a DSCP in the traffic class
REDIRECT = 137
EXTENSIONS = {"hop by hop": 0, "routing": 43, "fragment": 44, "destination options": 60}


@pytest.fixture(autouse=True)
def _own_address(switch: Switch) -> None:
    if not switch.knows_ipv6:
        pytest.skip("this program knows no IPv6")
    switch.own_address(SWITCH_IPV6)


def job_of(switch: Switch, size: int, **fields: object) -> Job:
    return Job(switch, size, own=SWITCH_IPV6, **fields)


def redirected(target: str) -> bytes:
    """Return what follows the checksum of a redirect: packets to the target go to the sender instead."""
    option = b"\x02\x01" + frames.mac_bytes(HOST.mac)
    return bytes(4) + frames.ip_bytes(target) * 2 + option


def hidden(packet: bytes, kind: int) -> bytes:
    """Return the frame of an IPv6 packet with an empty extension header in front of its payload."""
    head, rest = bytearray(packet[:54]), packet[54:]
    extension = bytes([head[20], 0, 1, 4, 0, 0, 0, 0]) if kind != 44 else bytes([head[20], 0, 0, 0, 0, 0, 0, 9])
    head[20] = kind
    head[18:20] = struct.pack("!H", len(extension) + len(rest))
    return bytes(head) + extension + rest


# --- jobs -------------------------------------------------------------------------------------------------------------


def test_rounds_and_replays(switch: Switch) -> None:
    job = job_of(switch, 4).start()
    for seq in range(2, 6):
        one = Round(job, seq).run([(seq + rank) % 4 for rank in range(4)])
        for rank in range(4):
            one.replay(rank)


def test_every_answer_in_every_vlan(switch: Switch) -> None:
    job = job_of(switch, 3, vlans=(10, 0, 20)).start()
    one = Round(job)
    one.send(0).expect()
    one.send(0).expect(job.to_one(0, job.status(one.packets[0], 1)))
    wrong = replace(one.packets[1], fingerprint=one.packets[1].fingerprint ^ 1 << 20)
    switch.exchange(job.sent(wrong)).expect(job.to_all(job.error(wrong, one.packets[0].fingerprint)))
    one.send(1).expect()
    one.send(2).expect(job.to_all(one.result(2)))
    abort = Aggregation(op=frames.ABORT, job=job.number, keys=(0,) * switch.lanes)
    frame = frames.frame(SWITCH_IPV6, SWITCH_IPV6, abort)
    switch.packet_out(frame, multicast_group=job.group).expect(job.to_all(abort))


def test_marks(switch: Switch) -> None:
    """The traffic class is kept, as IPv4's TOS is, and a marked packet marks the round's answers."""
    job = job_of(switch, 2).start()
    for seq, ecn in enumerate((0, 1, ECT_0, CE, ECT_0), 2):
        one = Round(job, seq)
        one.send(0, tos=ecn).expect()
        marked = CE if ecn == CE else ECT_0
        one.send(1, tos=CLASS | ECT_0).expect(job.to_all(one.result(1), tos=CLASS | marked))
        one.send(0, tos=ECT_0).expect(job.to_one(0, one.result(0), tos=marked))


def test_a_leaf(switch: Switch) -> None:
    job = job_of(switch, 2, parent=Member(switch.ports[-1], SPINE), index=5, vlans=(10, 0)).start()
    one = Round(job)
    partial = replace(one.result(1), op=frames.DATA)
    one.send(0).expect()
    one.send(1).expect(job.to_parent(partial))
    total = values_of(7, switch, range(switch.lanes))
    answer = replace(partial, op=frames.RESULT, worker=job.index, values=total)
    switch.exchange(job.from_parent(answer)).expect(job.to_all(job.named(answer, 1)))
    stranger = frames.frame(replace(SPINE, ip="fd00:1::97:1"), SWITCH_IPV6, answer)
    switch.exchange((switch.ports[-1], stranger)).expect()


def test_jobs_of_both_families_side_by_side(switch: Switch) -> None:
    both = [Job(switch, 2, number=1).start(), job_of(switch, 2, number=2, pool_base=4).start()]
    rounds = [Round(job) for job in both]
    for one in rounds:
        one.send(0).expect()
    for job, one in zip(both, rounds, strict=True):
        one.send(1).expect(job.to_all(one.result(1)))


@pytest.mark.parametrize("source", ["fe00::7:1", "fd00:0:0:1::7:1", "fd00::1:0:7:1", "fd00::7:2", "::7:1"])
def test_the_whole_address_counts(switch: Switch, source: str) -> None:
    job = job_of(switch, 1).start()
    (member,) = job.members
    assert member.host.ip == "fd00::7:1"
    packet = job.packet(0, 2)
    switch.exchange((member.port, frames.frame(replace(member.host, ip=source), SWITCH_IPV6, packet))).expect()
    assert switch.counts()["not_admitted"] == 1
    switch.exchange(job.sent(packet)).expect(job.to_all(job.result(packet, keys=packet.keys, values={})))


@pytest.mark.parametrize("source", [True, False])
def test_an_ipv4_address_written_as_ipv6_is_a_forgery(switch: Switch, source: bool) -> None:
    """Tables have a worker's IPv4 address in this form, and a packet of IPv6 must not pass for that worker's."""
    job = Job(switch, 1).start()
    (member,) = job.members
    mapped = replace(member.host, ip=f"::ffff:{member.host.ip}"), SWITCH_IPV6
    ends = mapped if source else (HOST, replace(SWITCH, ip=f"::ffff:{SWITCH.ip}"))
    switch.forward(SWITCH.mac, 2)
    switch.exchange((member.port, frames.frame(*ends, job.packet(0, 2)))).expect()
    assert switch.counts().keys() == {"reset"}
    assert switch.by_port(FORGERIES) == {member.port: 1}


@pytest.mark.parametrize("by", [1, -1, 8, -8])
def test_lengths_must_match(switch: Switch, by: int) -> None:
    job = job_of(switch, 1).start()
    packet = job.packet(0, 2)
    (member,) = job.members
    length = 8 + len(packet.pack())
    frame = frames.frame(member.host, SWITCH_IPV6, packet, payload_length=length + by)
    switch.exchange((member.port, frame)).expect()
    frame = frames.udp_frame(member.host, SWITCH_IPV6, packet.pack(), udp_length=length + by, payload_length=length)
    switch.exchange((member.port, frame)).expect()
    assert switch.counts()["malformed"] == 2


@pytest.mark.parametrize("kind", EXTENSIONS.values(), ids=EXTENSIONS)
def test_no_packet_with_an_extension_header_is_aggregated(switch: Switch, kind: int) -> None:
    job = job_of(switch, 1).start()
    port, frame = job.data(0, 2)
    switch.exchange((port, hidden(frame, kind))).expect()
    assert switch.counts().keys() == {"reset"}


def test_a_hello_and_a_query(switch: Switch) -> None:
    for vlan in (0, 10):
        hello = Aggregation(op=frames.HELLO, job=7, keys=(0,) * switch.lanes)
        frame = frames.frame(replace(HOST, vlan=vlan), SWITCH_IPV6, hello)
        switch.exchange((2, frame)).expect(packet_ins=[PacketIn(2, 0, frame)])
    query = Aggregation(op=frames.QUERY, slot=1, keys=(frames.NO_KEY,) * switch.lanes)
    frame = frames.frame(replace(CONTROLLER, ip="fd00::c"), SWITCH_IPV6, query)
    (answer,) = switch.packet_out(frame).packet_ins
    assert answer.payload[:54] == frame[:54]


def test_a_datagram_with_a_udp_checksum(switch: Switch) -> None:
    """Kernels send one. It is not looked at, and answers have none."""
    job = job_of(switch, 1).start()
    packet = job.packet(0, 2)
    port, frame = job.sent(packet)
    frame = frame[:60] + b"\x12\x34" + frame[62:]
    switch.exchange((port, frame)).expect(job.to_all(job.result(packet, keys=packet.keys, values={})))


# --- the switch as a neighbour ----------------------------------------------------------------------------------------


def test_solicitations_are_answered(switch: Switch) -> None:
    for vlan in (0, 10):
        host = replace(HOST, vlan=vlan)
        answer = frames.advertisement(SWITCH_IPV6, SWITCH_IPV6.ip, host)
        for to in (None, SWITCH_IPV6):
            switch.exchange((3, frames.solicitation(host, SWITCH_IPV6.ip, to=to))).expect({3: [answer]})


def test_solicitations_for_others_are_flooded(switch: Switch) -> None:
    switch.flood_unknown(0x50)
    request = frames.solicitation(HOST, "fd00::ff:2")
    switch.exchange((2, request)).expect({port: [request] for port in (1, 3, 4)})


@pytest.mark.parametrize(
    "odd", [{"ttl": 254}, {"option": 2}, {"sender": replace(HOST, ip="::")}], ids=["routed", "option", "unspecified"]
)
def test_odd_solicitations_end_here(switch: Switch, odd: dict[str, object]) -> None:
    switch.flood_unknown(0x50)
    switch.exchange((1, frames.solicitation(**{"sender": HOST, "target": SWITCH_IPV6.ip, **odd}))).expect()


@pytest.mark.parametrize("length", [0, 1, 2, 31, 1000])
def test_ping(switch: Switch, length: int) -> None:
    data = struct.pack("!HH", 7, 3) + bytes(at * 7 & 255 for at in range(length))
    answer = frames.icmpv6(SWITCH_IPV6, HOST, 129, data)
    switch.exchange((4, frames.icmpv6(HOST, SWITCH_IPV6, 128, data, ttl=9))).expect({4: [answer]})


def test_ping_checksums(switch: Switch) -> None:
    """Every borrow of the incremental update. A sum of all ones also stands for zero."""
    head = frames.icmpv6(HOST, SWITCH_IPV6, 128, b"\0\0\0\1")
    base = int.from_bytes(head[56:58], "big")
    for wanted in (0x0000, 0x0001, 0x00FE, 0x00FF, 0x0100, 0x0101, 0x7777, 0xFFFE):
        identifier = (base - wanted) % 0xFFFF
        data = struct.pack("!HH", identifier, 1)
        request = frames.icmpv6(HOST, SWITCH_IPV6, 128, data)
        ((answer,),) = switch.exchange((1, request)).ports.values()
        right = frames.icmpv6(SWITCH_IPV6, HOST, 129, data)
        assert answer[:56] + answer[58:] == right[:56] + right[58:]
        came, due = (int.from_bytes(one[56:58], "big") for one in (answer, right))
        assert came % 0xFFFF == due % 0xFFFF, f"{wanted:#x}: {came:#x}, not {due:#x}"


def test_other_messages_to_the_switch_end_here(switch: Switch) -> None:
    switch.flood_unknown(0x50)
    for kind in (1, 8, 0, 129, 133, 134, 137):
        switch.exchange((1, frames.icmpv6(HOST, SWITCH_IPV6, kind, bytes(12)))).expect()
    switch.exchange((1, frames.udp_frame(HOST, replace(SWITCH_IPV6, udp_port=53), b"x" * 30))).expect()


# --- forgeries and other frames ---------------------------------------------------------------------------------------


def test_the_switchs_address_as_source_is_a_forgery(switch: Switch) -> None:
    switch.flood_unknown(0x50)
    thief = replace(SWITCH_IPV6, mac=HOST.mac)
    for vlan in (0, 10):
        for frame in (
            frames.udp_frame(replace(thief, vlan=vlan), OTHER, b"x" * 40),
            frames.advertisement(replace(HOST, vlan=vlan), SWITCH_IPV6.ip, OTHER),
            frames.solicitation(replace(thief, vlan=vlan), OTHER.ip),
            frames.icmpv6(replace(HOST, vlan=vlan), OTHER, REDIRECT, redirected(SWITCH_IPV6.ip), ttl=255),
        ):
            switch.exchange((1, frame)).expect()
    assert switch.by_port(FORGERIES) == {1: 8}


@pytest.mark.parametrize("kind", EXTENSIONS.values(), ids=EXTENSIONS)
def test_an_advertisement_cannot_hide_behind_an_extension_header(switch: Switch, kind: int) -> None:
    switch.flood_unknown(0x50)
    hostile = hidden(frames.advertisement(HOST, SWITCH_IPV6.ip, OTHER), kind)
    switch.exchange((1, hostile)).expect()
    assert switch.by_port(FORGERIES) == {1: 1}
    harmless = hidden(frames.udp_frame(HOST, OTHER, b"x" * 40), kind)
    switch.exchange((1, harmless)).expect({port: [harmless] for port in (2, 3, 4)})


def test_other_frames_are_bridged(switch: Switch) -> None:
    switch.forward(OTHER.mac, 2)
    for vlan in (0, 10):
        source = replace(HOST, vlan=vlan)
        for frame in (
            frames.udp_frame(source, OTHER, b"x" * 40, tos=CLASS | CE, flow_label=0x12345),
            frames.udp_frame(source, replace(OTHER, udp_port=frames.AGGREGATION_PORT), b"y" * 200),
            frames.icmpv6(source, OTHER, 128, bytes(20)),
            frames.advertisement(source, HOST.ip, OTHER),
            frames.icmpv6(source, OTHER, REDIRECT, redirected(HOST.ip), ttl=255),
            frames.solicitation(source, OTHER.ip, to=OTHER),
            frames.udp_frame(source, OTHER, b"z" * 40, version=5),
        ):
            switch.exchange((1, frame)).expect({2: [frame]})


@pytest.mark.parametrize("cut", [14, 15, 53, 54, 57, 58, 61, 62, 79, 80])
def test_frames_that_end_early(switch: Switch, cut: int) -> None:
    """They are bridged as they came, unless they are for the switch."""
    switch.forward(SWITCH_IPV6.mac, 2)
    frame = frames.frame(HOST, SWITCH_IPV6, Aggregation(op=frames.HELLO, keys=(0,) * switch.lanes))[:cut]
    switch.exchange((1, frame)).expect({2: [frame]} if cut < 54 else {})
    for other in (frames.solicitation(HOST, OTHER.ip), frames.advertisement(HOST, HOST.ip, OTHER)):
        switch.forward(other[:6].hex(":"), 3)
        switch.exchange((1, other[:cut])).expect({3: [other[:cut]]})
