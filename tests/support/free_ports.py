# SPDX-License-Identifier: Apache-2.0
"""TCP ports for programs that cannot report which port the kernel has chosen."""

from __future__ import annotations

import contextlib
import random
import socket
from pathlib import Path

_RANDOM = random.SystemRandom()  # since parallel test processes may have the same seed


def free_ports(count: int) -> list[int]:
    """Return ports of loopback that are free now. The kernel chooses none of them for other programs."""
    chosen_by_kernel = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    found: list[int] = []
    while len(found) < count:
        port = _RANDOM.randrange(chosen_by_kernel // 2, chosen_by_kernel)
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            found += [port] if port not in found else []
    return found
