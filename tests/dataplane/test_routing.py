# SPDX-License-Identifier: Apache-2.0
"""Frames to the switch's router address are routed by IPv4: next hop, MAC addresses, TTL and checksum."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.support.dataplane import frames
from tests.support.dataplane.frames import Aggregation, Host
from tests.support.dataplane.p4runtime import Entry
from tests.support.dataplane.switch import ROUTER_MACS, ROUTES, Switch

HOST = Host("02:00:00:00:00:01", "10.0.0.1", 1111)
ROUTER = "02:fe:00:00:00:01"


def route(destination: str, length: int, port: int) -> Entry:
    params = {"port": port, "source_mac": 0x02FE00000010 + port, "next_hop_mac": 0x02AA00000000 + port}
    match = {"destination": (frames.address_number(destination, 32), length)}
    return Entry(ROUTES, match, "SwitchIngress.forwarding.route", params)


def routed(ip_packet: bytes, port: int) -> dict[int, list[bytes]]:
    source, to = f"02:fe:00:00:00:1{port}", f"02:aa:00:00:00:0{port}"
    return {port: [frames.ethernet(source, to, frames.IPV4, ip_packet)]}


def to_router(ip_packet: bytes, port: int = 1) -> tuple[int, bytes]:
    return port, frames.ethernet(HOST.mac, ROUTER, frames.IPV4, ip_packet)


@pytest.fixture(autouse=True)
def _routes(switch: Switch) -> Iterator[None]:
    switch.insert(Entry(ROUTER_MACS, {"mac": frames.mac_number(ROUTER)}))
    switch.insert(route("10.1.0.0", 16, 2), route("10.1.2.0", 24, 3), route("10.1.2.3", 32, 4))
    return


def ip(destination: str, payload: bytes = b"payload", **fields: object) -> bytes:
    return frames.ipv4(HOST.ip, destination, frames.UDP, frames.udp(1, 2, payload), **fields)


def test_the_longest_prefix_wins(switch: Switch) -> None:
    wanted = {"10.1.9.9": 2, "10.1.0.0": 2, "10.1.2.9": 3, "10.1.2.3": 4, "10.1.2.2": 3, "10.1.255.255": 2}
    for destination, port in wanted.items():
        switch.exchange(to_router(ip(destination))).expect(routed(ip(destination, ttl=63), port))


def test_no_route_no_frame(switch: Switch) -> None:
    for destination in ("10.2.0.1", "10.0.255.255", "11.1.2.3", "0.0.0.0", "255.255.255.255"):
        switch.exchange(to_router(ip(destination))).expect()


def test_the_default_route(switch: Switch) -> None:
    switch.insert(route("0.0.0.0", 0, 1))
    switch.exchange(to_router(ip("99.9.9.9"), port=2)).expect(routed(ip("99.9.9.9", ttl=63), 1))
    switch.exchange(to_router(ip("10.1.2.3"), port=2)).expect(routed(ip("10.1.2.3", ttl=63), 4))


def test_back_through_the_port_it_came_from(switch: Switch) -> None:
    """A router with one arm: unlike bridging, routing may."""
    switch.exchange(to_router(ip("10.1.9.9"), port=2)).expect(routed(ip("10.1.9.9", ttl=63), 2))


def test_time_to_live(switch: Switch) -> None:
    for ttl, left in ((255, 254), (2, 1), (1, None), (0, None)):
        wanted = {} if left is None else routed(ip("10.1.9.9", ttl=left), 2)
        switch.exchange(to_router(ip("10.1.9.9", ttl=ttl))).expect(wanted)


def test_the_checksum_is_right_for_many_headers(switch: Switch) -> None:
    for identification in range(0, 0x10000, 997):
        packet = ip("10.1.9.9", identification=identification, ttl=2 + identification % 200)
        wanted = ip("10.1.9.9", identification=identification, ttl=1 + identification % 200)
        switch.exchange(to_router(packet)).expect(routed(wanted, 2))


def test_what_is_not_routed(switch: Switch) -> None:
    for packet in (
        ip("10.1.9.9", wrong_checksum=1),
        ip("10.1.9.9", options=bytes(4)),
        ip("10.1.9.9", version=6),
        ip("10.1.9.9")[:19],
    ):
        switch.exchange(to_router(packet)).expect()
    switch.exchange((1, frames.ethernet(HOST.mac, ROUTER, 0x86DD, bytes(60)))).expect()
    switch.exchange((1, frames.arp(1, HOST, Host("00:00:00:00:00:00", "10.1.9.9"), destination=ROUTER))).expect()


def test_whatever_the_packet_carries(switch: Switch) -> None:
    """A router looks no further than the IP header."""
    ours = Aggregation(keys=(0,) * switch.lanes).pack()
    contents = [
        (frames.UDP, frames.udp(1, frames.AGGREGATION_PORT, ours), 0x4000),
        (frames.UDP, frames.udp(1, frames.AGGREGATION_PORT, b"x"), 0x4000),
        (frames.UDP, b"cut", 0x4000),
        (frames.UDP, frames.udp(1, 2, b"fragment"), 0x2000),
        (frames.UDP, b"a later fragment", 0x0010),
        (frames.ICMP, frames.icmp_echo(8, 1, 1, b"ping"), 0),
        (6, bytes(20), 0),
    ]
    for protocol, payload, fragment in contents:
        before, after = (
            frames.ipv4(HOST.ip, "10.1.2.7", protocol, payload, fragment=fragment, ttl=ttl) for ttl in (10, 9)
        )
        switch.exchange(to_router(before)).expect(routed(after, 3))
    assert switch.counts() == {}


def test_other_mac_addresses_are_bridged(switch: Switch) -> None:
    switch.forward("02:00:00:00:00:02", 4)
    frame = frames.ethernet(HOST.mac, "02:00:00:00:00:02", frames.IPV4, ip("10.1.9.9"))
    switch.exchange((1, frame)).expect({4: [frame]})


def test_a_route_that_refuses(switch: Switch) -> None:
    blocked = replace(route("10.1.2.128", 25, 2), action="SwitchIngress.forwarding.unroutable", params={})
    switch.insert(blocked)
    switch.exchange(to_router(ip("10.1.2.200"))).expect()
    switch.exchange(to_router(ip("10.1.2.100"))).expect(routed(ip("10.1.2.100", ttl=63), 3))
