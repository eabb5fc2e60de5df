# SPDX-License-Identifier: Apache-2.0
"""IP addresses of switches and workers, of both families. A text is canonical if `str(ip_address(text))` is equal."""

from __future__ import annotations

import re
import socket
import struct
from ipaddress import IPv4Address, ip_address

_IPV6_IN_BRACKETS = re.compile(r"\[([^]]*:[^]]*)\](?::([0-9]{1,5}))?")
_NO_IPV6 = re.compile(r"([^:]*)(?::([0-9]{1,5}))?")


def is_ipv6(ip: str) -> bool:
    """Return whether the text is an IPv6 address, given that it is an address."""
    return ":" in ip


def family_of(ip: str) -> socket.AddressFamily:
    """Return the family of sockets that reach the address."""
    return socket.AF_INET6 if is_ipv6(ip) else socket.AF_INET


def protocol_of(ip: str) -> str:
    """Return "IPv4" or "IPv6", for messages."""
    return "IPv6" if is_ipv6(ip) else "IPv4"


def join_host_port(ip: str, port: int) -> str:
    """Return address and port as one text: "10.0.0.254:31314" or "[fd00::fe]:31314"."""
    return f"[{ip}]:{port}" if is_ipv6(ip) else f"{ip}:{port}"


def split_host_port(text: str) -> tuple[str, int | None]:
    """Return the canonical address and the port of a text as `join_host_port` returns. Raises ValueError.

    The port is None if there is only an address. An IPv6 address without a port needs no brackets.
    """
    found = _IPV6_IN_BRACKETS.fullmatch(text) or _NO_IPV6.fullmatch(text)
    ip, port = found.groups() if found else (text, None)
    return str(ip_address(ip)), None if port is None else int(port)


def packed(ip: str) -> bytes:
    """Return the 4 or 16 bytes of an address. Raises ValueError."""
    return ip_address(ip).packed


def unpacked(octets: bytes) -> str:
    """Return the canonical text of an address of 4 or 16 bytes. Raises ValueError."""
    return str(ip_address(octets))


def number_in_128_bits(ip: str) -> int:
    """Return an address as the number that it is in tables of switches. An IPv4 address is ::ffff:a.b.c.d there."""
    address = ip_address(ip)
    return int(address) | (0xFFFF << 32 if address.version == 4 else 0)


def synthetic_mac(octets: bytes) -> bytes:
    """Return the MAC address that stands for a host in the frames of UDP ports, which know only its IP address.

    Of an IPv4 address: 02:00 and the address. Of an IPv6 address: 06 and a hash, since addresses in different networks
    often end alike.
    """
    if len(octets) == 4:
        return b"\x02\x00" + octets
    high, low = struct.unpack("!QQ", octets)
    folded: int = (low ^ high * 0x9E3779B97F4A7C15) & (1 << 64) - 1
    return b"\x06" + ((folded ^ folded >> 40) & (1 << 40) - 1).to_bytes(5, "big")


def why_not_a_host(ip: str) -> str:
    """Return why the address cannot be that of a switch or worker, or "". Raises ValueError if it is no address.

    Link-local addresses need an interface's name beside them, and IPv4-mapped ones are not used on the wire (RFC 4291).
    """
    address = ip_address(ip)
    if isinstance(address, IPv4Address):
        is_host = not (address.is_unspecified or address.is_multicast or address == IPv4Address("255.255.255.255"))
        return "" if is_host else "it is not a host's address"
    if address.ipv4_mapped is not None:
        return f"it is an IPv4-mapped address; write {address.ipv4_mapped}"
    if address.is_link_local or address.scope_id is not None:
        return "it is valid on one link only"
    return "it is not a host's address" if address.is_unspecified or address.is_multicast else ""
