# SPDX-License-Identifier: Apache-2.0
"""What the engine needs of a transport, and what every transport needs to know of the job."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from p4reduce.errors import P4ReduceError

# Room for the packets of all slots at once, so that a burst of results waits in the kernel and not in the air.
SOCKET_BUFFER_BYTES = 4 << 20
# From <asm-generic/socket.h>; the socket module has neither.
SO_SNDBUFFORCE = 32
SO_RCVBUFFORCE = 33
# So that a flood of packets cannot keep the engine from its timers.
RECEIVE_BATCH = 256
# More than any packet of the protocol: 8 lanes of 256 values are 8,242 bytes.
LARGEST_DATAGRAM = 16384
# Of links, for the shortest packets of a program that ships: a controller accepts no smaller --mtu.
LEAST_MTU = 1086


class TransportError(P4ReduceError):
    """A transport cannot be opened, or cannot carry the job's packets."""


@dataclass(frozen=True)
class Switch:
    """Where the job's switch is: its address as a host, and its MAC, which only frames that we build need."""

    ip: str
    udp_port: int
    mac: str = ""

    def __str__(self) -> str:
        return f"{self.ip}:{self.udp_port}"


class Transport(Protocol):
    """Carries datagrams between this worker and the switch. Never blocks; used by one thread at a time.

    What the kernel refuses to send is lost, as on a wire: the protocol mends it or ends in its timeout.
    """

    @property
    def trouble(self) -> OSError | None:
        """The last that the kernel said against a packet, since one has arrived."""

    @property
    def local_address(self) -> tuple[str, int]:
        """IP address and UDP port that the switch sees."""

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when `receive` has something, writable when `send` can go on."""

    def send(self, payloads: Sequence[bytes]) -> int:
        """Send payloads in order until the kernel's buffer is full. Returns how many of them it took."""

    def receive(self) -> list[bytes]:
        """Return the payloads that have arrived, at most `RECEIVE_BATCH` of them."""

    def quietest(self) -> tuple[Switch, float] | None:
        """Of several switches, the one that has left packets unanswered for longest, and when it was last heard.

        `trouble` and `local_address` are about that one, too. None where there is but one switch.
        """

    def close(self) -> None:
        """Give the sockets back. May be called more than once."""


class SocketTransport:
    """What transports of one socket have in common."""

    _socket: socket.socket
    _largest_arrival = LARGEST_DATAGRAM
    trouble: OSError | None = None

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self) -> list[bytes]:
        payloads: list[bytes] = []
        for _ in range(RECEIVE_BATCH):
            try:
                payload = self._payload(self._socket.recv(self._largest_arrival))
            except BlockingIOError:
                break
            except OSError as error:
                self.trouble = error  # the interface went down, or ICMP has come: reading it has cleared it
                continue
            if payload is not None:
                payloads.append(payload)
        if payloads:
            self.trouble = None
        return payloads

    def quietest(self) -> None:
        return None

    def close(self) -> None:
        self._socket.close()

    def _payload(self, arrival: bytes) -> bytes | None:
        """What the socket's datagram or frame carries; None if that is cut short."""
        return arrival


def enlarge_buffers(sock: socket.socket) -> None:
    """Asks for `SOCKET_BUFFER_BYTES` both ways. Without CAP_NET_ADMIN, net.core.rmem_max and wmem_max limit them."""
    for forced, option in ((SO_RCVBUFFORCE, socket.SO_RCVBUF), (SO_SNDBUFFORCE, socket.SO_SNDBUF)):
        try:
            sock.setsockopt(socket.SOL_SOCKET, forced, SOCKET_BUFFER_BYTES)
        except PermissionError:
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)


def lost(error: OSError, payload: bytes) -> OSError:
    """`error`, which the kernel gave instead of sending `payload`. Raises TransportError if it will always give it."""
    if error.errno == errno.EMSGSIZE:
        raise TransportError(f"a packet of {len(payload)} bytes is longer than the MTU of the path") from error
    return error


_REFUSALS = {
    errno.EPERM: "a firewall on this host drops them; let UDP to {switch} out (`nft list ruleset`, "
    "`iptables -S OUTPUT`)",
    errno.EACCES: "a route of this host prohibits them, or this is the broadcast address of a network; see "
    "`ip route get {switch.ip}`",
    errno.EINVAL: "a route of this host drops them; see `ip route get {switch.ip}`",
    errno.ECONNREFUSED: "no program listens on that UDP port; compare it with the switch's port, and with --address of "
    "the controller",
    errno.EMSGSIZE: "the packets are longer than the MTU of the path",
    errno.ENETUNREACH: "this host has no route there",
    errno.EHOSTUNREACH: "no host answers for that address; check the cable, the route, and the switch's ports",
    errno.ENETDOWN: "the interface is down",
}


def explain_refusal(error: OSError, switch: Switch) -> str:
    """What this host's kernel says against packets to the switch, and what to do about it."""
    advice = _REFUSALS.get(error.errno or 0, "").format(switch=switch)
    said = f"this host cannot send packets to {switch}: {error.strerror or error}"
    return f"{said}: {advice}" if advice else said


def mtu_advice(needed: int, mtu: int | None = None) -> str:
    """What else can be done than to raise the MTU of links: "" where no program that ships has shorter packets."""
    if needed <= LEAST_MTU or (mtu is not None and mtu < LEAST_MTU):
        return ""
    least = f"--mtu {mtu}" if mtu else "the least MTU of the links, as --mtu"
    return f", or give the controller {least}"


def check_mtu(mtu: int, largest_payload: int, path: str) -> None:
    """Raise `TransportError` if an unfragmented IPv4 datagram of `largest_payload` bytes exceeds `mtu` bytes."""
    needed = largest_payload + 28
    if needed > mtu:
        raise TransportError(
            f"the job's largest packets have {needed} bytes with IPv4 headers, more than the MTU of {path}, which is "
            f"{mtu}; switches drop fragments: raise the MTU to {needed} or more{mtu_advice(needed, mtu)}"
        )
