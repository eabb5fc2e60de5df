# SPDX-License-Identifier: Apache-2.0
"""Frames of the aggregation packets that the controller sends and receives: RESET, QUERY, ABORT and HELLO."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from functools import lru_cache
from ipaddress import IPv4Address

from p4reduce.protocol.constants import AGGREGATION_PORT, Op, Outcome
from p4reduce.protocol.header import NONCE
from p4reduce.protocol.packet import Codec, Packet, ProtocolError, pack
from p4reduce.transport.frames import ANY_FRAGMENT, ETHERTYPE_IPV4, HEADERS, UDP, frame_headers

# Names of the indices of the counter `outcomes`.
OUTCOMES = tuple(outcome.name.lower() for outcome in Outcome)

_VLAN = struct.Struct("!HH")  # the EtherType of a tag, and its priority and number, after the MAC addresses
_TAG = slice(12, 12 + _VLAN.size)
_ETHERTYPE_VLAN = 0x8100
_NONCE = slice(HEADERS.size + NONCE.start, HEADERS.size + NONCE.stop)


@dataclass(frozen=True)
class Endpoint:
    """A host's address: MAC as in "02:00:7f:00:00:01", dotted IPv4 address, UDP port."""

    mac: str
    ip: str
    udp_port: int

    def __str__(self) -> str:
        return f"{self.ip}:{self.udp_port}"


def synthetic_mac(ip: str) -> str:
    """Return the MAC address that an embedded target's UDP port gives to the host with this IPv4 address.

    It is 02:00, followed by the four bytes of the IPv4 address.
    """
    return format_mac(b"\x02\x00" + IPv4Address(ip).packed)


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
    """Return the whole Ethernet frame, with the tag of the VLAN unless it is 0.

    The UDP checksum is 0, and the IPv4 checksum is correct.
    """
    payload = pack(packet)
    frame = frame_headers(_packed(source), _packed(destination), len(payload), fragment=0) + payload
    return frame[: _TAG.start] + _VLAN.pack(_ETHERTYPE_VLAN, vlan) + frame[_TAG.start :] if vlan else frame


def vlan_of(frame: bytes) -> int:
    """Return the VLAN of the frame's tag; 0 if it has none."""
    tag = frame[_TAG]
    kind, number = _VLAN.unpack(tag) if len(tag) == _VLAN.size else (0, 0)
    return number & 0xFFF if kind == _ETHERTYPE_VLAN else 0


def _untagged(frame: bytes) -> bytes:
    return frame[: _TAG.start] + frame[_TAG.stop :] if vlan_of(frame) else frame


@lru_cache(maxsize=4096)
def _packed(endpoint: Endpoint) -> tuple[bytes, bytes, int]:
    """Return MAC address, IPv4 address and UDP port. Raises ValueError."""
    return parse_mac(endpoint.mac), IPv4Address(endpoint.ip).packed, endpoint.udp_port


def parse(frame: bytes, codec: Codec) -> tuple[Endpoint, Packet] | None:
    """Return the sender and the packet; None if this is not a frame of the aggregation protocol."""
    frame = _untagged(frame)
    if len(frame) < HEADERS.size:
        return None
    fields = HEADERS.unpack_from(frame)
    _, mac, ether_type, version_ihl, _, _, _, fragment, _, protocol, _, source, _, source_port, port, length, _ = fields
    if (ether_type, version_ihl, protocol, port) != (ETHERTYPE_IPV4, 0x45, socket.IPPROTO_UDP, AGGREGATION_PORT):
        return None
    end = HEADERS.size - UDP.size + length
    if fragment & ANY_FRAGMENT or end > len(frame):
        return None
    try:
        packet = codec.decode(frame[HEADERS.size : end])
    except ProtocolError:
        return None
    return Endpoint(format_mac(mac), socket.inet_ntoa(source), source_port), packet


def nonce_at_a_glance(frame: bytes) -> int | None:
    """Return the nonce of a frame that the switch sent to the controller; None unless it looks like a HELLO."""
    frame = _untagged(frame)
    if len(frame) < _NONCE.stop or frame[HEADERS.size] & 15 != Op.HELLO:
        return None
    return int.from_bytes(frame[_NONCE], "big")
