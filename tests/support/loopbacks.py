# SPDX-License-Identifier: Apache-2.0
"""The loopback addresses of both families."""

from __future__ import annotations

import socket

import pytest

from p4reduce.transport.addresses import family_of

LOOPBACKS = ["127.0.0.1", "::1"]


def bound(ip: str, kind: socket.SocketKind = socket.SOCK_DGRAM) -> socket.socket:
    """Return a socket that is bound to a free port of a loopback address. Skips the test if there is no IPv6."""
    try:
        sock = socket.socket(family_of(ip), kind)
        sock.bind((ip, 0))
    except OSError as error:
        if ip != "::1":
            raise
        pytest.skip(f"needs IPv6 on the loopback interface ({error.strerror})")
    return sock


def set_traffic_class(sock: socket.socket, value: int) -> None:
    """Set the TOS or traffic class of what the socket sends, and ask for that of what it receives."""
    if sock.family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVTCLASS, 1)
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, value)
    else:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_RECVTOS, 1)
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, value)
