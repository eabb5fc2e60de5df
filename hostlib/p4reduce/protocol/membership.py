# SPDX-License-Identifier: Apache-2.0
"""A rank's membership in its job."""

from __future__ import annotations

from dataclasses import dataclass, field

from p4reduce.protocol.constants import MAX_GROWTH, MAX_RANKS, MAX_WORKERS, PARENT


@dataclass(frozen=True, slots=True)
class Membership:
    """The job, rank, slots and sequence numbers that the controller assigned to this rank.

    `peers`: the ranks at this rank's switch, in the order of their worker numbers; () stands for all ranks of the job.
    `abort_secret`: 64 bits by which an ABORT proves that the controller sent it.
    `hosts`: a host number for each rank of the job, if the ranks of a host share one stream. Then `peers` has only the
    leaders, the lowest ranks of their hosts. () if each rank has a stream of its own.
    `more_jobs`: job numbers and generations of the rank's threads but the first, which share the slots with it.
    A worker in Python has all slots and does not use it.
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
    hosts: tuple[int, ...] = ()
    more_jobs: tuple[tuple[int, int], ...] = ()

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
        if self.hosts and (len(self.hosts) != self.world_size or not set(self.hosts) <= set(range(MAX_RANKS))):
            raise ValueError(f"hosts are {self.hosts}: accepted are {self.world_size} numbers of 0 to {MAX_RANKS - 1}")
        here, leaders = self.peers or self.leaders, self.leaders
        most = MAX_WORKERS if len(here) == len(leaders) else PARENT
        if len(here) > most:
            what = "hosts" if self.hosts else "ranks"
            raise ValueError(f"{len(here)} of {len(leaders)} {what} are at one switch: accepted are up to {most}")
        if self.leader not in here or len(set(here)) < len(here) or not set(here) <= set(leaders):
            accepted = f"leaders among {leaders}" if self.hosts else f"ranks of {self.world_size}"
            raise ValueError(f"peers are {self.peers}: accepted are {accepted}, {self.leader} among them")

    @property
    def colocated(self) -> tuple[int, ...]:
        """The ranks that share this rank's stream, including this rank, lowest first."""
        return self._beside(self.rank)

    @property
    def leader(self) -> int:
        """The rank in whose stream this rank's values travel."""
        return self.colocated[0]

    @property
    def leaders(self) -> tuple[int, ...]:
        """The job's leaders, lowest first. If no ranks share a stream, every rank is one."""
        if not self.hosts:
            return tuple(range(self.world_size))
        return tuple(sorted({host: rank for rank, host in reversed(list(enumerate(self.hosts)))}.values()))

    @property
    def threads(self) -> int:
        """How many threads share the slots."""
        return 1 + len(self.more_jobs)

    @property
    def worker(self) -> int:
        """The worker number of this rank's stream at its switch."""
        return (self.peers or self.leaders).index(self.leader)

    def ranks(self, bitmap: int) -> tuple[int, ...]:
        """Return the ranks that a bitmap of workers stands for."""
        here = [leader for worker, leader in enumerate(self.peers or self.leaders) if bitmap >> worker & 1]
        return self._beside(*here)

    @property
    def elsewhere(self) -> tuple[int, ...]:
        """The ranks at other switches."""
        return self._beside(*set(self.leaders) - set(self.peers)) if self.peers else ()

    def _beside(self, *ranks: int) -> tuple[int, ...]:
        if not self.hosts:
            return tuple(sorted(ranks))
        hosts = {self.hosts[rank] for rank in ranks}
        return tuple(other for other, host in enumerate(self.hosts) if host in hosts)

    @property
    def max_absent_lanes(self) -> int:
        """How many lanes of a round a packet may leave out, so that the switch has room for the sums."""
        return MAX_GROWTH // (4 * self.block_size)
