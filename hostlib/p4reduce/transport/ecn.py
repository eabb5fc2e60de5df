# SPDX-License-Identifier: Apache-2.0
"""Explicit congestion notification (RFC 3168): a router with a long queue marks packets instead of dropping them."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from p4reduce.protocol.constants import ECN_CE, ECN_MASK

ANCILLARY_BYTES = socket.CMSG_SPACE(4)  # for the TOS, with the socket option IP_RECVTOS


class MarkedPayload(bytes):
    """A payload whose IP packet a router has marked."""


def with_mark(payload: bytes, tos: int) -> bytes:
    """Return the payload of an IP packet, as a `MarkedPayload` if its TOS says that the packet is marked."""
    return MarkedPayload(payload) if tos & ECN_MASK == ECN_CE else payload


def ecn_of(ancillary: Iterable[tuple[int, int, bytes]]) -> int:
    """Return the ECN bits from the ancillary data of `recvmsg`; 0 if they are not there."""
    for level, kind, data in ancillary:
        if level == socket.IPPROTO_IP and kind == socket.IP_TOS:
            return data[0] & ECN_MASK
    return 0
