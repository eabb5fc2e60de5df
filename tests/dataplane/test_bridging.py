# SPDX-License-Identifier: Apache-2.0
"""Frames that are not for the switch are bridged by MAC address, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.dataplane import frames
from tests.support.dataplane.frames import Aggregation, Host
from tests.support.dataplane.jobs import values_of
from tests.support.dataplane.p4runtime import Entry
from tests.support.dataplane.switch import MAC_ADDRESSES, Switch

HERE = Host("02:00:00:00:00:01", "10.0.0.1", 1111)
THERE = Host("02:00:00:00:00:02", "10.0.0.2", 2222)
UNKNOWN = Host("02:00:00:00:00:99", "10.0.0.99", 9999)
FLOOD_GROUP = 0x50


@pytest.fixture(autouse=True)
def _learned(switch: Switch) -> Iterator[None]:
    switch.forward(HERE.mac, 1)
    switch.forward(THERE.mac, 3)
    return


def foreign_frames(switch: Switch) -> dict[str, bytes]:
    """Return frames that other hosts send to each other, by name. Some are damaged, some look like aggregation."""
    ours = Aggregation(active=1, keys=(5,) * switch.lanes, values=values_of(1, switch, [0]))
    inner = frames.udp(HERE.udp_port, frames.AGGREGATION_PORT, ours.pack())
    there = Host(THERE.mac, THERE.ip)

    def ip(payload: bytes, **fields: object) -> bytes:
        packet = frames.ipv4(HERE.ip, THERE.ip, frames.UDP, payload, **fields)
        return frames.ethernet(HERE.mac, THERE.mac, frames.IPV4, packet)

    return {
        "udp": frames.udp_frame(HERE, THERE, b"hello"),
        "ours": frames.frame(HERE, there, ours),
        "ours padded": frames.frame(HERE, there, ours) + bytes(7),
        "ours truncated": frames.frame(HERE, there, ours)[:-3],
        "ours cut in the header": frames.frame(HERE, there, ours)[:50],
        "ours with a udp checksum": ip(inner[:6] + b"\x12\x34" + inner[8:]),
        "ours with a wrong length": ip(inner[:4] + b"\x00\x09" + inner[6:]),
        "ours of another version": frames.frame(HERE, there, Aggregation(version=3, keys=(0,) * switch.lanes)),
        "a reset": frames.frame(HERE, there, Aggregation(op=frames.RESET, keys=(0,) * switch.lanes)),
        "an abort": frames.frame(HERE, there, Aggregation(op=frames.ABORT, keys=(0,) * switch.lanes)),
        "not ours on our port": frames.udp_frame(HERE, there, b"x"),
        "wrong ip checksum": ip(inner, wrong_checksum=0x5555),
        "ip options": ip(inner, options=bytes([7, 7, 4, 0, 0, 0, 0, 0])),
        "fragment": ip(inner, fragment=0x2001),
        "ttl 1": ip(inner, ttl=1),
        "ttl 0": ip(inner, ttl=0),
        "ipv6 in ipv4": ip(inner, version=6),
        "tcp": frames.ethernet(HERE.mac, THERE.mac, frames.IPV4, frames.ipv4(HERE.ip, THERE.ip, 6, bytes(range(40)))),
        "ping": frames.ethernet(
            HERE.mac, THERE.mac, frames.IPV4, frames.ipv4(HERE.ip, THERE.ip, 1, frames.icmp_echo(8, 1, 2, b"data"))
        ),
        "cut in the ip header": ip(inner)[:30],
        "cut in the udp header": ip(inner)[:38],
        "arp": frames.arp(1, HERE, THERE, destination=THERE.mac),
        "arp cut": frames.arp(1, HERE, THERE, destination=THERE.mac)[:30],
        "ipv6": frames.ethernet(HERE.mac, THERE.mac, 0x86DD, bytes(60)),
        "lldp": frames.ethernet(HERE.mac, THERE.mac, 0x88CC, bytes(range(50))),
        "802.3": frames.ethernet(HERE.mac, THERE.mac, 46, bytes(46)),
        "only a header": frames.ethernet(HERE.mac, THERE.mac, 0x1234, b""),
        "large": frames.ethernet(HERE.mac, THERE.mac, 0x1234, bytes(range(250)) * 6)[:1514],
    }


def test_forwarded_untouched(switch: Switch) -> None:
    for name, frame in foreign_frames(switch).items():
        try:
            switch.exchange((1, frame)).expect({3: [frame]})
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None
    assert switch.counts() == {}


def test_unknown_destinations_are_discarded_until_the_controller_says_otherwise(switch: Switch) -> None:
    switch.exchange((1, frames.udp_frame(HERE, UNKNOWN, b"x"))).expect()


def test_flooded_to_all_other_ports(switch: Switch) -> None:
    switch.flood_unknown(FLOOD_GROUP)
    for port in switch.ports:
        others = [other for other in switch.ports if other != port]
        for to in (UNKNOWN, Host(frames.BROADCAST, "10.255.255.255"), Host("01:00:5e:00:00:01", "224.0.0.1")):
            frame = frames.udp_frame(HERE, to, b"to all")
            switch.exchange((port, frame)).expect({other: [frame] for other in others})
    ours = frames.frame(HERE, Host(UNKNOWN.mac, UNKNOWN.ip), Aggregation(keys=(0,) * switch.lanes))
    switch.exchange((1, ours)).expect({port: [ours] for port in (2, 3, 4)})


def test_known_destinations_are_not_flooded(switch: Switch) -> None:
    switch.flood_unknown(FLOOD_GROUP)
    frame = frames.udp_frame(HERE, THERE, b"x")
    switch.exchange((2, frame)).expect({3: [frame]})


def test_never_back_to_where_it_came_from(switch: Switch) -> None:
    """The destination is on the same side: it has heard the frame already."""
    frame = frames.udp_frame(HERE, THERE, b"x")
    switch.exchange((3, frame)).expect()


def test_an_entry_can_discard(switch: Switch) -> None:
    switch.flood_unknown(FLOOD_GROUP)
    match = {"mac": frames.mac_number(UNKNOWN.mac)}
    switch.insert(Entry(MAC_ADDRESSES, match, "SwitchIngress.forwarding.discard"))
    switch.exchange((1, frames.udp_frame(HERE, UNKNOWN, b"x"))).expect()


def test_entries_can_be_changed_and_removed(switch: Switch) -> None:
    frame = frames.udp_frame(HERE, UNKNOWN, b"x")
    match = {"mac": frames.mac_number(UNKNOWN.mac)}
    entry = Entry(MAC_ADDRESSES, match, "SwitchIngress.forwarding.forward", {"port": 2})
    switch.insert(entry)
    switch.exchange((1, frame)).expect({2: [frame]})
    switch.client.modify(Entry(MAC_ADDRESSES, match, "SwitchIngress.forwarding.forward", {"port": 4}))
    switch.exchange((1, frame)).expect({4: [frame]})
    switch.delete(entry)
    switch.exchange((1, frame)).expect()
