# SPDX-License-Identifier: Apache-2.0
"""Frames of the aggregation packets that the controller sends and receives: RESET, QUERY, ABORT and HELLO."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from functools import lru_cache

from p4reduce.protocol.constants import AGGREGATION_PORT, Op, Outcome
from p4reduce.protocol.header import NONCE
from p4reduce.protocol.packet import Codec, Packet, ProtocolError, pack
from p4reduce.transport import addresses
from p4reduce.transport.addresses import is_ipv6, join_host_port, packed, unpacked
from p4reduce.transport.frames import (
    ANY_FRAGMENT,
    ETHERNET,
    ETHERTYPE_IPV4,
    ETHERTYPE_IPV6,
    IPV4,
    IPV6,
    UDP,
    frame_headers,
)

# Names of the indices of the counter `outcomes`.
OUTCOMES = tuple(outcome.name.lower() for outcome in Outcome)

_VLAN = struct.Struct("!HH")  # the EtherType of a tag, and its priority and number, after the MAC addresses
_TAG = slice(12, 12 + _VLAN.size)
_ETHERTYPE_VLAN = 0x8100
_IP_HEADERS = {ETHERTYPE_IPV4: IPV4, ETHERTYPE_IPV6: IPV6}


@dataclass(frozen=True)
class Endpoint:
    """A host's address: MAC as in "02:00:7f:00:00:01", IPv4 or IPv6 address as a canonical text, UDP port."""

    mac: str
    ip: str
    udp_port: int

    def __str__(self) -> str:
        return join_host_port(self.ip, self.udp_port)


def have_one_family(one: Endpoint, other: Endpoint) -> bool:
    """Return whether both addresses are IPv4, or both IPv6."""
    return is_ipv6(one.ip) == is_ipv6(other.ip)


def synthetic_mac(ip: str) -> str:
    """Return the MAC address that an embedded target's UDP port gives to the host with this IP address."""
    return format_mac(addresses.synthetic_mac(packed(ip)))


def parse_mac(text: str) -> bytes:
    """Return the six bytes of an address such as "02:00:7f:00:00:01".

    The text of its ValueError says what is accepted.
    """
    try:
        mac = bytes(int(part, 16) for part in text.replace("-", ":").split(":"))
    except ValueError:
        mac = b""
    if len(mac) != 6:
        raise ValueError(f"MAC address {text!r}: must be six hexadecimal bytes, as in 02:00:7f:00:00:01")
    return mac


def format_mac(mac: bytes) -> str:
    return mac.hex(":")


def build(packet: Packet, source: Endpoint, destination: Endpoint, vlan: int = 0) -> bytes:
    """Return the whole Ethernet frame, with the tag of the VLAN unless it is 0. Both ends have one family.

    The UDP checksum is 0, and the IPv4 checksum is correct.
    """
    payload = pack(packet)
    frame = frame_headers(_octets(source), _octets(destination), len(payload), fragment=0) + payload
    return frame[: _TAG.start] + _VLAN.pack(_ETHERTYPE_VLAN, vlan) + frame[_TAG.start :] if vlan else frame


def vlan_of(frame: bytes) -> int:
    """Return the VLAN of the frame's tag; 0 if it has none."""
    tag = frame[_TAG]
    kind, number = _VLAN.unpack(tag) if len(tag) == _VLAN.size else (0, 0)
    return number & 0xFFF if kind == _ETHERTYPE_VLAN else 0


def _untagged(frame: bytes) -> bytes:
    return frame[: _TAG.start] + frame[_TAG.stop :] if vlan_of(frame) else frame


@lru_cache(maxsize=4096)
def _octets(endpoint: Endpoint) -> tuple[bytes, bytes, int]:
    """Return MAC address, IP address and UDP port. Raises ValueError."""
    return parse_mac(endpoint.mac), packed(endpoint.ip), endpoint.udp_port


def _payload_offset(frame: bytes) -> int:
    """Return where the UDP payload begins in a frame without a tag, or 0: its EtherType is another, or it is short.

    The IP header is taken to have no options or extension headers; `parse` checks that.
    """
    if len(frame) < ETHERNET.size:
        return 0
    *_, ether_type = ETHERNET.unpack_from(frame)
    header = _IP_HEADERS.get(ether_type)
    offset = ETHERNET.size + header.size + UDP.size if header is not None else 0
    return offset if offset <= len(frame) else 0


def parse(frame: bytes, codec: Codec) -> tuple[Endpoint, Packet] | None:
    """Return the sender and the packet; None if this is not a frame of the aggregation protocol."""
    frame = _untagged(frame)
    start = _payload_offset(frame)
    if not start:
        return None
    _, mac, ether_type = ETHERNET.unpack_from(frame)
    if ether_type == ETHERTYPE_IPV4:
        version_ihl, _, _, _, fragment, _, protocol, _, source, _ = IPV4.unpack_from(frame, ETHERNET.size)
        whole = version_ihl == 0x45 and not fragment & ANY_FRAGMENT
    else:
        first_word, _, protocol, _, source, _ = IPV6.unpack_from(frame, ETHERNET.size)
        whole = first_word >> 28 == 6
    source_port, port, length, _ = UDP.unpack_from(frame, start - UDP.size)
    end = start - UDP.size + length
    if not whole or (protocol, port) != (socket.IPPROTO_UDP, AGGREGATION_PORT) or end > len(frame):
        return None
    try:
        packet = codec.decode(frame[start:end])
    except ProtocolError:
        return None
    return Endpoint(format_mac(mac), unpacked(source), source_port), packet


def nonce_at_a_glance(frame: bytes) -> int | None:
    """Return the nonce of a frame that the switch sent to the controller; None unless it looks like a HELLO."""
    frame = _untagged(frame)
    start = _payload_offset(frame)
    if not start or len(frame) < start + NONCE.stop or frame[start] & 15 != Op.HELLO:
        return None
    return int.from_bytes(frame[start + NONCE.start : start + NONCE.stop], "big")
