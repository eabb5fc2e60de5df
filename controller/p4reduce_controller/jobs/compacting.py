# SPDX-License-Identifier: Apache-2.0
"""The choice of the running job whose slots change next, so that a waiting job finds room. Nothing is changed here.

The first choice is to move jobs to lower slots: one job if that is enough, else all in their order, which leaves the
free slots contiguous. If these are too few, jobs that use few of their slots give some back, as few jobs as possible.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest

from p4reduce_controller.jobs.job import Job
from p4reduce_controller.jobs.placement import find_slots
from p4reduce_controller.switches.pools import PoolFull, SlotPool, SlotRange

MIN_SLOTS = 8  # slots that a job keeps
MOST_TRIED_ALONE = 32  # jobs for which it is tried whether moving one of them is enough

Pools = Mapping[int, SlotPool]  # by the controller's switch numbers
Ranges = dict[int, SlotRange]  # by site index


@dataclass(frozen=True)
class Change:
    """A new number of slots for the job, possibly at the same first slot. `why`: "compacted", "shrunk" or "grown"."""

    job: Job
    slots: int
    why: str


def make_room(
    jobs: Iterable[Job],
    pools: Pools,
    fits: Callable[[Pools], bool],
    most_given: Callable[[str], float] = lambda _: math.inf,
) -> Change | None:
    """Return the first change of a series after which `fits` holds; None if it holds already, or if no changes help.

    `jobs`: those that may be moved.
    `fits`: a monotone condition: more free slots never make it false, nor does it if they become contiguous.
    `most_given`: how many slots the jobs of a tenant may give back for others.
    """
    in_order = sorted(jobs, key=lambda job: [(taken.first, at) for at, taken in sorted(job.ranges.items())])
    spare = list(_givers(in_order, most_given))
    for count in _fewest_first(len(spare)):
        if not fits(_at_best(spare[:count], pools)):
            continue
        if (change := _first_of(in_order, spare[:count], pools, fits)) is None:
            continue
        alone = (_first_of([job], [], pools, fits) for job in _roomiest(in_order, pools) if not count)
        return next(filter(None, alone), change)
    return None


def grow(jobs: Iterable[Job], pools: Pools) -> Change | None:
    """Return a change by which a job that has shrunk, and uses all of its slots, grows again; None if there is none.

    The job gets as many slots as it was admitted with, or half as many, and so on.
    """
    for job in jobs:
        slots = job.most_slots
        while job.used_slots == job.slots < slots:
            if placed(job, slots, pools_without(job, pools)) is not None:
                return Change(job, slots, "grown")
            slots //= 2
    return None


def least(job: Job) -> int:
    """Return how many slots the job can manage with; all of its slots if that is unknown.

    A job gives back at least half of its slots, or none. It keeps at least `MIN_SLOTS`, because few slots mean few
    streams of blocks, and a stream has at most 2^24 blocks.
    """
    used = job.used_slots
    if used is None:
        return job.slots
    needed = max(1 << max(0, used - 1).bit_length(), job.site.stripes, MIN_SLOTS)
    return needed if 2 * needed <= job.slots else job.slots


def placed(job: Job, slots: int, pools: Pools) -> Ranges | None:
    """Return the first ranges in these pools that have room for the whole job; None if there are none."""
    try:
        return find_slots(job.site.for_threads(job.threads), slots, pools, sorted(job.ranges))
    except PoolFull:
        return None


def _givers(jobs: Iterable[Job], most_given: Callable[[str], float]) -> Iterator[Job]:
    """Yield the jobs that give slots back, those that give most first."""
    left: dict[str, float] = {}
    for job in sorted(jobs, key=lambda job: least(job) - job.slots):
        given = job.slots - least(job)
        if 0 < given <= left.setdefault(job.tenant, most_given(job.tenant)):
            left[job.tenant] -= given
            yield job


def _at_best(shrinking: Iterable[Job], pools: Pools) -> Pools:
    """Return pools whose free slots are contiguous, after these jobs have shrunk: the best that moves can reach."""
    free = defaultdict(int, {number: pool.free for number, pool in pools.items()})
    for job in shrinking:
        site = job.site.for_threads(job.threads)
        for at, taken in job.ranges.items():
            free[job.site.number(at)] += taken.count - site.pool_at(at, least(job))
    best = {number: SlotPool(pool.slots) for number, pool in pools.items()}
    for number, pool in best.items():
        if free[number] < pool.slots:
            pool.take(SlotRange(free[number], pool.slots - free[number]))
    return best


def _roomiest(jobs: Sequence[Job], pools: Pools) -> list[Job]:
    """Return the jobs that would leave the longest free ranges, in the given order."""

    def room(index: int) -> int:
        job = jobs[index]
        return sum(pools[job.site.number(at)].around(taken) for at, taken in job.ranges.items())

    return [jobs[index] for index in sorted(nlargest(MOST_TRIED_ALONE, range(len(jobs)), key=room))]


def _fewest_first(count: int) -> Iterator[int]:
    """Yield 0, 1, 2, 4 and so on, and last `count`."""
    yield 0
    some = 1
    while some < count:
        yield some
        some *= 2
    if count:
        yield count


def _first_of(
    movers: Sequence[Job], shrinking: Sequence[Job], pools: Pools, fits: Callable[[Pools], bool]
) -> Change | None:
    """Return the first change if these jobs shrink and `movers` move until `fits` holds; None if it never does."""
    pools = {number: pool.copy() for number, pool in pools.items()}
    slots = {job.number: least(job) for job in shrinking}
    ranges: dict[int, Ranges] = {}  # by the number of the job
    first = None
    jobs = [*shrinking, *movers]
    moved = True
    while moved:  # each switch has its own order of jobs, so a later job may make room for an earlier one
        moved = False
        for job in jobs:
            if fits(pools):
                return first
            before = ranges.get(job.number, job.ranges)
            shrinks = job.number in slots and job.number not in ranges
            _exchange(job, before, {}, pools)
            after = placed(job, slots.get(job.number, job.slots), pools)
            if after is None or (not shrinks and _height(after) >= _height(before)):
                after = before
            _exchange(job, {}, after, pools)
            ranges[job.number] = after
            if after != before:
                moved = True
                first = first or Change(job, slots.get(job.number, job.slots), "shrunk" if shrinks else "compacted")
        jobs = list(movers)
    return None


def _height(ranges: Ranges) -> int:
    return sum(taken.first for taken in ranges.values())


def pools_without(job: Job, pools: Pools) -> Pools:
    """Return the pools as they would be if the job had no slots."""
    pools = {number: pool.copy() for number, pool in pools.items()}
    _exchange(job, job.ranges, {}, pools)
    return pools


def _exchange(job: Job, before: Ranges, after: Ranges, pools: Pools) -> None:
    for at, taken in before.items():
        pools[job.site.number(at)].give_back(taken)
    for at, taken in after.items():
        pools[job.site.number(at)].take(taken)
