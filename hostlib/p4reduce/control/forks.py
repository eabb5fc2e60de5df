# SPDX-License-Identifier: Apache-2.0
"""Connections end with the process that made them, not with the last of its children.

A forked process, such as a worker of a data loader, has its parent's sockets. While it lives, the kernel would keep the
connection of a parent that was killed, which would pass for one that stands still.
"""

from __future__ import annotations

import contextlib
import os
import socket

from p4reduce.control.diagnostics import plain_host

_peers: set[tuple[str, int]] = set()  # as getpeername tells them, without what is of IPv6 alone


def end_in_children(address: str) -> None:
    """Connections to "host:port", from now on: a child that is forked lets go of them. gRPC cannot be used there."""
    host, _, port = address.rpartition(":")
    with contextlib.suppress(OSError, ValueError):  # such an address has no connections either
        for *_, found in socket.getaddrinfo(plain_host(host), int(port), type=socket.SOCK_STREAM):
            _peers.add((str(found[0]), int(found[1])))
            _peers.add((f"::ffff:{found[0]}", int(found[1])))  # gRPC's sockets are often of both families


def _let_go() -> None:
    """In place of each such socket the child gets /dev/null, lest what gRPC still closes there be another file."""
    if not _peers:
        return
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # no socket, or not connected
            inherited = socket.socket(fileno=int(name))
            try:
                peer = inherited.getpeername()
            finally:
                inherited.detach()
            if tuple(peer[:2]) in _peers:
                os.dup2(nothing, int(name), inheritable=False)
    os.close(nothing)


os.register_at_fork(after_in_child=_let_go)
