# SPDX-License-Identifier: Apache-2.0
"""Switch ports on this machine: network interfaces, and UDP sockets, which need no root."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from p4reduce.control.diagnostics import of_os
from p4reduce.protocol.constants import AGGREGATION_PORT, ECN_ECT_0, ECN_MASK
from p4reduce.transport.addresses import (
    family_of,
    is_ipv6,
    join_host_port,
    packed,
    split_host_port,
    synthetic_mac,
    unpacked,
    why_not_a_host,
)
from p4reduce.transport.ecn import ANCILLARY_BYTES, ecn_message, ecn_of
from p4reduce.transport.frames import HEADERS, IPV6_HEADERS, UDP, frame_headers
from p4reduce.transport.udp import set_options
from p4reduce_targets.interfaces import (
    SOL_PACKET,
    BoundInterface,
    InterfaceRefused,
    check_type,
    same_interface,
)

RECEIVE_BUFFER = 8 << 20
LARGEST_FRAME = 65536 + 18
REMEMBERED = 4096  # entries in the caches of headers and addresses, which strangers could fill

ETHERTYPE_VLAN = 0x8100

PACKET_AUXDATA = 8
PACKET_IGNORE_OUTGOING = 23
_AUXDATA = struct.Struct("=IIIHHHH")  # status, length, captured, MAC, network, VLAN tag, its EtherType
_VLAN_VALID, _VLAN_TYPE_VALID = 0x10, 0x40
SO_RCVBUFFORCE = 33


class PortError(ValueError):
    """A port that is specified wrongly or cannot be opened; the message names it and the reason."""


def cannot_open(number: int, name: str, error: OSError) -> PortError:
    """Return the error for a port that the system did not open; `name`: as in --port."""
    advice = ""
    if error.errno == errno.EADDRINUSE:
        taken = name.rpartition(":")[2]
        advice = (
            f"; `ss -lunp 'sport = :{taken}'` shows which. End that program, or give another port, here and in the "
            "controller's --address IP:PORT"
        )
    return PortError(f"port {number}: cannot open {name}: {of_os(error)}{advice}")


@dataclass(frozen=True, slots=True)
class PortSpec:
    """A port as given by --port: `kind` is eth or udp, and `address` an interface or ADDRESS:PORT."""

    number: int
    kind: str
    address: str

    @classmethod
    def parse(cls, text: str) -> PortSpec:
        """Return the port that a text like "1=udp:127.0.0.1:31314" describes. Raises PortError."""
        number, equals, rest = text.partition("=")
        kind, colon, address = rest.partition(":")
        if not (equals and colon and address and _is_number(number)) or kind not in ("eth", "udp"):
            raise PortError(f"--port {text!r}: accepted are 1=eth:INTERFACE and 1=udp:ADDRESS:PORT")
        return cls(int(number), kind, address)

    @property
    def name(self) -> str:
        """The part of the text after the number."""
        return f"{self.kind}:{self.address}"


class Link(Protocol):
    """The link of a port."""

    def state(self) -> str:
        """Return OpenConfig's oper-status: UP, DOWN or NOT_PRESENT."""
        ...


class PortInfo(Protocol):
    """The identity of a switch port. All parts of a switch use its number; only users see its name."""

    @property
    def number(self) -> int: ...

    @property
    def name(self) -> str:
        """The value for --port, with the actual UDP port in place of 0."""
        ...

    @property
    def interface(self) -> Link | None:
        """The port's link, or None for a socket, which is always up."""
        ...


class Port(PortInfo, Protocol):
    """A switch port. Its socket does not block: a frame that cannot be sent at once is dropped and counted."""

    @property
    def interface(self) -> BoundInterface | None:
        """The port's network interface, or None for a socket."""
        ...

    received: int  # frames, as are the next two
    sent: int
    dropped: int

    def fileno(self) -> int: ...

    def receive(self, limit: int) -> list[bytes]:
        """Return the waiting frames, at most `limit`."""
        ...

    def send(self, frame: bytes) -> None: ...

    def close(self) -> None: ...


class UdpPort:
    """A port that is a UDP socket. It builds an Ethernet/IP/UDP frame around each datagram that it receives.

    A frame is sent as a datagram, with its ECN, to the IP and UDP destination in its headers. Others are dropped, as
    are those of the family that is not the socket's.
    """

    def __init__(self, number: int, ip: str, port: int) -> None:
        self.number = number
        self.interface = None
        self.received = self.sent = self.dropped = 0
        self._ipv6 = is_ipv6(ip)
        self._ip = packed(ip)
        self._socket = socket.socket(family_of(ip), socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            _enlarge(self._socket)
            set_options(self._socket)
            self._socket.bind((ip, port))
        except OSError as error:
            self._socket.close()
            raise cannot_open(number, f"udp:{join_host_port(ip, port)}", error) from None
        self.name = f"udp:{join_host_port(ip, self._socket.getsockname()[1])}"
        self._headers: dict[tuple[Any, int, int], bytes] = {}
        self._addresses: dict[bytes, tuple[str, int]] = {}

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self, limit: int) -> list[bytes]:
        frames: list[bytes] = []
        take, headers = self._socket.recvmsg, self._headers
        with contextlib.suppress(BlockingIOError):
            while len(frames) < limit:
                data, ancillary, _, peer = take(LARGEST_FRAME, ANCILLARY_BYTES)
                ecn = ecn_of(ancillary)
                header = headers.get((peer, len(data), ecn))
                if header is None:
                    header = self._header(peer, len(data), ecn)
                frames.append(header + data)
        self.received += len(frames)
        return frames

    def send(self, frame: bytes) -> None:
        at = _udp_offset(frame, self._ipv6)
        end = at + int.from_bytes(frame[at + 4 : at + 6], "big")
        if not at or not at + UDP.size <= end <= len(frame):
            self.dropped += 1
            return
        # The destination's address, both ports.
        destination = frame[at - len(self._ip) : at + 4]
        address = self._addresses.get(destination) or self._address(destination)
        ecn = (frame[15] >> 4 if self._ipv6 else frame[15]) & ECN_MASK
        try:
            if ecn == ECN_ECT_0:  # which is the socket's
                self._socket.sendto(frame[at + UDP.size : end], address)
            else:
                self._socket.sendmsg([frame[at + UDP.size : end]], [ecn_message(ecn, ipv6=self._ipv6)], 0, address)
        except OSError:
            self.dropped += 1
        else:
            self.sent += 1

    def close(self) -> None:
        self._socket.close()

    def _header(self, peer: tuple[Any, ...], length: int, ecn: int) -> bytes:
        source = packed(peer[0])
        own = synthetic_mac(self._ip), self._ip, AGGREGATION_PORT
        header = frame_headers((synthetic_mac(source), source, peer[1]), own, length, ecn=ecn)
        if len(self._headers) >= REMEMBERED:
            self._headers.clear()
        self._headers[peer, length, ecn] = header
        return header

    def _address(self, destination: bytes) -> tuple[str, int]:
        address = (unpacked(destination[:-4]), int.from_bytes(destination[-2:], "big"))
        if len(self._addresses) >= REMEMBERED:
            self._addresses.clear()
        self._addresses[destination] = address
        return address


def _udp_offset(frame: bytes, ipv6: bool) -> int:
    """Return where the UDP header begins in a frame of this family that is not a fragment; 0 for other frames."""
    if ipv6:
        is_udp = len(frame) >= IPV6_HEADERS.size and frame[12:14] == b"\x86\xdd" and frame[14] >> 4 == 6
        return 54 if is_udp and frame[20] == socket.IPPROTO_UDP else 0
    # The EtherType, then IP version 4 and a header of 5 words.
    is_udp = len(frame) >= HEADERS.size and frame[12:15] == b"\x08\x00\x45" and frame[23] == socket.IPPROTO_UDP
    return 34 if is_udp and not (frame[20] & 0x3F or frame[21]) else 0


class EthPort:
    """A port that is a network interface, in promiscuous mode. It needs CAP_NET_RAW (root)."""

    def __init__(self, number: int, interface: str, *, ipv6_off: bool = False) -> None:
        self.number = number
        self.name = f"eth:{interface}"
        self.received = self.sent = self.dropped = 0
        try:
            # Protocol 0 until the socket is bound: no frame arrives from another interface, or before options are set.
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        except PermissionError:
            raise PortError(f"port {number}: {self.name} needs root, or the capability CAP_NET_RAW") from None
        except OSError as error:
            raise PortError(f"port {number}: cannot open interface {interface!r}: {of_os(error)}") from None
        self.interface = BoundInterface(number, interface, self._socket, offloads_off=True, ipv6_off=ipv6_off)
        try:
            self._socket.setblocking(False)
            _enlarge(self._socket)
            self._socket.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
            self._socket.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
            self.interface.bind()
        except InterfaceRefused as error:
            self._socket.close()
            raise PortError(f"port {number}: {error}") from None
        except OSError as error:
            self._socket.close()
            raise PortError(f"port {number}: cannot open interface {interface!r}: {of_os(error)}") from None

    def fileno(self) -> int:
        return self._socket.fileno()

    def receive(self, limit: int) -> list[bytes]:
        frames: list[bytes] = []
        take, room = self._socket.recvmsg, socket.CMSG_SPACE(_AUXDATA.size)
        with contextlib.suppress(BlockingIOError):
            while len(frames) < limit:
                try:
                    frame, auxiliary, _, _ = take(LARGEST_FRAME, room)
                    frames.append(with_tag(frame, auxiliary))
                except OSError as error:
                    if error.errno != errno.ENETDOWN:  # the interface may come up again, or be created again
                        raise
        self.received += len(frames)
        return frames

    def send(self, frame: bytes) -> None:
        try:
            self._socket.send(frame)
        except OSError:
            self.dropped += 1
        else:
            self.sent += 1

    def close(self) -> None:
        self._socket.close()


def with_tag(frame: bytes, auxiliary: Iterable[tuple[int, int, bytes]]) -> bytes:
    """Return the frame with the VLAN tag that the kernel has removed from it."""
    for level, kind, data in auxiliary:
        if level == SOL_PACKET and kind == PACKET_AUXDATA:
            status, _, _, _, _, tag, tag_type = _AUXDATA.unpack_from(data)
            if status & _VLAN_VALID:
                tag_type = tag_type if status & _VLAN_TYPE_VALID else ETHERTYPE_VLAN
                return frame[:12] + struct.pack("!HH", tag_type, tag) + frame[12:]
    return frame


def udp_address(spec: PortSpec) -> tuple[str, int]:
    """Return the IP address, in canonical form, and the UDP port of a port. Raises PortError."""
    what = f"--port '{spec.number}={spec.name}'"
    port = spec.address.rpartition(":")[2]
    if not _is_number(port) or int(port) > 65535:
        raise PortError(f"{what}: accepted is {spec.number}=udp:ADDRESS:PORT, PORT a number (0: any free one)")
    try:
        ip, number = split_host_port(spec.address)
        why = why_not_a_host(ip)
    except ValueError:
        number = None
    if number is None:
        raise PortError(f"{what}: ADDRESS must be an IP address, as 127.0.0.1 or [::1]")
    if why:
        # The frame needs the address that the peer sent to, which a wildcard socket does not report.
        raise PortError(f"{what}: ADDRESS must be one of this machine's own, as 127.0.0.1 or [::1]; {why}")
    return ip, number


def check_ports(ports: Sequence[PortSpec], cpu_port: int) -> None:
    """Raise PortError for repeated numbers or interfaces, invalid numbers, and a mixture of eth and udp ports.

    Ports are not mixed: a frame that is only forwarded would leave a UDP port as a datagram of the switch itself.
    """
    if len({port.kind for port in ports}) > 1:
        raise PortError(
            "the ports of a switch are either all network interfaces (eth:) or all UDP sockets (udp:); here are both"
        )
    seen: set[int] = set()
    for number in (port.number for port in ports):
        if not 1 <= number <= 510 or number == cpu_port:
            raise PortError(f"port {number}: accepted are 1 to 510, without the CPU port {cpu_port}")
        if number in seen:
            raise PortError(f"port {number} is given twice")
        seen.add(number)
    check_interfaces(ports)


def check_interfaces(ports: Iterable[PortSpec]) -> None:
    """Raise PortError if two ports share an interface."""
    names = {port.number: port.address for port in ports if port.kind == "eth"}
    if twice := same_interface(names):
        first, second = twice
        raise PortError(
            f"port {first} (eth:{names[first]}) and port {second} (eth:{names[second]}) are the same interface, so "
            "every frame would come in twice; a port needs an interface of its own"
        )


def check_interface(number: int, name: str) -> None:
    """Raise PortError for an interface that cannot be a port. One that does not exist passes: opening it fails."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, contextlib.suppress(OSError):
        try:
            check_type(sock, name)
        except InterfaceRefused as error:
            raise PortError(f"port {number}: {error}") from None


def open_port(spec: PortSpec) -> Port:
    """Open a port; UDP port 0 is any free one. Raises PortError."""
    if spec.kind == "eth":
        return EthPort(spec.number, spec.address)
    return UdpPort(spec.number, *udp_address(spec))


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 5


def _enlarge(sock: socket.socket) -> None:
    try:
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, RECEIVE_BUFFER)
    except PermissionError:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
