# SPDX-License-Identifier: Apache-2.0
"""The aggregation packets in captured frames: only their headers, because a trace needs no values."""

from __future__ import annotations

import socket
import struct
from collections.abc import Container, Iterable, Iterator
from functools import lru_cache
from itertools import product
from typing import NamedTuple

from p4reduce.protocol.constants import (
    AGGREGATION_PORT,
    BLOCK_SIZES_ACCEPTED,
    LANES_ACCEPTED,
    PROTOCOL_VERSION,
)
from p4reduce.protocol.header import JOB
from p4reduce.protocol.packet import Codec
from p4reduce.transport.addresses import unpacked
from p4reduce.transport.frames import ANY_FRAGMENT, ETHERTYPE_IPV4, ETHERTYPE_IPV6, IPV4, IPV6, UDP

ETHERNET = 1
# Link types with the IP packet at a fixed offset, and the versions that it may have; EtherTypes of these versions.
_IP_AT = {
    0: (4, (4, 6)),
    12: (0, (4, 6)),
    14: (0, (4, 6)),
    101: (0, (4, 6)),
    108: (4, (4, 6)),
    228: (0, (4,)),
    229: (0, (6,)),
}
_VERSIONS = {ETHERTYPE_IPV4: (4,), ETHERTYPE_IPV6: (6,)}
_TYPE_AT = {113: (14, 16), 276: (0, 20)}  # Linux's "any": offsets of the EtherType and of the packet
TAGS = (0x8100, 0x88A8, 0x9100)

Address = tuple[str, int]
UNKNOWN: Address = ("", 0)
"""The address of a frame that was cut before its UDP ports."""


class Datagram(NamedTuple):
    """A UDP datagram to or from a switch. time: ns since 1970. length: on the wire; `payload` may have less."""

    time: int
    source: Address
    destination: Address
    payload: bytes
    length: int


class Header(NamedTuple):
    """An aggregation packet without its values; see docs/protocol.md, section 2."""

    time: int
    source: Address
    destination: Address
    op: int
    active: int
    present: int
    worker: int
    job: int
    generation: int
    slot: int
    seq: int
    fingerprint: int
    keys: tuple[int, ...]


# The codecs of the two programs that are installed come first, then all others that can be compiled.
CODECS = tuple(
    dict.fromkeys((Codec(), Codec(8, 256), *(Codec(*one) for one in product(LANES_ACCEPTED, BLOCK_SIZES_ACCEPTED))))
)


def datagram(
    time: int,
    link_type: int,
    frame: bytes,
    ports: Container[int] = (AGGREGATION_PORT,),
    *,
    wire_length: int = 0,
) -> Datagram | None:
    """Return the frame's datagram, if it is to or from one of these UDP ports and is no fragment.

    wire_length: bytes of the whole frame; `frame` may have less. If a frame was cut before its UDP ports and may be one
    of ours, it counts as a datagram without a payload between UNKNOWN addresses.
    """
    if len(frame) < wire_length and _may_be_udp(link_type, frame):
        return Datagram(time, UNKNOWN, UNKNOWN, b"", wire_length)
    at, versions = _ip_at(link_type, frame)
    if len(frame) < at + IPV4.size + UDP.size or frame[at] >> 4 not in versions:
        return None
    protocol, udp = _udp_at(frame[at])
    if frame[at + protocol] != socket.IPPROTO_UDP or len(frame) < at + udp + UDP.size:
        return None
    if frame[at] >> 4 == 4:
        if int.from_bytes(frame[at + 6 : at + 8], "big") & ANY_FRAGMENT:
            return None
        own, other = frame[at + 12 : at + 16], frame[at + 16 : at + 20]
    else:
        own, other = frame[at + 8 : at + 24], frame[at + 24 : at + 40]
    source, destination, length, _ = UDP.unpack_from(frame, at + udp)
    if not (source in ports or destination in ports) or length < UDP.size:
        return None
    payload = frame[at + udp + UDP.size : at + udp + length]
    return Datagram(time, (_text(own), source), (_text(other), destination), payload, length - UDP.size)


_text = lru_cache(maxsize=8192)(unpacked)


def _udp_at(first: int) -> tuple[int, int]:
    """Return the offsets in an IP packet of its protocol, and of the UDP header. `first`: the packet's first byte."""
    return (9, 4 * (first & 15)) if first >> 4 == 4 else (6, IPV6.size)


def _ip_at(link_type: int, frame: bytes) -> tuple[int, tuple[int, ...]]:
    """Return the offset of the IP packet, and the versions that it may have: none if this is another protocol.

    Raises ValueError for an unknown link type.
    """
    if link_type in _IP_AT:
        return _IP_AT[link_type]
    if link_type != ETHERNET and link_type not in _TYPE_AT:
        raise ValueError(f"link type {link_type}: accepted are Ethernet (1), raw IP (101), loopback (0), and Linux's "
                         "\"any\" (113, 276)")  # fmt: skip
    kind, after = _type_at(link_type, frame)
    return after, _VERSIONS.get(int.from_bytes(frame[kind : kind + 2], "big"), ())


def _type_at(link_type: int, frame: bytes) -> tuple[int, int]:
    """Return the offsets of the EtherType behind all tags, and of the packet that follows it."""
    kind, after = _TYPE_AT.get(link_type, (12, 14))
    while int.from_bytes(frame[kind : kind + 2], "big") in TAGS:
        kind, after = after + 2, after + 4  # skip the tag and the EtherType behind it
    return kind, after


def interface_of(link_type: int, frame: bytes) -> bytes:
    """Return what distinguishes interfaces of Linux's "any": the index, or only the frame's direction."""
    return frame[4:8] if link_type == 276 else frame[:2] if link_type == 113 else b""


def _may_be_udp(link_type: int, frame: bytes) -> bool:
    """Return whether the frame was cut before the end of its UDP header, and may be a UDP datagram so far."""
    kind, after = _type_at(link_type, frame)
    if link_type not in _IP_AT and len(frame) < max(kind + 2, after):
        return True
    at, versions = _ip_at(link_type, frame)
    ip = frame[at:]
    if not ip or ip[0] >> 4 not in versions:
        return bool(versions) and not ip
    protocol, udp = _udp_at(ip[0])
    return len(ip) < udp + UDP.size and (len(ip) <= protocol or ip[protocol] == socket.IPPROTO_UDP)


def codec_of(datagrams: Iterable[Datagram]) -> Codec | None:
    """Return the first codec that every datagram fits, whole or cut. None if there is none."""
    seen = list(datagrams)
    return next((codec for codec in CODECS if all(_fits(codec, one) for one in seen)), None)


def _fits(codec: Codec, one: Datagram) -> bool:
    """Return whether the datagram is one packet of this codec, or several that the kernel sends as one."""
    at = length = 0
    while at < one.length:
        head = one.payload[at : at + 3]
        if len(head) < 3:
            if len(one.payload) >= one.length:
                return False
            # Packets that the kernel sends as one have the same length, except that the last may be shorter.
            last = (one.length - at) % length if at else 0
            return not last or last in (codec.length((1 << lanes) - 1) for lanes in range(codec.lanes + 1))
        if head[0] >> 4 != PROTOCOL_VERSION or head[2] & ~head[1] or head[1] >> codec.lanes:
            return False
        length = codec.length(head[2])
        at += length
    return at == one.length


def split(one: Datagram, codec: Codec) -> Iterator[Datagram]:
    """Yield each packet of a datagram as a datagram of its own, without its values."""
    at = 0
    while at + codec.bare <= len(one.payload):
        length = codec.length(one.payload[at + 2])
        yield one._replace(payload=one.payload[at : at + codec.bare], length=length)
        at += length


def count_cut(one: Datagram, codec: Codec) -> int:
    """Return how many packets of a datagram were captured without their whole header."""
    if len(one.payload) >= one.length:
        return 0
    at, length = 0, one.length
    while at < one.length and at + 3 <= len(one.payload):
        length = codec.length(one.payload[at + 2])
        if at + codec.bare > len(one.payload):
            break
        at += length
    return max(0, -(-(one.length - at) // length))  # all have the same length, except that the last may be shorter


def job_of(one: Datagram) -> tuple[int, int] | None:
    """Return the number and generation of a datagram's job, None if it was cut before them."""
    if len(one.payload) < JOB.stop:
        return None
    job, generation = struct.unpack("!2H", one.payload[JOB])
    return job, generation


def headers(one: Datagram, codec: Codec) -> Iterator[Header]:
    """Yield the headers of a datagram's packets, as far as captured. The kernel may send several packets as one."""
    at = 0
    while at + codec.bare <= len(one.payload):
        first, active, present, worker, job, generation, slot, seq, fingerprint, *keys = codec.header(one.payload, at)
        if first >> 4 != PROTOCOL_VERSION:
            return
        yield Header(
            one.time, one.source, one.destination, first & 15, active, present, worker, job, generation, slot, seq,
            fingerprint, tuple(keys),
        )  # fmt: skip
        at += codec.length(present)
