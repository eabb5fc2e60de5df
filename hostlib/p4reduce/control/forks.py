# SPDX-License-Identifier: Apache-2.0
"""A fork handler that closes control connections in child processes, so that they end with the parent.

A forked process, such as a worker of a data loader, inherits its parent's sockets. If the parent is killed while the
child lives, the kernel would keep the connection open, and the controller would take the parent for a stopped process.
"""

from __future__ import annotations

import contextlib
import os
import socket

from p4reduce.control.diagnostics import canonical_address, plain_host

_peers: set[tuple[str, int]] = set()  # host and port in the form of getpeername, without IPv6's further fields


def end_in_children(address: str) -> None:
    """Make children that are forked from now on close their connections to "host:port", which gRPC then cannot use."""
    host, _, port = canonical_address(address).rpartition(":")
    with contextlib.suppress(OSError, ValueError):  # such an address has no connections either
        for *_, found in socket.getaddrinfo(plain_host(host), int(port), type=socket.SOCK_STREAM):
            _peers.add((str(found[0]), int(found[1])))
            _peers.add((f"::ffff:{found[0]}", int(found[1])))  # gRPC often uses IPv6 sockets for IPv4


def _let_go() -> None:
    """Replace each such socket by /dev/null in the child.

    A plain close would free the descriptor's number, and gRPC could later close another file with this number.
    """
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
