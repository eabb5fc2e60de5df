# SPDX-License-Identifier: Apache-2.0
"""Slot compaction moves and shrinks jobs until another job finds its slots, whenever there is enough room in all."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p4reduce_controller.jobs import compacting
from p4reduce_controller.jobs.compacting import Change, grow, least, make_room, placed
from p4reduce_controller.jobs.job import LEAST_REPORTS, Job, Member, State
from p4reduce_controller.switches.aggregator import Layout
from p4reduce_controller.switches.pools import SlotPool, SlotRange
from p4reduce_controller.switches.site import Site
from p4reduce_controller.switches.trees import Trees
from tests.support.controller.jobs_harness import ADDRESS

SLOTS = 32


pytestmark = pytest.mark.usefixtures("few_slots_do")


def site_of(switches: int) -> Site:
    return Site(Layout(4, 64, SLOTS), (ADDRESS,) * switches, Trees([f"s{one}" for one in range(switches)]))


def job_at(number: int, ranges: dict[int, SlotRange], site: Site, used: int = 0) -> Job:
    """Return a job of one rank. used: slots that its operations use; 0 if that is not known."""
    member = Member(0, "a session", 0, holds=True)
    member.used.extend([used] * LEAST_REPORTS if used else [])
    slots = sum(taken.count for taken in ranges.values())
    job = Job(f"job {number}", number, 0, 1, slots, ranges, 0, 10.0, 0.0, math.inf, 0, site, State.READY)
    job.members[0] = member
    job.most_slots = slots
    job.freeze_roles()
    return job


def apply(change: Change, pools: Mapping[int, SlotPool]) -> None:
    job = change.job
    for at, taken in job.ranges.items():
        pools[at].give_back(taken)
    ranges = placed(job, change.slots, pools)
    for at, taken in ranges.items():
        pools[at].take(taken)
    job.ranges, job.slots = ranges, change.slots


@st.composite
def fragmented(draw: st.DrawFn) -> tuple[list[Job], list[SlotPool]]:
    """Return jobs, and the pools of one or two switches with holes between the jobs' slots.

    Each job has as many slots at each switch.
    """
    switches = draw(st.integers(1, 2))
    site = site_of(switches)
    pools = [SlotPool(SLOTS) for _ in range(switches)]
    jobs = []
    ends = [0] * switches
    for number in range(1, draw(st.integers(1, 8)) + 1):
        count = draw(st.integers(1, 8))
        firsts = [end + draw(st.integers(0, 4)) for end in ends]
        if any(first + count > SLOTS for first in firsts):
            break
        ranges = {at: SlotRange(first, count) for at, first in enumerate(firsts)}
        for at, taken in ranges.items():
            pools[at].take(taken)
        ends = [first + count for first in firsts]
        jobs.append(job_at(number, ranges, site, draw(st.sampled_from([0, 1, 2, 8, 64]))))
    return jobs, pools


@settings(max_examples=40)
@given(fragmented(), st.integers(1, SLOTS), st.data())
def test_there_is_room_in_the_end_where_there_can_be(
    drawn: tuple[list[Job], list[SlotPool]], count: int, data: st.DataObject
) -> None:
    jobs, each = drawn
    movable = [job for job in jobs if data.draw(st.booleans())] if data.draw(st.booleans()) else jobs
    pools = dict(enumerate(each))
    still = {job.number: job.ranges for job in jobs if job not in movable}
    slots = {job.number: job.slots for job in jobs}
    fits = lambda some: all(pool.longest >= count for pool in some.values())  # noqa: E731
    changes = 0
    while not fits(pools) and (change := make_room(movable, pools, fits)) is not None:
        before = least(change.job)
        assert change.slots in (change.job.slots, before)
        apply(change, pools)
        changes += 1
        assert changes <= 2 * len(jobs), "it goes round in circles"
    if movable == jobs:
        possible = SLOTS - sum(least(job) for job in jobs) // len(pools)
        assert fits(pools) == (count <= possible)
    for job in jobs:
        if job.number in still:
            assert job.ranges == still[job.number]
        assert job.slots in (slots[job.number], least(job))


def test_one_job_is_moved_where_one_is_enough_and_none_where_there_is_room() -> None:
    pool = SlotPool(SLOTS)
    ranges = [SlotRange(0, 4), SlotRange(8, 4), SlotRange(20, 4)]
    jobs = [job_at(number, {0: taken}, site_of(1)) for number, taken in enumerate(ranges, 1)]
    for taken in ranges:
        pool.take(taken)
    for count, moved in ((8, None), (12, jobs[1]), (16, jobs[2])):
        change = make_room(jobs, {0: pool}, lambda pools, count=count: pools[0].longest >= count)
        assert (change and change.job) is moved


@pytest.mark.parametrize(
    ("used", "slots", "left"), [(0, 16, 16), (1, 16, 1), (3, 16, 4), (8, 16, 8), (9, 16, 16), (1, 1, 1), (64, 16, 16)]
)
def test_who_gives_back_gives_back_half_at_least(used: int, slots: int, left: int) -> None:
    assert least(job_at(1, {0: SlotRange(0, slots)}, site_of(1), used)) == left


@pytest.mark.parametrize(("used", "slots", "left"), [(1, 16, 8), (1, 15, 15), (9, 64, 16), (1, 4, 4)])
def test_who_gives_back_keeps_enough_for_the_largest_tensors(
    monkeypatch: pytest.MonkeyPatch, used: int, slots: int, left: int
) -> None:
    monkeypatch.setattr(compacting, "MIN_SLOTS", 8)
    assert least(job_at(1, {0: SlotRange(0, slots)}, site_of(1), used)) == left


def test_a_job_of_several_trees_keeps_one_slot_in_each() -> None:
    assert least(job_at(1, {0: SlotRange(0, 8), 1: SlotRange(0, 8)}, site_of(2), used=1)) == 2


def test_who_is_not_known_well_enough_or_does_not_hold_gives_back_nothing() -> None:
    job = job_at(1, {0: SlotRange(0, 16)}, site_of(1), used=1)
    job.members[0].used.pop()
    assert least(job) == 16
    job.members[0].holds = False
    assert not job.movable


def test_ranks_that_share_memory_need_no_slots() -> None:
    job = job_at(1, {0: SlotRange(0, 16)}, site_of(1))
    job.members[0].host, job.members[0].holds = "host", False
    job.freeze_roles()
    assert job.in_memory
    assert job.movable
    assert least(job) == 1


def test_a_job_grows_again_as_far_as_there_is_room() -> None:
    pool = SlotPool(SLOTS)
    job = job_at(1, {0: SlotRange(0, 2)}, site_of(1), used=2)
    job.most_slots = 16
    pool.take(SlotRange(0, 2))
    assert grow([job], {0: pool}) == Change(job, 16, "grown")
    pool.take(SlotRange(12, 20))
    assert grow([job], {0: pool}) == Change(job, 8, "grown")
    job.members[0].used.append(1)
    assert grow([job], {0: pool}) == Change(job, 8, "grown"), "one of the latest used all"
    job.members[0].used.clear()
    job.members[0].used.extend([1] * LEAST_REPORTS)
    assert grow([job], {0: pool}) is None


def test_a_tenant_keeps_what_it_may_not_give_back() -> None:
    """Larger jobs first, and none that is more than is left."""
    site, pool = site_of(1), SlotPool(SLOTS)
    jobs = [job_at(one, {0: SlotRange(8 * (one - 1), 8)}, site, used=1) for one in (1, 2, 3, 4)]
    for job in jobs:
        job.tenant = "reserving" if job.number < 4 else "other"
        pool.take(job.ranges[0])
    for most, count, shrunk in ((8, 7, 1), (7, 7, 1), (6, 7, 4), (6, 8, None), (7, 14, 1), (13, 20, None), (14, 21, 1)):
        change = make_room(
            jobs,
            {0: pool},
            lambda pools, count=count: pools[0].longest >= count,
            lambda tenant, most=most: most if tenant == "reserving" else math.inf,
        )
        assert (change and change.job.number) == shrunk, (most, count)


@pytest.mark.parametrize("count", [10, 1000])
def test_what_cannot_be_is_soon_known_and_what_can_be_does_not_take_long(count: int) -> None:
    site = Site(Layout(4, 64, 4096), (ADDRESS,), Trees(["s"]))
    pool, jobs = SlotPool(4096), []
    for one in range(count):
        taken = SlotRange(4 * one + 1, 2)
        pool.take(taken)
        jobs.append(job_at(one + 1, {0: taken}, site, used=1))
    asked = []

    def fits(pools: Mapping[int, SlotPool], wanted: int) -> bool:
        asked.append(wanted)
        return pools[0].longest >= wanted

    assert make_room(jobs, {0: pool}, lambda pools: fits(pools, 4096 - count + 1)) is None
    assert len(asked) <= 2 + count.bit_length()
    asked.clear()
    change = make_room(jobs, {0: pool}, lambda pools: fits(pools, 4096 - 2 * count))
    assert change.why == "compacted"
    assert len(asked) <= 2 * count + 100


def test_one_is_moved_where_one_is_enough_among_many() -> None:
    site = Site(Layout(4, 64, 4096), (ADDRESS,), Trees(["s"]))
    pool, jobs = SlotPool(4096), []
    firsts = [*range(1, 401, 4), 1000, 3000]
    for number, first in enumerate(firsts, 1):
        pool.take(SlotRange(first, 2))
        jobs.append(job_at(number, {0: SlotRange(first, 2)}, site))
    change = make_room(jobs, {0: pool}, lambda pools: pools[0].longest >= 2500)
    assert change.job.ranges[0].first == 1000
