# SPDX-License-Identifier: Apache-2.0
"""The transport of whole Ethernet frames on one interface, past the kernel's IP stack, without routes and ARP."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Sequence

from p4reduce.protocol.constants import ECN_ECT_0
from p4reduce.transport import packet_filter
from p4reduce.transport.addresses import family_of, is_ipv6, packed, protocol_of
from p4reduce.transport.base import (
    LARGEST_DATAGRAM,
    SocketTransport,
    Switch,
    TransportError,
    check_mtu,
    enlarge_buffers,
    explain_refusal,
    lost,
)
from p4reduce.transport.ecn import with_mark
from p4reduce.transport.frames import (
    ETHERNET,
    ETHERTYPE_IPV4,
    ETHERTYPE_IPV6,
    IPV6_HEADERS,
    UDP,
    frame_headers,
    ip_and_udp_bytes,
)
from p4reduce.transport.routes import addresses_of, interface_request, interface_toward, mtu_of, route_to, source_toward

# Bytes of a frame's headers that depend on the payload: lengths of IP and UDP, and IPv4's checksum.
_LENGTHS_AND_CHECKSUM = slice(16, 18), slice(24, 26), slice(38, 40)
_IPV6_LENGTHS = slice(18, 20), slice(58, 60)
_SIOCGIFHWADDR = 0x8927  # of netdevice(7)


class RawTransport(SocketTransport):
    """A transport with Ethernet, IP and UDP headers of its own. It needs CAP_NET_RAW and an interface with an address.

    A kernel UDP socket that reads nothing reserves the UDP port. So no other program gets the port, and the kernel does
    not answer the switch's datagrams with ICMP "port unreachable".
    """

    _largest_arrival = IPV6_HEADERS.size + LARGEST_DATAGRAM

    def __init__(self, switch: Switch, *, interface: str | None = None, largest_payload: int = 0) -> None:
        """Open the sockets. `interface`: leads to the switch; by default the one that the routing table names."""
        if not switch.mac:
            raise TransportError(f"the switch at {switch} has no MAC address, which this transport needs: use 'udp'")
        self._switch = switch
        self._ipv6 = is_ipv6(switch.ip)
        self._headers_size = ETHERNET.size + ip_and_udp_bytes(switch.ip)
        with contextlib.ExitStack() as undo:
            try:
                self._port_holder = undo.enter_context(socket.socket(family_of(switch.ip), socket.SOCK_DGRAM))
            except OSError as error:
                why = explain_refusal(error, switch)
                raise TransportError(f"no UDP socket to the switch at {switch}: {why}") from error
            self._interface = interface or interface_toward(switch)
            self._ip = _source_toward(switch, self._interface)
            # ifr_hwaddr is a `struct sockaddr`, in which the address follows 2 bytes of family.
            self._mac = interface_request(_SIOCGIFHWADDR, self._interface)[2:8]
            check_mtu(mtu_of(self._interface), largest_payload, f"{self._interface!r}", switch.ip)
            packet_filter.attach(self._port_holder, packet_filter.DROP_ALL)
            self._port_holder.bind((self._ip, 0))
            self._port: int = self._port_holder.getsockname()[1]
            # A socket of protocol 0 receives nothing until bind(), so no frame arrives before the filter is attached.
            self._socket = undo.enter_context(_packet_socket())
            only_answers = packet_filter.only_datagrams(self._interface, switch.ip, self._ip, self._port)
            packet_filter.attach(self._socket, only_answers)
            enlarge_buffers(self._socket)
            self._socket.bind((self._interface, ETHERTYPE_IPV6 if self._ipv6 else ETHERTYPE_IPV4))
            undo.pop_all()
        self._headers: dict[int, bytes] = {}

    @property
    def local_address(self) -> tuple[str, int]:
        return self._ip, self._port

    def send(self, payloads: Sequence[bytes]) -> int:
        for sent, payload in enumerate(payloads):
            try:
                self._socket.send(self._frame(payload))
            except BlockingIOError:
                return sent
            except OSError as error:
                self.trouble = lost(error, payload)
        return len(payloads)

    def close(self) -> None:
        super().close()
        self._port_holder.close()

    def headers_without_lengths(self) -> bytes:
        """Return the headers that all frames to the switch have in common: lengths and checksums are 0."""
        headers = bytearray(self._make_headers(0))
        for field in _IPV6_LENGTHS if self._ipv6 else _LENGTHS_AND_CHECKSUM:
            headers[field] = bytes(2)
        return bytes(headers)

    def _frame(self, payload: bytes) -> bytes:
        """Return the frame that carries `payload` to the switch."""
        # Packets have few different lengths, and all else in their headers is constant.
        headers = self._headers.get(len(payload))
        if headers is None:
            headers = self._headers[len(payload)] = self._make_headers(len(payload))
        return headers + payload

    def _take(self) -> bytes | None:
        frame = self._socket.recv(self._largest_arrival)
        payload = self._payload(frame) if len(frame) >= self._headers_size else None
        if payload is None:
            return None
        tos = int.from_bytes(frame[14:16], "big") >> 4 if self._ipv6 else frame[15]
        return with_mark(payload, tos)

    def _payload(self, frame: bytes) -> bytes | None:
        """Return the datagram's payload, without Ethernet padding; None if its UDP length is impossible."""
        start = self._headers_size
        (udp_length,) = struct.unpack_from("!H", frame, start - 4)
        end = start - UDP.size + udp_length
        return frame[start:end] if start <= end <= len(frame) else None

    def _make_headers(self, length: int) -> bytes:
        switch = self._switch
        own = self._mac, packed(self._ip), self._port
        mac = bytes.fromhex(switch.mac.replace(":", ""))
        return frame_headers(own, (mac, packed(switch.ip), switch.udp_port), length, ecn=ECN_ECT_0)


def _packet_socket() -> socket.socket:
    try:
        return socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)
    except PermissionError as error:
        raise TransportError(
            "transports 'raw' and 'scapy' need root or the capability CAP_NET_RAW; transport 'udp' needs neither"
        ) from error


def _source_toward(switch: Switch, interface: str) -> str:
    """Return the address from which the kernel would send to the switch through the interface.

    Without a route, this is an address of the interface: frames need no route.
    """
    try:
        own = addresses_of(interface, family_of(switch.ip))
        if is_ipv6(switch.ip):
            with contextlib.suppress(OSError):  # frames need no route
                return source_toward(switch, interface)
            if own:
                return own[0]
        elif own:
            return route_to(switch.ip, interface).source
        raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    except OSError as error:
        names = ", ".join(name for _, name in socket.if_nameindex())
        raise TransportError(
            f"interface {interface!r} has no {protocol_of(switch.ip)} address ({error.strerror or error}); this host's "
            f"interfaces are {names}"
        ) from error
