# SPDX-License-Identifier: Apache-2.0
"""What the P4Runtime server asks of the switch that it stands in front of."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from p4reduce_targets.dataplane import DataPlane


class Device(Protocol):
    """A switch with ports. The server sets `on_packet_in`; a data plane is touched only under `exclusive()`."""

    on_packet_in: Callable[[bytes], None]  # a frame left at the CPU port; from any thread, must not block

    def exclusive(self) -> AbstractContextManager[None]:
        """Hold up packets and other users of the data plane."""

    def load(self, program: bytes) -> DataPlane:
        """Return a data plane ready to run `program`; ValueError says what is wrong with it."""
        ...

    def run_program(self, data_plane: DataPlane) -> None:
        """Send packets through this data plane from now on. Called under `exclusive()`."""

    def packet_out(self, frame: bytes) -> None:
        """Send a frame, packet-out header first, in at the CPU port. Takes `exclusive()` itself."""
