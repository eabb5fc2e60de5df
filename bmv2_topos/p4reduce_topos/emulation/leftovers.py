# SPDX-License-Identifier: Apache-2.0
"""Interfaces that a killed process left behind in its network namespace, and the lock that guards their removal.

The kernel removes a namespace together with its last process, so `p4reduce topo` leaves nothing behind. But `Network`
may also be used in a namespace that lives on.
"""

from __future__ import annotations

import contextlib
import json
import socket

from p4reduce.errors import P4ReduceError
from p4reduce_bench.processes.network import run

_MARK = "p4reduce topo"  # the alias of all interfaces that we create
_LOCK = "\0p4reduce topo"  # an abstract socket name: one per network namespace, free once its process ends


def lock_namespace() -> socket.socket:
    """Return a socket that locks this network namespace until it is closed.

    Two networks in one namespace would use the same names of interfaces. Raises P4ReduceError if another process holds
    the lock.
    """
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(_LOCK)
    except OSError:
        held.close()
        raise P4ReduceError(
            "another network runs in this network namespace, which holds only one (`unshare --net` makes another "
            "namespace)"
        ) from None
    return held


def mark(interface: str) -> None:
    run("ip", "link", "set", interface, "alias", _MARK)


def remove_interfaces() -> None:
    """Delete all interfaces with our alias.

    The caller holds the lock of `lock_namespace`, so the process that created them has ended, or is the caller itself.
    """
    for link in json.loads(run("ip", "-json", "link", "show") or "[]"):
        if link.get("ifalias") == _MARK:
            with contextlib.suppress(P4ReduceError):  # it was deleted with its peer, or with a host's namespace
                run("ip", "link", "delete", link["ifname"])
