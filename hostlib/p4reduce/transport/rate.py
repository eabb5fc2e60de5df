# SPDX-License-Identifier: Apache-2.0
"""How fast the link toward the switch is, as far as the kernel knows."""

from __future__ import annotations

import contextlib
from pathlib import Path

from p4reduce.transport.base import Switch, TransportError
from p4reduce.transport.raw import interface_toward

_MEGABIT = 10**6


def rate_toward(switch: Switch, interface: str | None) -> int:
    """Bits a second of the interface toward the switch, by default the routing table's; 0 where nobody knows."""
    with contextlib.suppress(OSError, ValueError, TransportError):
        if interface is None:
            interface = interface_toward(switch)
        return max(0, int(Path("/sys/class/net", interface, "speed").read_text())) * _MEGABIT
    return 0
