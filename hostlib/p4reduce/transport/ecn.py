# SPDX-License-Identifier: Apache-2.0
"""Explicit congestion notification (RFC 3168): a router with a long queue marks packets instead of dropping them."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterable

from p4reduce.protocol.constants import ECN_CE, ECN_MASK

ANCILLARY_BYTES = socket.CMSG_SPACE(4)  # for TOS or traffic class, with the option IP_RECVTOS or IPV6_RECVTCLASS
_TRAFFIC_CLASSES = (socket.IPPROTO_IP, socket.IP_TOS), (socket.IPPROTO_IPV6, socket.IPV6_TCLASS)


class MarkedPayload(bytes):
    """A payload whose IP packet a router has marked."""


def with_mark(payload: bytes, tos: int) -> bytes:
    """Return the payload of an IP packet, as a `MarkedPayload` if its TOS or traffic class says that it is marked."""
    return MarkedPayload(payload) if tos & ECN_MASK == ECN_CE else payload


def ecn_of(ancillary: Iterable[tuple[int, int, bytes]]) -> int:
    """Return the ECN bits from the ancillary data of `recvmsg`; 0 if they are not there."""
    for level, kind, data in ancillary:
        if (level, kind) in _TRAFFIC_CLASSES:  # the kernel gives a TOS one byte, and a traffic class four
            return int.from_bytes(data, sys.byteorder) & ECN_MASK
    return 0


def ecn_message(ecn: int, *, ipv6: bool) -> tuple[int, int, bytes]:
    """Return the ancillary data with which `sendmsg` sends a packet with these ECN bits."""
    level, kind = _TRAFFIC_CLASSES[ipv6]
    return level, kind, ecn.to_bytes(4, sys.byteorder)
