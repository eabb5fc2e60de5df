# SPDX-License-Identifier: Apache-2.0
"""The aggregation frames that the controller sends and hears: RESET, QUERY, ABORT and HELLO.

The layout is that of p4src/include/headers.p4.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import IPv4Address

from p4reduce.protocol.constants import AGGREGATION_PORT, PROTOCOL_VERSION, Op, Outcome
from p4reduce.protocol.header import FIXED

# Names of the counter `outcomes`, by index.
OUTCOMES = tuple(outcome.name.lower() for outcome in Outcome)

_ETHERNET = struct.Struct("!6s6sH")
_IPV4 = struct.Struct("!BBHHHBBH4s4s")
_UDP = struct.Struct("!HHHH")
_OP = _ETHERNET.size + _IPV4.size + _UDP.size
_HEADERS = _OP + FIXED.size
_NONCE = _HEADERS - 4  # in the fingerprint and the first key
_ETHERTYPE_IPV4 = 0x0800
_PROTOCOL_UDP = 17
_TTL = 64


@dataclass(frozen=True)
class Endpoint:
    """Where a host sits: MAC as "02:00:7f:00:00:01", dotted IPv4 address, UDP port."""

    mac: str
    ip: str
    udp_port: int

    def __str__(self) -> str:
        return f"{self.ip}:{self.udp_port}"


@dataclass(frozen=True)
class Aggregation:
    """One aggregation packet; `keys` and `values` are unsigned 32-bit words, `values` lane after lane."""

    op: int
    job: int = 0
    generation: int = 0
    worker: int = 0
    slot: int = 0
    seq: int = 0
    fingerprint: int = 0
    active: int = 0
    present: int = 0
    keys: tuple[int, ...] = ()
    values: tuple[int, ...] = field(default=(), repr=False)


def synthetic_mac(ip: str) -> str:
    """The MAC that a UDP port of an embedded target gives to whoever has this address: 02:00 and its four bytes."""
    return format_mac(b"\x02\x00" + IPv4Address(ip).packed)


def parse_mac(text: str) -> bytes:
    """Six bytes from "02:00:7f:00:00:01"; ValueError names what is accepted."""
    try:
        mac = bytes(int(part, 16) for part in text.replace("-", ":").split(":"))
    except ValueError:
        mac = b""
    if len(mac) != 6:
        raise ValueError(f"MAC address {text!r}: must be six hexadecimal bytes, as in 02:00:7f:00:00:01")
    return mac


def format_mac(mac: bytes) -> str:
    return mac.hex(":")


def build(packet: Aggregation, source: Endpoint, destination: Endpoint) -> bytes:
    """The whole Ethernet frame. The UDP checksum is 0, the IPv4 checksum right."""
    payload = FIXED.pack(
        PROTOCOL_VERSION << 4 | packet.op,
        packet.active,
        packet.present,
        packet.worker,
        packet.job,
        packet.generation,
        packet.slot,
        packet.seq,
        packet.fingerprint,
    )
    words = packet.keys + packet.values
    payload += struct.pack(f"!{len(words)}I", *words)
    length = _UDP.size + len(payload)
    ip = [0x45, 0, _IPV4.size + length, 0, 0, _TTL, _PROTOCOL_UDP, 0]
    (source_mac, source_ip), (destination_mac, destination_ip) = _packed(source), _packed(destination)
    addresses = (source_ip, destination_ip)
    ip[-1] = _checksum(_IPV4.pack(*ip, *addresses))
    return (
        _ETHERNET.pack(destination_mac, source_mac, _ETHERTYPE_IPV4)
        + _IPV4.pack(*ip, *addresses)
        + _UDP.pack(source.udp_port, destination.udp_port, length, 0)
        + payload
    )


@lru_cache(maxsize=4096)
def _packed(endpoint: Endpoint) -> tuple[bytes, bytes]:
    """MAC and IPv4 address. Raises ValueError."""
    return parse_mac(endpoint.mac), IPv4Address(endpoint.ip).packed


def parse(frame: bytes, lanes: int) -> tuple[Endpoint, Aggregation] | None:
    """The sender and the packet, or None where this is not an aggregation frame of ours with `lanes` keys."""
    if len(frame) < _HEADERS + 4 * lanes:
        return None
    _, mac, ether_type = _ETHERNET.unpack_from(frame)
    version_ihl, _, _, _, fragment, _, protocol, _, source, _ = _IPV4.unpack_from(frame, _ETHERNET.size)
    if ether_type != _ETHERTYPE_IPV4 or version_ihl != 0x45 or protocol != _PROTOCOL_UDP or fragment & 0x3FFF:
        return None
    at = _ETHERNET.size + _IPV4.size
    source_port, destination_port, udp_length, _ = _UDP.unpack_from(frame, at)
    end = at + udp_length
    first, active, present, worker, job, generation, slot, seq, fingerprint = FIXED.unpack_from(frame, at + _UDP.size)
    words_at = at + _UDP.size + FIXED.size
    if (
        destination_port != AGGREGATION_PORT
        or first >> 4 != PROTOCOL_VERSION
        or not words_at + 4 * lanes <= end <= len(frame)
        or (end - words_at) % 4
    ):
        return None
    words = struct.unpack_from(f"!{(end - words_at) // 4}I", frame, words_at)
    packet = Aggregation(
        first & 15, job, generation, worker, slot, seq, fingerprint, active, present, words[:lanes], words[lanes:]
    )
    return Endpoint(format_mac(mac), socket.inet_ntoa(source), source_port), packet


def nonce_at_a_glance(frame: bytes) -> int | None:
    """The nonce of a frame that the switch sends to the controller, where it looks like a HELLO."""
    if len(frame) < _HEADERS + 4 or frame[_OP] & 15 != Op.HELLO:
        return None
    return int.from_bytes(frame[_NONCE : _NONCE + 8], "big")


def hello_nonce(packet: Aggregation) -> int:
    """The 64-bit nonce that a HELLO carries."""
    return packet.fingerprint << 32 | packet.keys[0]


def _checksum(header: bytes) -> int:
    total: int = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total ^ 0xFFFF
