# SPDX-License-Identifier: Apache-2.0
"""A rank's place in its job."""

from __future__ import annotations

from dataclasses import dataclass

from p4reduce.protocol.constants import MAX_GROWTH, MAX_WORKERS


@dataclass(frozen=True, slots=True)
class Membership:
    """What the controller assigned to this rank."""

    job: int
    generation: int
    rank: int
    world_size: int
    slots: int
    lanes: int
    block_size: int
    first_seq: int

    def __post_init__(self) -> None:
        for name, least, most in (
            ("job", 0, 0xFFFF),
            ("generation", 0, 0xFFFF),
            ("world_size", 1, MAX_WORKERS),
            ("rank", 0, self.world_size - 1),
            ("slots", 1, 0x8000),
            ("lanes", 1, 8),
            ("block_size", 1, 1024),
            ("first_seq", 0, 0xFFFFFFFF),
        ):
            if not least <= getattr(self, name) <= most:
                raise ValueError(f"{name} is {getattr(self, name)}: accepted are {least} to {most}")
        if self.first_seq % 2:
            raise ValueError(f"first_seq is {self.first_seq}: accepted are even numbers: slots start in half 0")

    @property
    def max_absent_lanes(self) -> int:
        """How many lanes of a round a packet may leave out, so that the switch has room to put the sums in it."""
        return MAX_GROWTH // (4 * self.block_size)
