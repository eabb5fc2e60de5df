# SPDX-License-Identifier: Apache-2.0
"""The ports of a device outside: packets go between them and the device's program."""

from __future__ import annotations

from collections.abc import Sequence

from p4reduce_targets.ports import Port
from p4reduce_targets.switch import Switch

from .device import Device

NO_PORT = -1


def wired(device: Device, ports: Sequence[Port]) -> Switch:
    """Return a packet loop for a device, which runs as `Switch` says. `ports`: by device port, the CPU port as well.

    On the CPU port, frames begin with the header packet_out or packet_in.
    """
    switch = Switch(lambda *_: device, ports, NO_PORT)
    with switch.exclusive():
        switch.run_program(device)
    return switch
