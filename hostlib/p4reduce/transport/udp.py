# SPDX-License-Identifier: Apache-2.0
"""The transport over a plain UDP socket. It needs no privileges, and the kernel finds the way to the switch."""

from __future__ import annotations

import socket
from collections.abc import Sequence

from p4reduce.protocol.constants import ECN_ECT_0
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
from p4reduce.transport.routes import interface_toward

# From <linux/in.h>; the socket module has them only from Python 3.14.
IP_MTU_DISCOVER = 10
IP_PMTUDISC_PROBE = 3
IP_MTU = 14


class UdpTransport(SocketTransport):
    """A UDP socket that is connected to the switch, so that the kernel delivers only the switch's datagrams."""

    def __init__(self, switch: Switch, *, interface: str | None = None, largest_payload: int = 0) -> None:
        """Open the socket. `interface`: the only one to send through; by default the routing table decides."""
        try:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        except OSError as error:
            raise TransportError(f"no UDP socket to the switch at {switch}: {error.strerror}") from error
        try:
            enlarge_buffers(self._socket)
            # Fragments are never sent, and ICMP about a smaller path MTU is ignored, because anybody can forge it.
            self._socket.setsockopt(socket.IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE)
            self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
            self._socket.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, ECN_ECT_0)
            if interface is not None:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode())
            self._socket.connect((switch.ip, switch.udp_port))
            check_mtu(self._socket.getsockopt(socket.IPPROTO_IP, IP_MTU), largest_payload, _path(interface, switch))
        except OSError as error:
            self._socket.close()
            via = f" through interface {interface!r}" if interface is not None else ""
            why = explain_refusal(error, switch)
            raise TransportError(f"no UDP socket to the switch at {switch}{via}: {why}") from error
        except TransportError:
            self._socket.close()
            raise
        self._local_address: tuple[str, int] = self._socket.getsockname()

    @property
    def local_address(self) -> tuple[str, int]:
        return self._local_address

    def send(self, payloads: Sequence[bytes]) -> int:
        for sent, payload in enumerate(payloads):
            try:
                self._socket.send(payload)
            except BlockingIOError:
                return sent
            except OSError as error:
                # This may be ICMP about an earlier datagram, which a restarting switch did not take. Reporting it has
                # cleared it, so an error of the second attempt is about this payload.
                self.trouble = error
                try:
                    self._socket.send(payload)
                except BlockingIOError:
                    return sent
                except OSError as again:
                    self.trouble = lost(again, payload)
        return len(payloads)

    def _take(self) -> bytes:
        payload, ancillary, _, _ = self._socket.recvmsg(self._largest_arrival, ANCILLARY_BYTES)
        return with_mark(payload, ecn_of(ancillary))


def _path(interface: str | None, switch: Switch) -> str:
    """Return the name of the path to the switch, for error messages."""
    try:
        return f"the path to {switch} through {interface or interface_toward(switch)!r}"
    except TransportError:
        return f"the path to {switch}"
