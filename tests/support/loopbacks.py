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
