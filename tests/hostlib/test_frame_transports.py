# SPDX-License-Identifier: Apache-2.0
"""The transports that build Ethernet frames, on one end of a veth pair; the test is at the other end."""

from __future__ import annotations

import builtins
import os
import re
import socket
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from scapy.layers.inet6 import IPv6, IPv6ExtHdrFragment, in6_chksum
from scapy.layers.l2 import Ether

from p4reduce.protocol.constants import AGGREGATION_PORT, ECN_CE, ECN_ECT_0, Op
from p4reduce.protocol.packet import Codec, Packet
from p4reduce.transport import Switch, Transport, TransportError, open_transport
from p4reduce.transport.addresses import family_of, is_ipv6, packed
from p4reduce.transport.ecn import MarkedPayload
from p4reduce.transport.frames import ETHERNET, internet_checksum, ip_and_udp_bytes
from tests.support.dataplane import frames
from tests.support.hostlib.operations import receive
from tests.support.own_network import OwnNetwork, add_vlan, ip

CODEC = Codec()
PAYLOADS = [CODEC.encode(Packet(Op.DATA, 7, 2, worker=3, slot=slot, seq=4)) for slot in range(40)]


@pytest.fixture
def network(either_network: OwnNetwork) -> OwnNetwork:
    return either_network


def switch_of(network: OwnNetwork) -> Switch:
    return Switch(network.switch_ip, AGGREGATION_PORT, network.switch_mac)


@pytest.fixture(params=["raw", "scapy"])
def transport(request: pytest.FixtureRequest, network: OwnNetwork) -> Iterator[Transport]:
    transport = open_transport(request.param, switch_of(network), interface=network.host)
    yield transport
    transport.close()


@pytest.fixture
def wire(network: OwnNetwork) -> Iterator[socket.socket]:
    """Yield a socket that receives everything that the host sends."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sock:
        sock.bind((network.wire, 0x0003))
        sock.settimeout(20)
        yield sock


def answer(
    network: OwnNetwork, transport: Transport, payload: bytes, *, source: str = "", destination: str = "",
    port: int = 0, protocol: int = frames.UDP, fragment: int = 0,
) -> bytes:  # fmt: skip
    """Return a frame from the switch. `fragment`: more fragments (0x2000), and the offset in words of 8 bytes."""
    datagram = frames.udp(AGGREGATION_PORT, port or transport.local_address[1], payload)
    ends = source or network.switch_ip, destination or network.host_ip
    if not is_ipv6(network.switch_ip):
        packet = frames.ipv4(*ends, protocol, datagram, fragment=fragment)
        return frames.ethernet(network.switch_mac, network.host_mac, frames.IPV4, packet)
    ip6 = IPv6(src=ends[0], dst=ends[1], nh=44 if fragment else protocol)
    if fragment:
        ip6 /= IPv6ExtHdrFragment(nh=protocol, m=fragment >> 13, offset=fragment & 0x1FFF)
    return bytes(Ether(src=network.switch_mac, dst=network.host_mac) / ip6 / datagram)


def aggregation_frames(wire: socket.socket, count: int) -> list[bytes]:
    found: list[bytes] = []
    while len(found) < count:
        frame = wire.recv(4096)
        udp = {b"\x08\x00": 23, b"\x86\xdd": 20}.get(frame[12:14])
        if udp is not None and frame[udp] == socket.IPPROTO_UDP:
            found.append(frame)
    return found


@pytest.mark.root
def test_sends_well_formed_frames(network: OwnNetwork, wire: socket.socket, transport: Transport) -> None:
    assert transport.send(PAYLOADS) == len(PAYLOADS)
    # A veth pair changes the order of frames if the sender is moved to another processor meanwhile.
    start = ETHERNET.size + ip_and_udp_bytes(network.host_ip)
    port = transport.local_address[1]
    came = sorted(aggregation_frames(wire, len(PAYLOADS)), key=lambda frame: frame[start:])
    for frame, payload in zip(came, sorted(PAYLOADS), strict=True):
        assert struct.unpack("!HHHH", frame[start - 8 : start]) == (port, AGGREGATION_PORT, 8 + len(payload), 0)
        assert frame[start:] == payload
        if is_ipv6(network.host_ip):
            assert frame[:14].hex(":") == f"{network.switch_mac}:{network.host_mac}:86:dd"
            assert struct.unpack("!IHBB", frame[14:22]) == (6 << 28 | ECN_ECT_0 << 20, 8 + len(payload), 17, 64)
            assert frame[22:54] == packed(network.host_ip) + packed(network.switch_ip)
            continue
        assert frame[:14].hex(":") == f"{network.switch_mac}:{network.host_mac}:08:00"
        assert internet_checksum(frame[14:34]) == 0
        assert frame[15] == ECN_ECT_0
        version, total_length, fragment, ttl, protocol = struct.unpack("!BxHxxHBB", frame[14:24])
        assert (version, total_length, fragment, ttl, protocol) == (0x45, 28 + len(payload), 0x4000, 64, 17)
        assert frame[26:34] == socket.inet_aton(network.host_ip) + socket.inet_aton(network.switch_ip)


@pytest.mark.root
def test_receives_what_the_switch_sends_and_nothing_else(
    network: OwnNetwork, wire: socket.socket, transport: Transport
) -> None:
    others = ("fd00:9::65", "fd00:9::2") if is_ipv6(network.switch_ip) else ("10.9.0.101", "10.9.0.2")
    wire.send(answer(network, transport, b"other source", source=others[0]))
    wire.send(answer(network, transport, b"other host", destination=others[1]))
    wire.send(answer(network, transport, b"other port", port=transport.local_address[1] ^ 1))
    wire.send(answer(network, transport, b"TCP", protocol=socket.IPPROTO_TCP))
    wire.send(answer(network, transport, b"first fragment", fragment=0x2000))
    wire.send(answer(network, transport, b"later fragment", fragment=0x0001))
    wire.send(b"\xff" * 12 + b"\x08\x06" + b"ARP".ljust(46))
    whole = answer(network, transport, PAYLOADS[0])
    wire.send(whole[:-30])  # cut short
    wire.send(whole[: -len(PAYLOADS[0]) - 2])
    if is_ipv6(network.switch_ip):  # a header between those of IPv6 and UDP
        wire.send(whole[:20] + b"\0" + whole[21:54] + b"\x11" + bytes(7) + whole[54:])
    else:
        wire.send(whole[:14] + b"\x46" + whole[15:34] + bytes(4) + whole[34:])
    wire.send(answer(network, transport, PAYLOADS[1]) + bytes(12))
    for payload in PAYLOADS:
        wire.send(answer(network, transport, payload))
    assert sorted(receive(transport, 1 + len(PAYLOADS))) == sorted([PAYLOADS[1], *PAYLOADS])


@pytest.mark.root
@pytest.mark.parametrize("kind", [frames.VLAN, 0x88A8], ids=["802.1Q", "802.1ad"])
@pytest.mark.parametrize("has_interface", [False, True])
def test_ignores_other_vlans(
    network: OwnNetwork, wire: socket.socket, transport: Transport, kind: int, has_interface: bool
) -> None:
    """The kernel removes the tag. The switch does not look behind some tags, so the frame may be any host's."""
    if has_interface:
        protocol = {frames.VLAN: "802.1Q", 0x88A8: "802.1ad"}[kind]
        add_vlan(network.host, f"{network.host}.5", 5, protocol)
    wire.send(frames.tagged(answer(network, transport, PAYLOADS[1]), 5, kind))
    wire.send(answer(network, transport, PAYLOADS[0]))
    assert receive(transport, 1) == [PAYLOADS[0]]


@pytest.mark.root
@pytest.mark.parametrize("ecn", range(4))
def test_marks(network: OwnNetwork, wire: socket.socket, transport: Transport, ecn: int) -> None:
    frame = answer(network, transport, PAYLOADS[0])
    if is_ipv6(network.switch_ip):
        wire.send(frame[:14] + (0x6280 << 16 | ecn << 20 | 0x1234).to_bytes(4, "big") + frame[18:])
    else:
        wire.send(frame[:15] + bytes([0x28 | ecn]) + frame[16:])
    [payload] = receive(transport, 1)
    assert (payload, isinstance(payload, MarkedPayload)) == (PAYLOADS[0], ecn == ECN_CE)


@pytest.mark.root
def test_the_kernel_does_not_answer_the_switch(network: OwnNetwork, wire: socket.socket, transport: Transport) -> None:
    """The kernel would send ICMP "port unreachable", because it knows no reader of the transport's UDP port."""
    ip("neighbour", "add", network.switch_ip, "lladdr", network.switch_mac, "dev", network.host)
    for payload in PAYLOADS:
        wire.send(answer(network, transport, payload))
    receive(transport, len(PAYLOADS))
    unheard = answer(network, transport, b"", port=9)  # that one it does answer
    if is_ipv6(network.switch_ip):
        unheard = unheard[:-2] + in6_chksum(socket.IPPROTO_UDP, IPv6(unheard[14:]), unheard[54:]).to_bytes(2, "big")
    wire.send(unheard)
    while True:
        frame = wire.recv(4096)
        if frame[12:14] == b"\x08\x00" and frame[23] == socket.IPPROTO_ICMP:
            break
        if frame[12:14] == b"\x86\xdd" and (frame[20], frame[54]) == (socket.IPPROTO_ICMPV6, 1):
            break
    size = ip_and_udp_bytes(network.host_ip)
    (unreachable,) = struct.unpack_from("!H", frame, 14 + 2 * size - 8 + 2)
    assert unreachable == 9


@pytest.mark.root
def test_holds_its_port(transport: Transport) -> None:
    own = transport.local_address
    with socket.socket(family_of(own[0]), socket.SOCK_DGRAM) as other, pytest.raises(OSError, match="in use"):
        other.bind(own)


@pytest.mark.root
def test_finds_the_interface_by_the_route(network: OwnNetwork) -> None:
    transport = open_transport("raw", switch_of(network))
    assert transport.local_address[0] == network.host_ip
    transport.close()


@pytest.mark.root
def test_says_what_is_wrong_with_the_interface(network: OwnNetwork) -> None:
    ipv6 = is_ipv6(network.switch_ip)
    with pytest.raises(TransportError, match=rf"'wire0' has no IPv{6 if ipv6 else 4} address .* host0"):
        open_transport("raw", switch_of(network), interface=network.wire)
    with pytest.raises(TransportError, match=r"'nosuch0' has no IPv\d address \([Nn]o "):
        open_transport("raw", switch_of(network), interface="nosuch0")
    far = Switch("2001:db8::1" if ipv6 else "192.0.2.1", AGGREGATION_PORT, network.switch_mac)
    with pytest.raises(TransportError, match=rf"no route to the switch at {re.escape(str(far))} .* name the interface"):
        open_transport("raw", far)
    with pytest.raises(
        TransportError, match=rf"{1550 + ip_and_udp_bytes(far.ip)} bytes .* MTU of 'host0', which is 1500"
    ):
        open_transport("raw", switch_of(network), interface=network.host, largest_payload=1550)
    with pytest.raises(TransportError, match="no MAC address"):
        open_transport("raw", Switch(network.switch_ip, AGGREGATION_PORT))


@pytest.mark.root
def test_survives_an_interface_that_is_down_for_a_while(
    network: OwnNetwork, wire: socket.socket, transport: Transport
) -> None:
    ip("link", "set", network.host, "down")
    assert transport.send(PAYLOADS[:2]) == 2
    assert transport.receive() == []
    ip("link", "set", network.host, "up")
    deadline = time.monotonic() + 20
    payloads: list[bytes] = []
    while not payloads and time.monotonic() < deadline:
        wire.send(answer(network, transport, PAYLOADS[5]))
        payloads = transport.receive()
    assert payloads[0] == PAYLOADS[5]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give it up")
@pytest.mark.root
def test_says_that_it_needs_the_capability(network: OwnNetwork) -> None:
    os.seteuid(65534)
    try:
        with pytest.raises(TransportError, match="need root or the capability CAP_NET_RAW"):
            open_transport("raw", switch_of(network), interface=network.host)
    finally:
        os.seteuid(0)


def test_says_which_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_scapy(name: str, *arguments: Any, **named: Any) -> Any:
        if name.startswith("scapy"):
            raise ImportError(f"No module named {name!r}")
        return real_import(name, *arguments, **named)

    monkeypatch.delitem(sys.modules, "p4reduce.transport.scapy_transport", raising=False)
    monkeypatch.setattr(builtins, "__import__", without_scapy)
    with pytest.raises(TransportError, match=r"pip install 'p4reduce\[scapy\]'"):
        open_transport("scapy", Switch("127.0.0.1", 1, "02:00:00:00:00:01"))
