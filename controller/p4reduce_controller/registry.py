# SPDX-License-Identifier: Apache-2.0
"""Which jobs there are, by name and by number, and what they hold: numbers, generations, and of every switch slots and
MAC addresses."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.aggregator import Heard
from p4reduce_controller.hosts import Hosts
from p4reduce_controller.job import Job
from p4reduce_controller.numbers import JobNumbers
from p4reduce_controller.placement import Site, check_kept, check_room, find_slots, place
from p4reduce_controller.pools import SlotPool


class Registry:
    """A job that is over has no name any more, but keeps its number and slots until it is freed."""

    def __init__(self, site: Site, numbers: JobNumbers, fixed: Sequence[Mapping[str, int]] = ()) -> None:
        """`fixed`: of each switch, the ports of MAC addresses that do not have to be learned."""
        self.site = site
        self.hosts = tuple(Hosts(one, site.addresses) for one in fixed or [{}] * len(site.addresses))
        self.pools = tuple(SlotPool(site.layout.slots) for _ in site.addresses)
        self._numbers = numbers
        self._by_number: dict[int, Job] = {}
        self._by_name: dict[str, Job] = {}

    def __iter__(self) -> Iterator[Job]:
        """All that hold slots."""
        return iter(self._by_number.values())

    @property
    def live(self) -> list[Job]:
        """Jobs that are not over."""
        return list(self._by_name.values())

    def named(self, name: str) -> Job | None:
        return self._by_name.get(name)

    def numbered(self, number: int, generation: int) -> Job | None:
        job = self._by_number.get(number)
        return job if job is not None and job.generation == generation else None

    def found(self, join: pb.Join, slots: int, first_seq: int, rejoin_time: float, now: float) -> Job:
        """A new job for its first rank. Raises PoolFull or NumbersExhausted; then nothing is taken."""
        check_room(self.site, slots, self.pools)
        ranges = find_slots(self.site, slots, self.pools, self.site.always_needed)
        number, generation = self._numbers.take()
        for switch, taken in ranges.items():
            self.pools[switch].take(taken)
        job = Job(
            name=join.job,
            number=number,
            generation=generation,
            world_size=join.world_size,
            slots=slots,
            ranges=ranges,
            first_seq=first_seq,
            rejoin_time=rejoin_time,
            started=now,
            deadline=math.inf,
            abort_secret=secrets.randbits(64),
        )
        self._by_number[number] = self._by_name[job.name] = job
        return job

    def take_slots(self, job: Job, switches: Iterable[int]) -> None:
        """At those of the switches where it has none yet. Raises PoolFull; then nothing is taken."""
        more = find_slots(self.site, job.slots, self.pools, [one for one in switches if one not in job.ranges])
        for switch, taken in more.items():
            self.pools[switch].take(taken)
        job.ranges |= more

    def take_up(self, job: Job, children: Mapping[int, Heard]) -> None:
        """A job of an earlier run, in ascending order of numbers. Raises ValueError or Misplaced."""
        if job.name in self._by_name:
            raise ValueError("there are two of that name")
        check_kept(self.site, job)
        for switch, taken in job.ranges.items():
            self.pools[switch].take(taken)
        self._numbers.resume(job.number, job.generation)
        for member in job.members.values():
            for switch, heard in member.heard.items():
                if problem := self.hosts[switch].claim(heard.sender, heard.port, job.number):
                    raise ValueError(f"rank {member.rank}: {problem}")
        job.placements = place(self.site, job, children, self.hosts)
        self._by_number[job.number] = self._by_name[job.name] = job

    def give_up_name(self, job: Job) -> None:
        """The job is over."""
        del self._by_name[job.name]

    def free(self, job: Job) -> None:
        """Every switch has forgotten the job."""
        del self._by_number[job.number]
        for switch, taken in job.ranges.items():
            self.pools[switch].give_back(taken)
        for hosts in self.hosts:
            hosts.release(job.number)
        self._numbers.give_back(job.number)
