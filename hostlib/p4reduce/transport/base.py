# SPDX-License-Identifier: Apache-2.0
"""The interface of transports to the engine, and the code that they have in common."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from p4reduce.errors import P4ReduceError
from p4reduce.transport.addresses import is_ipv6, join_host_port, protocol_of
from p4reduce.transport.frames import IPV4_AND_UDP_BYTES, ip_and_udp_bytes

# Room for the packets of all slots at once, so that the kernel does not drop a burst of results.
SOCKET_BUFFER_BYTES = 4 << 20
# From <asm-generic/socket.h>; the socket module has neither.
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33
# The limit of one batch, so that a flood of packets cannot keep the engine from its timers.
RECEIVE_BATCH = 256
# A size above that of any packet of the protocol: 8 lanes of 256 values are 8,242 bytes.
LARGEST_DATAGRAM = 16384
# The least MTU of links that suffices for a program that ships, over IPv4. A controller accepts no smaller --mtu.
LEAST_MTU = 1086


class TransportError(P4ReduceError):
    """A transport cannot be opened, or cannot carry the job's packets."""


@dataclass(frozen=True)
class Switch:
    """The address of the job's switch. Only transports that build whole frames need the MAC address."""

    ip: str
    udp_port: int
    mac: str = ""

    def __str__(self) -> str:
        return join_host_port(self.ip, self.udp_port)


class Transport(Protocol):
    """A carrier of datagrams between this worker and the switch. It never blocks. One thread uses it at a time.

    A packet that the kernel refuses to send is lost, as on a wire: the protocol sends it again, or times out.
    """

    @property
    def trouble(self) -> OSError | None:
        """The kernel's last error for a packet, if none has arrived since then."""

    @property
    def local_address(self) -> tuple[str, int]:
        """The IP address and UDP port from which this worker sends."""

    def fileno(self) -> int:
        """Return a descriptor that is readable when `receive` has payloads, and writable when `send` can go on."""

    def send(self, payloads: Sequence[bytes]) -> int:
        """Send payloads in order until the kernel's buffer is full. Return how many of them it took."""

    def receive(self) -> list[bytes]:
        """Return the payloads that have arrived, at most `RECEIVE_BATCH`. Marked ones are `MarkedPayload`."""

    def quietest(self) -> tuple[Switch, float] | None:
        """Return the switch that has left packets unanswered for longest, and when it was last heard.

        `trouble` and `local_address` are about the same switch. None if there is only one switch.
        """

    def look_up_route(self) -> None:
        """Let the kernel choose the path to the switch again. May be called from any thread."""

    def close(self) -> None:
        """Close the sockets. May be called more than once."""


class SocketTransport:
    """Base class of the transports with one socket."""

    _socket: socket.socket
    _largest_arrival = LARGEST_DATAGRAM
    trouble: OSError | None = None

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> list[bytes]:
        payloads: list[bytes] = []
        for _ in range(RECEIVE_BATCH):
            try:
                payload = self._take()
            except BlockingIOError:
                break
            except OSError as error:
                self.trouble = error  # the interface went down, or ICMP came: reading the error has cleared it
                continue
            if payload is not None:
                payloads.append(payload)
        if payloads:
            self.trouble = None
        return payloads

    def quietest(self) -> None:
        return None

    def look_up_route(self) -> None:
        """Do nothing: frames leave by the socket's interface."""

    def close(self) -> None:
        self._socket.close()

    def _take(self) -> bytes | None:
        """Return the payload of the next datagram or frame from the socket, or None if it is cut short."""
        raise NotImplementedError


def enlarge_buffers(sock: socket.socket) -> None:
    """Ask for `SOCKET_BUFFER_BYTES` both ways. Without CAP_NET_ADMIN, net.core.rmem_max and wmem_max limit them."""
    for forced, option in ((SO_RCVBUFFORCE, socket.SO_RCVBUF), (SO_SNDBUFFORCE, socket.SO_SNDBUF)):
        try:
            sock.setsockopt(socket.SOL_SOCKET, forced, SOCKET_BUFFER_BYTES)
        except PermissionError:
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)


def lost(error: OSError, payload: bytes) -> OSError:
    """Return the error with which the kernel refused `payload`. Raises TransportError if it will always refuse it."""
    if error.errno == errno.EMSGSIZE:
        raise TransportError(f"a packet of {len(payload)} bytes is longer than the MTU of the path") from error
    return error


_REFUSALS = {
    errno.EPERM: "a firewall on this host drops them; let UDP to {switch} out (`nft list ruleset`, "
    "`{iptables} -S OUTPUT`)",
    errno.EACCES: "a route of this host prohibits them, or this is the broadcast address of a network; see "
    "`ip route get {switch.ip}`",
    errno.EINVAL: "a route of this host drops them; see `ip route get {switch.ip}`",
    errno.ECONNREFUSED: "no program listens on that UDP port; compare it with the switch's port, and with --address of "
    "the controller",
    errno.EMSGSIZE: "the packets are longer than the MTU of the path",
    errno.ENETUNREACH: "this host has no route there",
    errno.EHOSTUNREACH: "no host answers for that address; check the cable, the route, and the switch's ports",
    errno.ENETDOWN: "the interface is down",
    errno.EADDRNOTAVAIL: "it has no {protocol} address that can be used; see `ip address`",
    errno.EAFNOSUPPORT: "its kernel has no {protocol}",
}


def explain_refusal(error: OSError, switch: Switch) -> str:
    """Return in words why this host's kernel refuses packets to the switch, and what to do about it."""
    advice = _REFUSALS.get(error.errno or 0, "")
    advice = advice.format(switch=switch, iptables=iptables(switch), protocol=protocol_of(switch.ip))
    said = f"this host cannot send packets to {switch}: {error.strerror or error}"
    return f"{said}: {advice}" if advice else said


def iptables(switch: Switch) -> str:
    """Return the name of the command that lists the rules for packets of the switch's family."""
    return "ip6tables" if is_ipv6(switch.ip) else "iptables"


def mtu_advice(needed: int, mtu: int | None = None, *, ip: str = "") -> str:
    """Return advice besides raising the MTU of links, or "" if no program that ships has shorter packets.

    ip: the switch's address; IPv6 headers are longer.
    """
    shortest = LEAST_MTU - IPV4_AND_UDP_BYTES + ip_and_udp_bytes(ip)
    if needed <= shortest or (mtu is not None and mtu < shortest):
        return ""
    least = f"--mtu {mtu}" if mtu else "the least MTU of the links, as --mtu"
    return f", or give the controller {least}"


def check_mtu(mtu: int, largest_payload: int, path: str, ip: str) -> None:
    """Raise `TransportError` if an unfragmented datagram of `largest_payload` bytes exceeds `mtu` bytes.

    ip: the switch's address.
    """
    needed = largest_payload + ip_and_udp_bytes(ip)
    if needed > mtu:
        raise TransportError(
            f"the job's largest packets have {needed} bytes with {protocol_of(ip)} headers, more than the MTU of "
            f"{path}, which is {mtu}; switches drop fragments: raise the MTU to {needed} or more"
            f"{mtu_advice(needed, mtu, ip=ip)}"
        )
