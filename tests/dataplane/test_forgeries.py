# SPDX-License-Identifier: Apache-2.0
"""Tests that only the switch itself can send to others from its addresses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.dataplane import frames
from tests.support.dataplane.frames import Aggregation, Host
from tests.support.dataplane.p4runtime import Entry, PacketIn
from tests.support.dataplane.switch import FORGERIES, ROUTER_MACS, ROUTES, SWITCH, Switch

VICTIM = Host("02:00:00:00:00:61", "10.0.0.61", 40001)
FORGER = Host("02:00:00:00:00:66", "10.0.0.66", 40066)
SECOND_ADDRESS = Host("02:5a:00:00:00:09", "192.168.9.9")  # another address of the switch
ROUTER = "02:fe:00:00:00:01"


def in_the_name_of(own: Host, lanes: int, *, in_vlans: bool) -> dict[str, bytes]:
    """Return frames with which a stranger pretends to be the switch, by name. Some are fragments of a datagram.

    in_vlans: whether the switch looks behind the tag of a VLAN.
    """
    keys = (0,) * lanes
    ours = Aggregation(op=frames.RESULT, job=7, generation=1, keys=keys)
    datagram = frames.udp(own.udp_port, VICTIM.udp_port, ours.pack())

    def ip(payload: bytes = datagram, protocol: int = frames.UDP, **fields: object) -> bytes:
        packet = frames.ipv4(own.ip, VICTIM.ip, protocol, payload, **fields)
        return frames.ethernet(FORGER.mac, VICTIM.mac, frames.IPV4, packet)

    def tagged(*tags: int, frame: bytes = ip()) -> bytes:
        return frame[:12] + b"".join(tag.to_bytes(4, "big") for tag in tags) + frame[12:]

    behind_a_tag = {
        "VLAN 5": tagged(0x81000005),
        "VLAN 5 with a priority": tagged(0x8100E005),
        "ARP answer in VLAN 5": tagged(0x81000005, frame=frames.arp(2, own, VICTIM)),
        "VLAN 0 in VLAN 5": tagged(0x81000005, 0x81000000),
        "service VLAN 0 in VLAN 5": tagged(0x81000005, 0x88A80000),
    }
    return {
        **(behind_a_tag if in_vlans else {}),
        "VLAN 0": tagged(0x81000000),
        "VLAN 0 with a priority": tagged(0x8100F000),
        "service VLAN 0": tagged(0x88A80000),
        "VLAN 0 twice": tagged(0x81000000, 0x81000000),
        "ARP answer in VLAN 0": tagged(0x81000000, frame=frames.arp(2, own, VICTIM)),
        **{frames.OPS[op]: frames.frame(own, VICTIM, replace(ours, op=op)) for op in range(1, 9)},
        "another MAC address": ip(),
        "to our port": frames.frame(replace(own, mac=FORGER.mac), replace(VICTIM, udp_port=own.udp_port), ours),
        "first fragment": ip(fragment=0x2000),
        "last fragment": ip(fragment=0x0003),
        "options": ip(options=bytes(4)),
        "ping": ip(frames.icmp_echo(0, 1, 2, b"x"), frames.ICMP),
        "tcp": ip(bytes(20), 6),
        "ARP answer": frames.arp(2, replace(own, mac=FORGER.mac), VICTIM, destination=VICTIM.mac),
        "ARP answer to all": frames.arp(2, replace(own, mac=FORGER.mac), VICTIM),
        "ARP request": frames.arp(1, replace(own, mac=FORGER.mac), Host("00:00:00:00:00:00", VICTIM.ip)),
    }


@pytest.mark.parametrize("own", [SWITCH, SECOND_ADDRESS], ids=["address", "another"])
def test_forged_frames_are_dropped_and_counted(switch: Switch, own: Host) -> None:
    switch.own_address(SECOND_ADDRESS)
    switch.forward(VICTIM.mac, 2)
    switch.flood_unknown(0x50)
    forged = in_the_name_of(own, switch.lanes, in_vlans=switch.knows_vlans)
    for name, frame in forged.items():
        for port in (1, 3):
            found = switch.exchange((port, frame))
            assert not found.ports, f"{name} into port {port}: {found.describe()}"
            assert not found.packet_ins
    assert switch.by_port(FORGERIES) == {1: len(forged), 3: len(forged)}
    assert switch.counts() == {}


def test_service_vlans_and_second_tags_are_bridged(switch: Switch) -> None:
    """The switch does not look behind them. A host takes them for another network than the switch is in."""
    switch.forward(VICTIM.mac, 2)
    plain = frames.udp_frame(SWITCH, VICTIM, b"x")
    twice = frames.tagged(frames.tagged(plain, 5), 0xF800)
    for frame in (frames.tagged(plain, 0x0FFF, 0x88A8), twice):
        switch.exchange((1, frame)).expect({2: [frame]})
    assert switch.by_port(FORGERIES) == {}


def test_neither_are_they_routed(switch: Switch) -> None:
    switch.insert(Entry(ROUTER_MACS, {"mac": frames.mac_number(ROUTER)}))
    params = {"port": 3, "source_mac": 0x02FE00000013, "next_hop_mac": 0x02AA00000003}
    match = {"destination": (frames.address_number("10.0.0.0", 32), 8)}
    switch.insert(Entry(ROUTES, match, "SwitchIngress.forwarding.route", params))
    for source in (FORGER, SWITCH):
        found = switch.exchange((1, frames.udp_frame(source, replace(VICTIM, mac=ROUTER), b"x")))
        assert sorted(found.ports) == ([3] if source is FORGER else [])
    assert switch.by_port(FORGERIES) == {1: 1}


def test_an_address_that_is_no_longer_the_switchs_own(switch: Switch) -> None:
    """Packets from a former address of the switch are forwarded, even with the switch's MAC address."""
    switch.forward(VICTIM.mac, 2)
    frame = frames.udp_frame(replace(SECOND_ADDRESS, mac=SWITCH.mac), VICTIM, b"x")
    switch.exchange((1, frame)).expect({2: [frame]})
    assert switch.by_port(FORGERIES) == {}


def test_the_controller_speaks_in_the_switchs_name(switch: Switch) -> None:
    switch.forward(VICTIM.mac, 2)
    answer = frames.arp(2, SWITCH, VICTIM, destination=VICTIM.mac)
    datagram = frames.udp_frame(SWITCH, VICTIM, b"x")
    for frame in (answer, datagram):
        switch.packet_out(frame).expect({2: [frame]})
    hello = frames.frame(SWITCH, VICTIM, Aggregation(op=frames.HELLO, keys=(0,) * switch.lanes))
    switch.packet_out(hello, through_pipeline=False, egress_port=4).expect({4: [hello]})
    assert switch.by_port(FORGERIES) == {}


def test_ranks_may_share_the_switchs_address(switch: Switch) -> None:
    """On one machine, where a switch's ports are UDP sockets, packets to the switch still go to nobody else."""
    rank = Host(SWITCH.mac, SWITCH.ip, 45678)
    hello = frames.frame(rank, SWITCH, Aggregation(op=frames.HELLO, job=7, keys=(0,) * switch.lanes))
    switch.exchange((1, hello)).expect(packet_ins=[PacketIn(1, 0, hello)])
    assert switch.by_port(FORGERIES) == {}
    assert switch.counts() == {"hello": 1}
