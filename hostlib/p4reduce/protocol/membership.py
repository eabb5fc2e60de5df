# SPDX-License-Identifier: Apache-2.0
"""A rank's place in its job."""

from __future__ import annotations

from dataclasses import dataclass, field

from p4reduce.protocol.constants import MAX_GROWTH, MAX_RANKS, MAX_WORKERS, PARENT


@dataclass(frozen=True, slots=True)
class Membership:
    """What the controller assigned to this rank.

    `peers`: the ranks at this rank's switch, each in its place as a worker there; () stands for all ranks of the job.
    `abort_secret`: 64 bits, by which an ABORT shows that it is the controller's.
    """

    job: int
    generation: int
    rank: int
    world_size: int
    slots: int
    lanes: int
    block_size: int
    first_seq: int
    peers: tuple[int, ...] = ()
    abort_secret: int = field(default=0, repr=False)

    def __post_init__(self) -> None:
        for name, least, most in (
            ("job", 0, 0xFFFF),
            ("generation", 0, 0xFFFF),
            ("world_size", 1, MAX_RANKS),
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
        here = self.peers or range(self.world_size)
        most = MAX_WORKERS if len(here) == self.world_size else PARENT
        if len(here) > most:
            raise ValueError(f"{len(here)} of {self.world_size} ranks are at one switch: accepted are up to {most}")
        if self.rank not in here or len(set(here)) < len(here) or not set(here) <= set(range(self.world_size)):
            raise ValueError(f"peers are {self.peers}: accepted are ranks of {self.world_size}, {self.rank} among them")

    @property
    def worker(self) -> int:
        """What the switch knows this rank as."""
        return self.peers.index(self.rank) if self.peers else self.rank

    def ranks(self, bitmap: int) -> tuple[int, ...]:
        """The ranks that a bitmap of workers stands for."""
        here = self.peers or range(self.world_size)
        return tuple(sorted(rank for worker, rank in enumerate(here) if bitmap >> worker & 1))

    @property
    def elsewhere(self) -> tuple[int, ...]:
        """The ranks at other switches."""
        return tuple(rank for rank in range(self.world_size) if self.peers and rank not in self.peers)

    @property
    def max_absent_lanes(self) -> int:
        """How many lanes of a round a packet may leave out, so that the switch has room to put the sums in it."""
        return MAX_GROWTH // (4 * self.block_size)
