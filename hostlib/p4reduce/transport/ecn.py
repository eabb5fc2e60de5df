# SPDX-License-Identifier: Apache-2.0
"""Explicit congestion notification (RFC 3168) of datagrams that a socket receives."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from p4reduce.protocol.constants import ECN_MASK

ANCILLARY_BYTES = socket.CMSG_SPACE(4)  # for the TOS, with the socket option IP_RECVTOS


def ecn_of(ancillary: Iterable[tuple[int, int, bytes]]) -> int:
    """Return the ECN bits from the ancillary data of `recvmsg`; 0 if they are not there."""
    for level, kind, data in ancillary:
        if level == socket.IPPROTO_IP and kind == socket.IP_TOS:
            return data[0] & ECN_MASK
    return 0
