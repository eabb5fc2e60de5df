# SPDX-License-Identifier: Apache-2.0
"""What a service manager such as systemd is told of this process, where it wants to know: sd_notify(3)."""

from __future__ import annotations

import os
import socket
from contextlib import suppress


def tell(status: str) -> None:
    """That the controller has started, and its `status`, one line for people. Does nothing where nobody listens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    place = f"\0{address[1:]}" if address[0] == "@" else address
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
        to.sendto(f"READY=1\nSTATUS={status}".encode(), place)
