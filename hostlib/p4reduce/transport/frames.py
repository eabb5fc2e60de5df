# SPDX-License-Identifier: Apache-2.0
"""Ethernet, IPv4 and UDP headers of the frames that carry packets of the protocol."""

from __future__ import annotations

import socket
import struct

ETHERNET = struct.Struct("!6s6sH")
IPV4 = struct.Struct("!BBHHHBBH4s4s")
UDP = struct.Struct("!HHHH")
HEADERS = struct.Struct(ETHERNET.format + IPV4.format[1:] + UDP.format[1:])
IPV4_AND_UDP_BYTES = IPV4.size + UDP.size

ETHERTYPE_IPV4 = 0x0800
DONT_FRAGMENT = 0x4000
ANY_FRAGMENT = 0x3FFF  # bits of IPv4's flags and offset that are 0 in a whole datagram
TTL = 64

Address = tuple[bytes, bytes, int]
"""A MAC address, an IPv4 address and a UDP port."""


def frame_headers(
    source: Address, destination: Address, length: int, *, ecn: int = 0, fragment: int = DONT_FRAGMENT
) -> bytes:
    """Return the headers of a datagram of `length` bytes. The UDP checksum is 0, which means that there is none.

    The identification may stay 0 in a datagram that is never fragmented (RFC 6864).
    """
    ip = (0x45, ecn, IPV4.size + UDP.size + length, 0, fragment, TTL, socket.IPPROTO_UDP)
    addresses = source[1], destination[1]
    checksum = internet_checksum(IPV4.pack(*ip, 0, *addresses))
    ports = source[2], destination[2]
    return HEADERS.pack(
        destination[0], source[0], ETHERTYPE_IPV4, *ip, checksum, *addresses, *ports, UDP.size + length, 0
    )


def internet_checksum(header: bytes) -> int:
    """Return the checksum of RFC 1071, of an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
