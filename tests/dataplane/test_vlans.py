# SPDX-License-Identifier: Apache-2.0
"""Workers in VLANs: their packets come with a tag, and they get answers with it. Other frames keep their tags."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.dataplane import frames
from tests.support.dataplane.frames import Aggregation, Host
from tests.support.dataplane.jobs import Job, Member, Round
from tests.support.dataplane.p4runtime import Entry, PacketIn
from tests.support.dataplane.switch import ROUTER_MACS, ROUTES, SWITCH, Switch
from tests.support.dataplane.traffic import SHORTEST_TAGGED

VLANS = (10, 20, 0, 4094)
SPINE = Host("02:00:00:00:97:01", "10.97.0.1", 6000)
HOST = Host("02:00:00:00:00:31", "10.0.0.31", 4000, vlan=10)
ROUTER = "02:fe:00:00:00:01"


@pytest.fixture(autouse=True)
def _knows_vlans(switch: Switch) -> None:
    if not switch.knows_vlans:
        pytest.skip("this program knows no VLANs")


def test_every_worker_gets_results_in_its_vlan(switch: Switch) -> None:
    """The packet that completes the round is tagged or not, and so is each copy, independently of it."""
    job = Job(switch, 4, vlans=VLANS).start()
    for seq, last in enumerate(range(4), 2):
        one = Round(job, seq)
        one.run([rank for rank in range(4) if rank != last] + [last])
        for rank in range(4):
            one.replay(rank)


def test_answers_to_one_worker(switch: Switch) -> None:
    job = Job(switch, 2, vlans=VLANS).start()
    packet = job.packet(0, 2)
    switch.exchange(job.sent(packet)).expect()
    switch.exchange(job.sent(packet)).expect(job.to_one(0, job.status(packet, 1)))


def test_an_error_goes_to_every_vlan(switch: Switch) -> None:
    job = Job(switch, 3, vlans=VLANS).start()
    right, wrong = job.packet(0, 2), job.packet(1, 2, fingerprint=0xBAD00)
    switch.exchange(job.sent(right)).expect()
    switch.exchange(job.sent(wrong)).expect(job.to_all(job.error(wrong, right.fingerprint)))


def test_an_abort_goes_to_every_vlan(switch: Switch) -> None:
    job = Job(switch, 4, vlans=VLANS).start()
    abort = Aggregation(op=frames.ABORT, job=job.number, keys=(0,) * switch.lanes)
    frame = frames.frame(SWITCH, SWITCH, abort)
    switch.packet_out(frame, multicast_group=job.group).expect(job.to_all(abort))


@pytest.mark.parametrize("vlan", [0, 20, 11])
def test_only_the_workers_own_vlan_is_admitted(switch: Switch, vlan: int) -> None:
    job = Job(switch, 1, vlans=(10,)).start()
    (member,) = job.members
    packet = job.packet(0, 2)
    stranger = replace(member.host, vlan=vlan)
    switch.exchange((member.port, frames.frame(stranger, SWITCH, packet))).expect()
    assert switch.counts()["not_admitted"] == 1
    switch.exchange(job.sent(packet)).expect(job.to_all(job.result(packet, keys=packet.keys, values={})))


def test_an_untagged_worker_is_not_admitted_with_a_tag(switch: Switch) -> None:
    job = Job(switch, 1).start()
    (member,) = job.members
    tagged = frames.frame(replace(member.host, vlan=10), SWITCH, job.packet(0, 2))
    switch.exchange((member.port, tagged)).expect()
    assert switch.counts()["not_admitted"] == 1


def test_one_address_in_two_vlans_is_two_workers(switch: Switch) -> None:
    job = Job(switch, 2)
    job.members = [Member(2, replace(HOST, vlan=vlan)) for vlan in (10, 20)]
    job.start()
    Round(job).run()


def test_a_priority_in_the_tag_does_not_matter(switch: Switch) -> None:
    """It comes back in an answer to the sender alone. Copies for a group have none."""
    job = Job(switch, 2, vlans=VLANS).start()
    priority = 0x7000
    packets = [job.packet(rank, 2) for rank in range(2)]

    def send(rank: int) -> tuple[int, bytes]:
        port, frame = job.sent(packets[rank])
        return port, frame[:14] + (priority | VLANS[rank]).to_bytes(2, "big") + frame[16:]

    switch.exchange(send(0)).expect()
    ((port, (status,)),) = job.to_one(0, job.status(packets[0], 1)).items()
    switch.exchange(send(0)).expect({port: [status[:14] + (priority | 10).to_bytes(2, "big") + status[16:]]})
    switch.exchange(send(1)).expect(job.to_all(job.result(packets[1], keys=packets[1].keys, values={})))


def test_a_hello_keeps_its_tag(switch: Switch) -> None:
    hello = frames.frame(HOST, SWITCH, Aggregation(op=frames.HELLO, job=7, keys=(0,) * switch.lanes))
    switch.exchange((2, hello)).expect(packet_ins=[PacketIn(2, 0, hello)])


def test_a_leaf_takes_tags_from_its_workers_and_none_from_its_parent(switch: Switch) -> None:
    if not switch.can_be_leaf:
        pytest.skip("the program of this profile can be the root of a tree only")
    parent = Member(switch.ports[3], SPINE)
    for number, order in enumerate(((0, 1), (1, 0)), 7):
        job = Job(switch, 2, number=number, parent=parent, index=5, vlans=VLANS, pool_base=4 * number).start()
        first, last = (job.packet(rank, 2) for rank in order)
        switch.exchange(job.sent(first)).expect()
        switch.exchange(job.sent(last)).expect(job.to_parent(last))
        answer = replace(last, op=frames.RESULT, worker=job.index)
        tagged = frames.frame(replace(SPINE, vlan=10), SWITCH, answer)
        switch.exchange((parent.port, tagged)).expect()
        assert switch.counts()["not_admitted"] == number - 6
        switch.exchange(job.from_parent(answer)).expect(job.to_all(job.named(answer, envoy=order[1])))


def test_the_switch_answers_arp_and_ping_in_every_vlan(switch: Switch) -> None:
    asked = frames.arp(1, HOST, Host("00:00:00:00:00:00", SWITCH.ip))
    switch.exchange((1, asked)).expect({1: [frames.arp(2, SWITCH, HOST, destination=HOST.mac)]})

    def echo(kind: int, source: Host, to: Host) -> bytes:
        packet = frames.ipv4(source.ip, to.ip, frames.ICMP, frames.icmp_echo(kind, 7, 3, b"hello"))
        return frames.in_vlan(frames.ethernet(source.mac, to.mac, frames.IPV4, packet), HOST.vlan)

    switch.exchange((1, echo(8, HOST, SWITCH))).expect({1: [echo(0, SWITCH, HOST)]})


def test_a_tag_that_makes_a_result_too_long(switch: Switch) -> None:
    """BMv2 cannot make a packet more than 512 bytes longer. The worker that misses its copy asks again, and gets it."""
    lanes = range(switch.lanes)
    if not switch.max_absent or switch.max_absent >= switch.lanes:
        pytest.skip("no packet can leave out all that it may")
    job = Job(switch, 2, vlans=(10, 0)).start()
    one = Round(job, lanes=[lanes, lanes[switch.max_absent :]])
    one.send(0).expect()
    one.send(1).expect(job.to_one(1, one.result(1)))
    one.replay(0)
    Round(job, 3, lanes=[lanes[switch.max_absent :], lanes]).run(order=[1, 0])


def test_other_frames_are_bridged_with_their_tags(switch: Switch) -> None:
    switch.forward(HOST.mac, 2)
    switch.flood_unknown(0x50)
    other = Host("02:00:00:00:00:32", "10.0.0.32", vlan=10)
    for to, ports in ((HOST, [2]), (Host("02:00:00:00:00:33", "10.0.0.33"), [2, 3, 4])):
        for frame in (frames.udp_frame(other, to, b"x" * 40), frames.arp(1, other, to, destination=to.mac)):
            switch.exchange((1, frame)).expect({port: [frame] for port in ports})


def test_tagged_frames_are_not_routed(switch: Switch) -> None:
    switch.insert(Entry(ROUTER_MACS, {"mac": frames.mac_number(ROUTER)}))
    params = {"port": 3, "source_mac": 0x02FE00000013, "next_hop_mac": 0x02AA00000003}
    match = {"destination": (frames.address_number("10.0.0.0", 32), 8)}
    switch.insert(Entry(ROUTES, match, "SwitchIngress.forwarding.route", params))
    target = Host(ROUTER, "10.1.2.3")
    assert switch.exchange((1, frames.udp_frame(replace(HOST, vlan=0), target, b"x"))).ports.keys() == {3}
    switch.exchange((1, frames.udp_frame(HOST, target, b"x"))).expect()


@pytest.mark.parametrize("cut", [14, 15, 18, 33, 38, 45, 60])
def test_frames_that_end_early(switch: Switch, cut: int) -> None:
    """They are bridged as they came, unless they are for the switch."""
    packet = Aggregation(op=frames.HELLO, keys=(0,) * switch.lanes)
    switch.forward(SWITCH.mac, 2)
    frame = frames.frame(HOST, SWITCH, packet)[:cut]
    if switch.name in ("bmv2", "native-eth") and cut < SHORTEST_TAGGED:
        pytest.skip("the kernel drops a frame that ends with its tag")
    switch.exchange((1, frame)).expect({2: [frame]} if cut < 38 else {})


def test_a_copy_without_an_address_keeps_the_tag(switch: Switch) -> None:
    """A group's replica without an entry for its instance gets the packet as it is."""
    job = Job(switch, 2, vlans=(10,)).start()
    switch.delete(job.delivery(0))
    one = Round(job)
    one.send(0).expect()
    came = one.send(1).ports
    (to_first,), (to_second,) = came[job.members[0].port], came[job.members[1].port]
    assert to_first == to_second == frames.frame(SWITCH, job.members[1].host, one.result(1))
