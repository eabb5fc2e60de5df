# SPDX-License-Identifier: Apache-2.0
"""Ethernet, IPv4 or IPv6, and UDP headers of the frames that carry packets of the protocol."""

from __future__ import annotations

import socket
import struct

from p4reduce.transport.addresses import is_ipv6

ETHERNET = struct.Struct("!6s6sH")
IPV4 = struct.Struct("!BBHHHBBH4s4s")
IPV6 = struct.Struct("!IHBB16s16s")
UDP = struct.Struct("!HHHH")
HEADERS = struct.Struct(ETHERNET.format + IPV4.format[1:] + UDP.format[1:])
IPV6_HEADERS = struct.Struct(ETHERNET.format + IPV6.format[1:] + UDP.format[1:])
IPV4_AND_UDP_BYTES = IPV4.size + UDP.size
IPV6_AND_UDP_BYTES = IPV6.size + UDP.size

ETHERTYPE_IPV4 = 0x0800
ETHERTYPE_IPV6 = 0x86DD
DONT_FRAGMENT = 0x4000
ANY_FRAGMENT = 0x3FFF  # bits of IPv4's flags and offset that are 0 in a whole datagram
TTL = 64  # and hop limit

Address = tuple[bytes, bytes, int]
"""A MAC address, an IPv4 or IPv6 address and a UDP port."""


def ip_and_udp_bytes(ip: str) -> int:
    """Return the length of the IP and UDP headers of packets to this address."""
    return IPV6_AND_UDP_BYTES if is_ipv6(ip) else IPV4_AND_UDP_BYTES


def frame_headers(
    source: Address, destination: Address, length: int, *, ecn: int = 0, fragment: int = DONT_FRAGMENT
) -> bytes:
    """Return the headers of a datagram of `length` bytes, in the family of the addresses. Raises ValueError if mixed.

    The UDP checksum is 0, which means that there is none (over IPv6: RFC 6935). The identification of IPv4 may stay 0
    in a datagram that is never fragmented (RFC 6864).
    `fragment`: flags and offset of IPv4, which IPv6 lacks.
    """
    if len(source[1]) != len(destination[1]):
        raise ValueError(f"addresses of {len(source[1])} and {len(destination[1])} bytes: must be of one family")
    ends = destination[0], source[0]
    udp = source[2], destination[2], UDP.size + length, 0
    if len(source[1]) == 16:
        words = 6 << 28 | ecn << 20, UDP.size + length, socket.IPPROTO_UDP, TTL
        return IPV6_HEADERS.pack(*ends, ETHERTYPE_IPV6, *words, source[1], destination[1], *udp)
    ip = (0x45, ecn, IPV4.size + UDP.size + length, 0, fragment, TTL, socket.IPPROTO_UDP)
    addresses = source[1], destination[1]
    checksum = internet_checksum(IPV4.pack(*ip, 0, *addresses))
    return HEADERS.pack(*ends, ETHERTYPE_IPV4, *ip, checksum, *addresses, *udp)


def internet_checksum(header: bytes) -> int:
    """Return the checksum of RFC 1071, of an even number of bytes."""
    total: int = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF
