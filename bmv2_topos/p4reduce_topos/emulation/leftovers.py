# SPDX-License-Identifier: Apache-2.0
"""What a network whose process was killed has left in its network namespace. Of one in a namespace of its own nothing
is left, but `Network` may be used in any."""

from __future__ import annotations

import contextlib
import json
import socket

from p4reduce.errors import P4ReduceError
from p4reduce_bench.processes.network import run

_MARK = "p4reduce topo"  # the alias of interfaces that are ours
_CLAIM = "\0p4reduce topo"  # a socket's name, of one network namespace; it is free as soon as its process is gone


def claim() -> socket.socket:
    """Until it is closed this namespace is this process's alone: two networks would have interfaces of the same names.
    Raises P4ReduceError where another one lives in it."""
    held = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        held.bind(_CLAIM)
    except OSError:
        held.close()
        raise P4ReduceError(
            "another network runs in this network namespace, which holds only one (`unshare --net` makes another "
            "namespace)"
        ) from None
    return held


def mark(interface: str) -> None:
    run("ip", "link", "set", interface, "alias", _MARK)


def remove() -> None:
    """Who has the claim knows that the owner of what is here is dead."""
    for link in json.loads(run("ip", "-json", "link", "show") or "[]"):
        if link.get("ifalias") == _MARK:
            with contextlib.suppress(P4ReduceError):  # it went with its other end, or with a host's namespace
                run("ip", "link", "delete", link["ifname"])
