# SPDX-License-Identifier: Apache-2.0
"""The registry of jobs by name and by number, and of what they hold.

A job holds numbers, generations, and at each switch slots and MAC addresses.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from p4reduce.control import jobs_pb2 as pb
from p4reduce.protocol.aggregators import slots_at_each
from p4reduce_controller.jobs.job import Job, Takeover
from p4reduce_controller.jobs.numbers import JobNumbers, NumbersExhausted
from p4reduce_controller.jobs.placement import check_kept, check_room, find_slots, place
from p4reduce_controller.jobs.tenancy import Held
from p4reduce_controller.switches.aggregator import Heard, Placement
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.hosts import Hosts, family_conflict
from p4reduce_controller.switches.pools import PoolFull, SlotPool, SlotRange
from p4reduce_controller.switches.site import GONE, Site
from p4reduce_controller.tenants.access import Caller

CLEANUP_TIMEOUT = 10.0  # seconds within which switches forget a job that has ended, unless one of them is away


class Registry:
    """The jobs that hold something.

    A job that has ended loses its name, but keeps its number and slots until it is freed.
    """

    def __init__(self, numbers: JobNumbers) -> None:
        self.hosts: dict[int, Hosts] = {}  # by the controller's switch numbers, as are the pools
        self.pools: dict[int, SlotPool] = {}
        self._addresses: dict[int, Endpoint] = {}
        self._numbers = numbers
        self._by_number: dict[int, Job] = {}
        self._by_name: dict[tuple[str, str], Job] = {}  # by tenant and name
        self._by_pair: dict[tuple[int, int], Job] = {}  # by number and generation

    def switch_comes(self, number: int, slots: int, address: Endpoint, fixed: Mapping[str, int]) -> None:
        """Add a switch. `fixed`: the configured ports of MAC addresses, which need not be learned."""
        self._addresses[number] = address
        self.pools[number] = SlotPool(slots)
        self.hosts[number] = Hosts(fixed, ())
        self._know_each_other()

    def switch_goes(self, number: int) -> None:
        del self._addresses[number], self.pools[number], self.hosts[number]
        self._know_each_other()

    def _know_each_other(self) -> None:
        for hosts in self.hosts.values():
            hosts.meet(self._addresses.values())

    def __iter__(self) -> Iterator[Job]:
        """Iterate over all jobs that hold slots, including those that have ended."""
        return iter(self._by_number.values())

    @property
    def live(self) -> list[Job]:
        """The jobs that have not ended."""
        return list(self._by_name.values())

    @property
    def held(self) -> Held:
        return Held(self)

    @property
    def moving(self) -> bool:
        return any(job.moving for job in self)

    def freeing(self, now: float) -> bool:
        """Return whether a job has just ended, so that its switches are about to forget it."""
        return any(job.over and now - job.over_since < CLEANUP_TIMEOUT for job in self)

    def named(self, name: str, tenant: str = "") -> Job | None:
        return self._by_name.get((tenant, name))

    def numbered(self, number: int, generation: int) -> Job | None:
        job = self._by_number.get(number)
        return job if job is not None and job.generation == generation else None

    def job_at(self, switch: int, number: int, generation: int) -> tuple[Job, int] | None:
        """Return the job that this switch knows by this number and generation, and the site index there.

        The threads of each rank's engine share the job's slots, and so do trees. To a switch, each thread, and each
        tree that the switch is in, is a job with a number and a generation of its own.
        """
        job = self._by_pair.get((number, generation))
        if job is None:
            return None
        site = self.site_with_threads(job)
        indices = (index for node in job.site.nodes_of(switch) for index in site.indices(node))
        found = (index for index in indices if job.numbers[site.trees.tree(index)] == (number, generation))
        return next(((job, index) for index in found), None)

    def site_with_threads(self, job: Job) -> Site:
        """Return the site that the job's site indices refer to: each node of `job.site` once for each thread."""
        return job.site.for_threads(job.threads)

    def create(
        self,
        join: pb.Join,
        base: Site,
        slots: int,
        rejoin_time: float,
        now: float,
        caller: Caller,
        reserved: Sequence[int],
    ) -> Job:
        """Create a job for its first rank. Raises PoolFull or NumbersExhausted; then nothing is taken.

        `reserved`: numbers of slots that the job must leave free for others.
        """
        site = base.for_threads(join.threads or 1)
        pools = self.unreserved_pools(reserved, base)
        check_room(site, slots, pools)
        ranges = find_slots(site, slots, pools, site.always_needed)
        trees = len(base.trees.roots)
        needed = trees if base.repeats > 1 else 1  # for each thread
        numbers = self._take_numbers(site.threads * needed)
        number, generation = numbers[0]
        for at, taken in ranges.items():
            self.pools[site.number(at)].take(taken)
        job = Job(
            name=join.job,
            number=number,
            generation=generation,
            world_size=join.world_size,
            slots=slots,
            ranges=ranges,
            first_seq=secrets.randbits(31) << 1,  # even, because slots start in half 0
            rejoin_time=rejoin_time,
            started=now,
            deadline=math.inf,
            abort_secret=secrets.randbits(64),
            site=base,
            numbers=tuple(one for one in numbers for _ in range(trees // needed)),
            threads=site.threads,
            tenant=caller.tenant,
            user=caller.name,
            charged=now,
            most_slots=slots,
        )
        self._enter(job)
        return job

    def _take_numbers(self, count: int) -> list[tuple[int, int]]:
        """Take `count` numbers. Raise NumbersExhausted if there are too few; then none is taken."""
        numbers: list[tuple[int, int]] = []
        try:
            while len(numbers) < count:
                numbers.append(self._numbers.take())
        except NumbersExhausted:
            for number, _ in numbers:
                self._numbers.give_back(number)
            raise
        return numbers

    def _enter(self, job: Job) -> None:
        self._by_number[job.number] = self._by_name[job.tenant, job.name] = job
        self._by_pair |= dict.fromkeys(job.every_number, job)

    def unreserved_pools(
        self, reserved: Sequence[int], base: Site, pools: Mapping[int, SlotPool] | None = None
    ) -> Mapping[int, SlotPool]:
        """Return the pools as a job sees them that must leave free the slots reserved for others.

        `reserved`: the slots that must stay free for each other tenant, spread over the trees of `base`.
        `pools`: the pools now, unless others are given.
        """
        pools = self.pools if pools is None else pools
        each = [slots_at_each(slots, base.stripes) * base.shares for slots in reserved]
        return {number: pool.without(each) for number, pool in pools.items()} if each else pools

    def take_slots(self, job: Job, switches: Iterable[int], reserved: Sequence[int] = ()) -> None:
        """Take slots at those of the switches where the job has none yet. Raises PoolFull; then nothing is taken.

        `reserved`: numbers of slots that the job must leave free for others.
        """
        site = self.site_with_threads(job)
        wanted = [one for one in switches if one not in job.ranges]
        more = find_slots(site, job.slots, self.unreserved_pools(reserved, job.site), wanted)
        for at, taken in more.items():
            self.pools[site.number(at)].take(taken)
        job.ranges |= more

    def narrow(self, job: Job, trees: Collection[int]) -> None:
        """Keep only these trees of a job whose ranks have all been heard. Its slots are free until `take_slots`."""
        before, count, names = self.site_with_threads(job), len(job.site.trees.roots), set(job.every_number)
        kept = [at for at in range(before.nodes) if before.trees.tree(at) in trees]
        now = {
            thread * before.nodes + node: thread * len(kept) + index
            for thread in range(job.threads)
            for index, node in enumerate(kept)
        }
        for member in job.members.values():
            member.offered = [now.get(at, -1) for at in member.offered or before.within_reach(member.switch)]
            member.heard = {now[at]: heard for at, heard in member.heard.items() if at in now}
        self._give_back(job)
        job.ranges = {}
        job.site, job.cordoned = job.site.only(kept), frozenset(now[at] for at in job.cordoned if at in now)
        job.numbers = tuple(one for at, one in enumerate(job.numbers) if at % count in trees)
        self._release(names - set(job.every_number))

    def begin_move(self, job: Job, ranges: dict[int, SlotRange], first_seq: int) -> None:
        """Give the job new slots. Its former ones stay reserved until `end_move`.

        `first_seq`: the sequence number of every slot's next round.
        """
        move = job.move
        assert move is not None
        move.slots_before, move.first_seq_before = job.slots, job.first_seq
        # The order matters: `_give_back` and `_take` go by `job.ranges` and `move.before`. Former and new slots may
        # overlap, but a pool has each slot once. So the job gives back what it has, and then takes both as one.
        self._give_back(job)
        move.before = job.ranges
        _assign_slots(job, ranges, move.slots, first_seq)
        self._take(job)

    def end_move(self, job: Job) -> None:
        """Free the job's former slots. Precondition: no switch has the job in them any more."""
        self._give_back(job)
        job.move = None
        self._take(job)

    def undo_move(self, job: Job) -> None:
        """Give the job its former slots again. Precondition: no switch has the job in its new slots."""
        move = job.move
        assert move is not None
        assert move.before is not None
        self._give_back(job)
        _assign_slots(job, move.before, move.slots_before, move.first_seq_before)
        job.move = None
        self._take(job)

    def _take(self, job: Job) -> None:
        """Take from the pools what `job.ranges` and `job.move` say now."""
        for at, taken in job.ranges.items():
            for part in _all_of(job, at, taken):
                self.pools[job.site.number(at)].take(part)

    def _give_back(self, job: Job) -> None:
        """Give back to the pools what `job.ranges` and `job.move` say now."""
        for at, taken in job.ranges.items():
            for part in _all_of(job, at, taken):
                self.pools[job.site.number(at)].give_back(part)

    def take_over(self, job: Job, tree: int, via: int, now: float, why: str) -> Takeover:
        """Take slots and a number for the slots of a lost tree at another one. Raises PoolFull or NumbersExhausted.

        The job keeps them until it ends.
        """
        site, known = self.site_with_threads(job), job.placements | job.spares
        placements: dict[int, Placement] = {}
        numbers = self._take_numbers(job.threads)
        try:
            for thread, (number, generation) in enumerate(numbers):
                for at in site.trees.among(sorted(known), thread * job.trees + via):
                    pool = self.pools[site.number(at)]
                    taken = pool.find(site.pool_at(at, job.slots))
                    pool.take(taken)
                    placements[at] = replace(
                        known[at],
                        job=number,
                        generation=generation,
                        slots=taken,
                        hosts=known[at].hosts if at in job.spares else (),  # the others have their hosts already
                    )
        except PoolFull:
            for at, placement in placements.items():
                self.pools[site.number(at)].give_back(placement.slots)
            for number, _ in numbers:
                self._numbers.give_back(number)
            raise
        takeover = Takeover(tree, via, tuple(numbers), secrets.randbits(64), placements, why, now)
        job.takeovers.append(takeover)
        return takeover

    def restore_numbers(self, jobs: Iterable[Job]) -> None:
        """Take the numbers of jobs of an earlier run. Raises ValueError."""
        numbers = [(number, generation, job.name) for job in jobs for number, generation in job.every_number]
        for number, generation, name in sorted(numbers):
            try:
                self._numbers.resume(number, generation)
            except ValueError as error:
                raise ValueError(f"job {name!r}: {error}") from None

    def restore(self, job: Job, children: Mapping[int, Heard]) -> None:
        """Enter a job of an earlier run, whose numbers were restored. Raises ValueError or Misplaced."""
        if (job.tenant, job.name) in self._by_name:
            raise ValueError("there are two of that name")
        site = self.site_with_threads(job)
        job.freeze_roles()
        check_kept(site, job)
        self._take(job)
        for member in job.members.values():
            for at, heard in member.heard.items():
                if site.number(at) == GONE:
                    continue  # a spare
                if problem := self.claim(job, at, heard):
                    raise ValueError(f"rank {member.rank}: {problem}")
        place(site, job, children, self.hosts)
        self._enter(job)

    def claim(self, job: Job, at: int, heard: Heard) -> str:
        """Record that a rank of the job was heard at that site index. Return why that cannot be, or ""."""
        switch = job.site.number(at)
        if conflict := family_conflict(heard.sender, self._addresses[switch]):
            return conflict
        number, _ = job.numbers[self.site_with_threads(job).trees.tree(at)]
        return self.hosts[switch].claim(heard.sender, heard.port, number, heard.lag)

    def give_up_name(self, job: Job) -> None:
        """Remove the job's name, so that another job of its tenant can have it."""
        del self._by_name[job.tenant, job.name]

    def free(self, job: Job) -> None:
        """Free what the job holds. Precondition: no switch has the job any more."""
        del self._by_number[job.number]
        self._give_back(job)
        self._release(job.every_number)
        for takeover in job.takeovers:
            for at, placement in takeover.placements.items():
                self.pools[job.site.number(at)].give_back(placement.slots)
            for number, _ in takeover.jobs:
                self._numbers.give_back(number)

    def _release(self, numbers: Iterable[tuple[int, int]]) -> None:
        for number, generation in numbers:
            del self._by_pair[number, generation]
            for hosts in self.hosts.values():
                hosts.release(number)
            self._numbers.give_back(number)


def _assign_slots(job: Job, ranges: dict[int, SlotRange], slots: int, first_seq: int) -> None:
    """Record these slots as the job's, without the pools."""
    job.ranges, job.slots, job.first_seq = ranges, slots, first_seq
    job.unanswered.clear()  # the ranks asked about halves of slots that the job no longer has
    for at, placement in job.placements.items():
        job.placements[at] = replace(placement, slots=ranges[at], first_seq=first_seq)


def _all_of(job: Job, at: int, taken: SlotRange) -> list[SlotRange]:
    """Return what the job holds at that site index: during a move, its former slots as well."""
    before = job.move.before if job.move is not None else None
    return [taken] if before is None else taken.joined(before[at])
