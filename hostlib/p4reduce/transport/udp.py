# SPDX-License-Identifier: Apache-2.0
"""The transport over a plain UDP socket. It needs no privileges, and the kernel finds the way to the switch."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from contextlib import suppress

from p4reduce.protocol.constants import ECN_ECT_0
from p4reduce.transport.addresses import family_of
from p4reduce.transport.base import (
    SocketTransport,
    Switch,
    TransportError,
    check_mtu,
    enlarge_buffers,
    explain_refusal,
    lost,
)
from p4reduce.transport.ecn import ANCILLARY_BYTES, ecn_of, with_mark
from p4reduce.transport.frames import ip_and_udp_bytes
from p4reduce.transport.routes import interface_toward, mtu_of, prefer_public_source, source_toward

# From <linux/in.h>, <linux/in6.h> and <linux/udp.h>; the socket module has some of them only from Python 3.14.
IP_MTU_DISCOVER, IPV6_MTU_DISCOVER = 10, 23
IP_PMTUDISC_PROBE = 3
IPV6_PMTUDISC_INTERFACE = 4
IP_MTU, IPV6_MTU = 14, 24
SOL_UDP = 17
UDP_NO_CHECK6_RX = 102
SEND_ATTEMPTS = 16  # ICMP may end attempts at sending, too


class UdpTransport(SocketTransport):
    """A UDP socket that is connected to the switch, so that the kernel delivers only the switch's datagrams."""

    def __init__(self, switch: Switch, *, interface: str | None = None, largest_payload: int = 0) -> None:
        """Open the socket. `interface`: the only one to send through; by default the routing table decides."""
        try:
            self._socket = socket.socket(family_of(switch.ip), socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        except OSError as error:
            why = explain_refusal(error, switch)
            raise TransportError(f"no UDP socket to the switch at {switch}: {why}") from error
        try:
            enlarge_buffers(self._socket)
            set_options(self._socket)
            if interface is not None:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
            source_toward(switch, interface)
            self._peer = switch.ip, switch.udp_port
            self._socket.connect(self._peer)
            self._interface = interface or _interface_toward(switch)
            path = f"the path to {switch}" + (f" through {self._interface!r}" if self._interface else "")
            mtu = mtu_of(self._interface) if self._interface else path_mtu(self._socket)
            check_mtu(mtu, largest_payload, path, switch.ip)
        except OSError as error:
            self._socket.close()
            via = f" through interface {interface!r}" if interface is not None else ""
            why = explain_refusal(error, switch)
            raise TransportError(f"no UDP socket to the switch at {switch}{via}: {why}") from error
        except TransportError:
            self._socket.close()
            raise
        ip, port, *_ = self._socket.getsockname()
        self._local_address: tuple[str, int] = ip, port

    @property
    def local_address(self) -> tuple[str, int]:
        return self._local_address

    def look_up_route(self) -> None:
        """Connect the socket once more.

        Over IPv6, a connected socket keeps to its route while the interface is up, even if that of another path is the
        only one that still has a carrier.
        """
        with suppress(OSError):  # no path leads there now, or the transport is closed
            self._socket.connect(self._peer)

    def send(self, payloads: Sequence[bytes]) -> int:
        for sent, payload in enumerate(payloads):
            try:
                self._send(payload)
            except BlockingIOError:
                return sent
            except OSError as error:
                by_icmp = error.errno == errno.EMSGSIZE and self._fits(payload)
                self.trouble = error if by_icmp else lost(error, payload)
        return len(payloads)

    def _send(self, payload: bytes) -> None:
        """Send a payload. Raises OSError if the kernel refuses it.

        An error may be ICMP about an earlier datagram, as one that a restarting switch did not take, or a forged one.
        Reporting it has cleared it, so the next attempt is about this payload.
        """
        for attempt in range(1, SEND_ATTEMPTS + 1):
            try:
                self._socket.send(payload)
            except BlockingIOError:
                raise
            except OSError as error:
                if attempt == SEND_ATTEMPTS:
                    raise
                self.trouble = error
            else:
                return

    def _fits(self, payload: bytes) -> bool:
        """Return whether the interface carries the payload, so that an error about its length is from ICMP."""
        try:
            return len(payload) + ip_and_udp_bytes(self._local_address[0]) <= mtu_of(self._interface)
        except OSError:
            return False

    def _take(self) -> bytes:
        payload, ancillary, _, _ = self._socket.recvmsg(self._largest_arrival, ANCILLARY_BYTES)
        return with_mark(payload, ecn_of(ancillary))


def _interface_toward(switch: Switch) -> str:
    """Return the interface that leads to the switch, or "" in a sandbox whose kernel does not tell."""
    try:
        return interface_toward(switch)
    except TransportError:
        return ""


def path_mtu(sock: socket.socket) -> int:
    """Return the MTU of the route on which a connected socket sends. It may come from ICMP."""
    if sock.family == socket.AF_INET6:
        return sock.getsockopt(socket.IPPROTO_IPV6, IPV6_MTU)
    return sock.getsockopt(socket.IPPROTO_IP, IP_MTU)


def set_options(sock: socket.socket) -> None:
    """Set the options of the socket's family.

    Fragments are never sent, and ICMP about a smaller path MTU is ignored, because anybody can forge it. Over IPv4, the
    kernel reports it once; with PMTUDISC_INTERFACE, it would allow routers to make fragments. Switches send datagrams
    over IPv6 without UDP checksums (RFC 6935). Those of this socket have one: the kernel would not take super-packets
    without (GSO).
    """
    if sock.family == socket.AF_INET6:
        prefer_public_source(sock)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setsockopt(socket.IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_INTERFACE)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, ECN_ECT_0)
        sock.setsockopt(SOL_UDP, UDP_NO_CHECK6_RX, 1)
    else:
        sock.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, ECN_ECT_0)
