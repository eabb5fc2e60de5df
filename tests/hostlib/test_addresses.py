# SPDX-License-Identifier: Apache-2.0
"""Addresses of both families as texts and bytes, and the headers of frames, compared with ipaddress and scapy."""

from __future__ import annotations

import ipaddress
from ipaddress import ip_address

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scapy.layers.inet import IP, UDP
from scapy.layers.inet6 import IPv6
from scapy.layers.l2 import Ether

from p4reduce.transport import frames
from p4reduce.transport.addresses import is_ipv6, join_host_port, packed, split_host_port, unpacked, why_not_a_host

PORTS = st.integers(1, 2**16 - 1)
MACS = st.binary(min_size=6, max_size=6)


@given(st.ip_addresses(), PORTS)
def test_texts_are_canonical(address: ipaddress.IPv4Address | ipaddress.IPv6Address, port: int) -> None:
    text = str(address)
    assert (unpacked(packed(text)), is_ipv6(text)) == (text, address.version == 6)
    assert unpacked(packed(address.exploded)) == text
    written = join_host_port(text, port)
    assert written == (f"[{text}]:{port}" if address.version == 6 else f"{text}:{port}")
    assert split_host_port(written) == (text, port)
    assert split_host_port(text) == split_host_port(join_host_port(text, 0).removesuffix(":0")) == (text, None)
    assert split_host_port(join_host_port(address.exploded, port)) == (text, port)


@pytest.mark.parametrize("text", ["", "10.0.0", "10.0.0.1:1", "[::1]", "fd00::1::2", "fd00::1/64", "localhost"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="does not appear to be an IPv4 or IPv6 address"):
        why_not_a_host(text)


@pytest.mark.parametrize(
    "text",
    ["", ":1", "10.0.0.1:", "10.0.0.1:x", "10.0.0.1:123456", "[10.0.0.1]:1", "[::1]:", "[::1", "::1]:1", "[::1]1"],
)
def test_other_texts_are_no_address_and_port(text: str) -> None:
    with pytest.raises(ValueError, match="does not appear to be an IPv4 or IPv6 address"):
        split_host_port(text)


@pytest.mark.parametrize("ip", ["10.0.0.1", "127.0.0.1", "169.254.1.2", "fd00::1", "::1", "2001:db8::ffff:1.2.3.4"])
def test_hosts(ip: str) -> None:
    assert why_not_a_host(ip) == ""


@pytest.mark.parametrize(
    ("ip", "why"),
    [
        ("0.0.0.0", "it is not a host's address"),
        ("224.0.0.1", "it is not a host's address"),
        ("255.255.255.255", "it is not a host's address"),
        ("::", "it is not a host's address"),
        ("ff02::1", "it is not a host's address"),
        ("ff0e::7", "it is not a host's address"),
        ("fe80::1", "it is valid on one link only"),
        ("febf::1", "it is valid on one link only"),
        ("fe80::1%eth0", "it is valid on one link only"),
        ("fd00::1%eth0", "it is valid on one link only"),
        ("::ffff:1.2.3.4", "it is an IPv4-mapped address; write 1.2.3.4"),
        ("::ffff:102:304", "it is an IPv4-mapped address; write 1.2.3.4"),
    ],
)
def test_others_are_refused(ip: str, why: str) -> None:
    assert why_not_a_host(ip) == why


@given(st.binary(min_size=4, max_size=4))
def test_no_mapped_address_is_a_hosts(ipv4: bytes) -> None:
    assert why_not_a_host(unpacked(b"\0" * 10 + b"\xff\xff" + ipv4)).endswith(f"write {ip_address(ipv4)}")


@settings(max_examples=100)
@given(st.data(), st.sampled_from([4, 6]), MACS, MACS, st.binary(max_size=40), st.integers(0, 3))
def test_frames_are_as_scapys(
    data: st.DataObject, version: int, mac: bytes, to_mac: bytes, payload: bytes, ecn: int
) -> None:
    source, destination = (data.draw(st.ip_addresses(v=version)) for _ in range(2))
    ports = data.draw(PORTS), data.draw(PORTS)
    ends = (mac, source.packed, ports[0]), (to_mac, destination.packed, ports[1])
    frame = frames.frame_headers(*ends, len(payload), ecn=ecn) + payload
    assert len(frame) - frames.ETHERNET.size - len(payload) == frames.ip_and_udp_bytes(str(source))
    addresses = {"src": str(source), "dst": str(destination)}
    ip = IP(**addresses, id=0, flags="DF", tos=ecn) if version == 4 else IPv6(**addresses, tc=ecn)
    udp = UDP(sport=ports[0], dport=ports[1], chksum=0)
    assert frame == bytes(Ether(src=mac.hex(":"), dst=to_mac.hex(":")) / ip / udp / payload)


def test_both_ends_have_one_family() -> None:
    with pytest.raises(ValueError, match="addresses of 16 and 4 bytes: must be of one family"):
        frames.frame_headers((bytes(6), packed("fd00::1"), 1), (bytes(6), packed("10.0.0.1"), 1), 0)
