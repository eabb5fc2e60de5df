# SPDX-License-Identifier: Apache-2.0
"""The interface between the P4Runtime server and a switch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from p4reduce_targets.dataplane import DataPlane


class Device(Protocol):
    """A switch with ports. The server sets `on_packet_in`, and uses a data plane only under `exclusive()`."""

    on_packet_in: Callable[[bytes], None]  # called with frames for the CPU port, in any thread; must not block

    def exclusive(self) -> AbstractContextManager[None]:
        """Exclude other users of the data plane. Raises DataPlaneLost if the switch is out of reach."""

    def load(self, program: bytes) -> DataPlane:
        """Return a data plane for `program`, not yet in use; raise ValueError if it cannot be loaded."""
        ...

    def run_program(self, data_plane: DataPlane) -> None:
        """Process packets with this data plane from now on; raise ValueError if the switch refuses, unchanged.

        Raises DataPlaneLost if the switch has neither this data plane nor the one before. Called under `exclusive()`.
        """

    def packet_out(self, frame: bytes) -> None:
        """Process a frame, which begins with the packet-out header, as if it had arrived at the CPU port.

        The caller is not in `exclusive()`.
        """
