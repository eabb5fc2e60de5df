# SPDX-License-Identifier: Apache-2.0
"""The kernel's routes and addresses, read over rtnetlink(7), and the rate of a link if the kernel knows it.

The older ioctl SIOCGIFADDR returns only an interface's first address, and no routes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import struct
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from p4reduce.transport.addresses import family_of, is_ipv6, unpacked, why_not_a_host
from p4reduce.transport.base import Switch, TransportError

# From <linux/netlink.h> and <linux/rtnetlink.h>.
_HEADER = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_ROUTE = struct.Struct("=BBBBBBBBI")
_ADDRESS = struct.Struct("=BBBBI")
_REQUEST, _DUMP = 0x1, 0x300
_ERROR, _DONE = 2, 3
_GET_ROUTE, _GET_ADDRESSES = 26, 22
_DESTINATION, _OUTPUT, _PREFERRED_SOURCE = 1, 4, 7  # attributes of routes
_ADDRESS_OF, _LOCAL = 1, 2  # attributes of addresses; IPv6 has _LOCAL only if there is a peer
_LINK_SCOPE = 253
_DAD_FAILED, _TENTATIVE = 0x8, 0x40  # flags of addresses
_TENTATIVE_S = 5.0  # the kernel takes up to two seconds to find out that no other host has an address
_POLL_S = 0.05
_IPV6_ADDR_PREFERENCES, _PREFER_SRC_PUBLIC = 72, 2  # from <linux/in6.h>
_ROOM = 1 << 16
_TIMEOUT_S = 5.0
_MEGABIT = 10**6
_SIOCGIFMTU = 0x8921  # of netdevice(7)


@dataclass(frozen=True)
class Route:
    """The interface by which packets leave, and their source address."""

    interface: str
    source: str


def route_to(ip: str, interface: str | None = None) -> Route:
    """Return the route to an address. `interface`: go through this one, over IPv4 even if no route leads there.

    Raises OSError if there is no route, or no such interface, or `ip` is no address.
    """
    destination = socket.inet_pton(family_of(ip), ip)
    attributes = _attribute(_DESTINATION, destination)
    if interface is not None:
        attributes += _attribute(_OUTPUT, struct.pack("=I", socket.if_nametoindex(interface)))
    request = _ROUTE.pack(family_of(ip), 8 * len(destination), 0, 0, 0, 0, 0, 0, 0) + attributes
    for body in _asked(_GET_ROUTE, 0, request):
        found = dict(_attributes(body[_ROUTE.size :]))
        if _OUTPUT in found and _PREFERRED_SOURCE in found:
            (index,) = struct.unpack("=I", found[_OUTPUT])
            return Route(socket.if_indextoname(index), unpacked(found[_PREFERRED_SOURCE]))
    raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))


def addresses_of(interface: str, family: int = socket.AF_INET) -> list[str]:
    """Return all addresses of an interface, including those with labels of their own. Raises OSError.

    Link-local addresses of IPv6 are left out, since no worker has one, and those that the kernel does not use yet.
    """
    index = socket.if_nametoindex(interface)
    found = []
    for body in _asked(_GET_ADDRESSES, _DUMP, _ADDRESS.pack(family, 0, 0, 0, 0)):
        _, _, flags, scope, of = _ADDRESS.unpack_from(body)
        attributes = dict(_attributes(body[_ADDRESS.size :]))
        address = attributes.get(_LOCAL, attributes.get(_ADDRESS_OF))
        unused = family == socket.AF_INET6 and (scope == _LINK_SCOPE or flags & (_DAD_FAILED | _TENTATIVE))
        if of == index and address is not None and not unused:
            found.append(unpacked(address))
    return found


def prefer_public_source(sock: socket.socket) -> None:
    """Let an IPv6 socket send from a temporary address (RFC 8981) only if there is no other: jobs may outlive it."""
    sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_ADDR_PREFERENCES, _PREFER_SRC_PUBLIC)


def source_toward(switch: Switch, interface: str | None = None) -> str:
    """Return the address from which a UDP socket sends to the switch. Raises OSError if there is no route or address.

    The kernel does not send from an IPv6 address while it asks whether another host has it. Meanwhile, it sends from
    ::1 or from a link-local address.
    """
    deadline = time.monotonic() + _TENTATIVE_S
    while True:
        with socket.socket(family_of(switch.ip), socket.SOCK_DGRAM) as probe:
            if is_ipv6(switch.ip):
                prefer_public_source(probe)
            if interface is not None:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
            probe.connect((switch.ip, switch.udp_port))
            source: str = probe.getsockname()[0]
        is_loopback = ip_address(source).is_loopback and not ip_address(switch.ip).is_loopback
        if not (is_ipv6(switch.ip) and (is_loopback or why_not_a_host(source))):
            return source
        if time.monotonic() >= deadline:
            raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
        time.sleep(_POLL_S)


def interface_toward(switch: Switch) -> str:
    """Return the interface by which the kernel would reach the switch."""
    try:
        return route_to(switch.ip).interface
    except OSError as error:
        raise TransportError(
            f"no route to the switch at {switch} ({error.strerror}): name the interface that leads there"
        ) from error


def mtu_of(interface: str) -> int:
    """Return the MTU of an interface. That of a route may be less, and may come from ICMP, which anybody can forge.

    Raises OSError.
    """
    return int.from_bytes(interface_request(_SIOCGIFMTU, interface)[:4], sys.byteorder)


def interface_request(request: int, interface: str) -> bytes:
    """Return the kernel's answer to a request about an interface: the union in `struct ifreq` of netdevice(7)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        answer: bytes = fcntl.ioctl(sock, request, struct.pack("16s24x", interface.encode()[:15]))
    return answer[16:]


def rate_toward(switch: Switch, interface: str | None) -> int:
    """Return the bits a second of the interface toward the switch, or 0 if unknown.

    `interface`: by default the one that the routing table names.
    """
    with contextlib.suppress(OSError, ValueError, TransportError):
        if interface is None:
            interface = interface_toward(switch)
        return max(0, int(Path("/sys/class/net", interface, "speed").read_text())) * _MEGABIT
    return 0


def _asked(kind: int, flags: int, request: bytes) -> Iterator[bytes]:
    """Yield the bodies of the kernel's answers. Raises OSError."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as kernel:
        kernel.settimeout(_TIMEOUT_S)
        kernel.send(_HEADER.pack(_HEADER.size + len(request), kind, _REQUEST | flags, 1, 0) + request)
        while True:
            answers = kernel.recv(_ROOM)
            while answers:
                length, answer, *_ = _HEADER.unpack_from(answers)
                body, answers = answers[_HEADER.size : length], answers[_aligned(length) :]
                if answer == _ERROR:
                    (number,) = struct.unpack_from("=i", body)
                    raise OSError(-number, os.strerror(-number))
                if answer == _DONE:
                    return
                yield body
            if not flags & _DUMP:
                return


def _attribute(kind: int, value: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(value), kind) + value


def _attributes(body: bytes) -> Iterator[tuple[int, bytes]]:
    while len(body) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(body)
        yield kind, body[_ATTRIBUTE.size : length]
        body = body[_aligned(length) :]


def _aligned(length: int) -> int:
    return (length + 3) & ~3
