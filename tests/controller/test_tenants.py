# SPDX-License-Identifier: Apache-2.0
"""Tenants beside each other, on a clock of the test's own: quotas, the queue, reservations, and who sees what."""

from __future__ import annotations

import math
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.job import State
from p4reduce_controller.jobs.lifecycle import digest
from p4reduce_controller.jobs.tenancy import Tenancy
from p4reduce_controller.jobs.waitlist import HOLD_BACK
from p4reduce_controller.switches.pools import PoolFull, SlotPool, SlotRange
from p4reduce_controller.tenants.access import Caller, Role, seen_by
from p4reduce_controller.tenants.quotas import Policy, Quota, Reservation
from tests.support.controller.jobs_harness import ALICE, BOB, CAROL, MONTH, TenantsDesk

OPERATOR = Caller("olga", Role.OPERATOR, "olga")
VIEWER = Caller("vera", Role.VIEWER, "alice")


def test_names_of_jobs_are_each_tenants_own() -> None:
    hall = TenantsDesk()
    mine, other = hall.begin(ALICE), hall.begin(BOB)
    assert [hall.kinds(one) for one in (mine, other)] == [["assigned", "ready"]] * 2
    assert [(job.tenant, job.user) for job in hall.jobs] == [("alice", "alice"), ("bob", "bob")]
    hall.come(BOB, rank=1, world_size=2)  # conflicts with his own job
    assert hall.kinds(mine)[-1] == "ready"


def test_more_slots_than_the_quota_are_refused_for_good() -> None:
    hall = TenantsDesk(Policy(Quota(slots=8)))
    refused = hall.last(hall.come(ALICE, slots=9, queue_s=60))
    assert refused.reason == pb.QUOTA_EXCEEDED
    assert "rank 0 is refused: slots=9, and tenant 'alice' may have 8" in refused.message


@pytest.mark.parametrize(
    ("quota", "text"),
    [
        (Quota(jobs=2), "tenant 'alice' has 2 jobs, and may have 2"),
        (Quota(slots=10), "4 slots asked, and tenant 'alice' has 8 of the 10 it may"),
    ],
)
def test_who_does_not_wait_is_refused_and_who_waits_is_let_in(quota: Quota, text: str) -> None:
    hall = TenantsDesk(Policy(quota))
    first, _ = hall.begin(ALICE, "one"), hall.begin(ALICE, "two")
    refused = hall.last(hall.come(ALICE, "three"))
    assert (refused.reason, text in refused.message) == (pb.SLOTS_EXHAUSTED, True)
    hall.begin(BOB, "one")
    waits = hall.come(ALICE, "four", queue_s=60)
    hall.tick()
    assert (hall.place(waits), hall.told[waits][-1].waiting.why) == (1, text)
    hall.leave(first)
    hall.tick(0.1)
    assert "assigned" in hall.kinds(waits)


def test_a_place_is_told_whenever_it_changes_and_the_wait_has_an_end() -> None:
    hall = TenantsDesk(slots=4)
    running = hall.begin(ALICE)
    waits = [hall.come(who, "next", queue_s=seconds) for who, seconds in ((BOB, 30), (CAROL, 40))]
    hall.tick(0.1)
    assert [hall.place(one) for one in waits] == [1, 2]
    hall.tick(1)
    assert [len(hall.told[one]) for one in waits] == [1, 1]
    hall.tick(29)
    refused = hall.last(waits[0])
    assert refused.reason == pb.SLOTS_EXHAUSTED
    assert "after 30 s in the queue, position 1 of 2: 4 slots asked, 0 of 4 free" in refused.message
    hall.tick(0.1)
    assert hall.place(waits[1]) == 1
    hall.leave(running)
    hall.tick(0.1)
    assert "assigned" in hall.kinds(waits[1])


def test_all_ranks_of_a_job_wait_and_one_that_goes_ends_it() -> None:
    hall = TenantsDesk(slots=4)
    running = hall.begin(ALICE)
    waits = [hall.come(BOB, rank=rank, world_size=2, queue_s=99) for rank in range(2)]
    again = hall.come(BOB, rank=1, world_size=2, queue_s=99)
    for one in (*waits, again):
        assert "rank 1 is refused: this rank has joined already" in hall.last(one).message
    waits = [hall.come(BOB, rank=rank, world_size=2, queue_s=99) for rank in range(2)]
    hall.lose(waits[1])
    assert "rank 1 was lost" in hall.last(waits[0]).message
    waits = [hall.come(BOB, rank=rank, world_size=2, queue_s=99) for rank in range(2)]
    hall.leave(running)
    hall.tick()
    assert all("assigned" in hall.kinds(one) for one in waits)


def test_who_holds_nothing_is_behind_no_one_who_does() -> None:
    hall = TenantsDesk(slots=8)
    running = [hall.begin(ALICE, "one"), hall.begin(ALICE, "two")]
    flood = [hall.come(ALICE, f"more {number}", queue_s=99) for number in range(20)]
    waits = hall.come(BOB, queue_s=99)
    hall.tick()
    assert hall.place(waits) == 1
    hall.leave(running[0])
    hall.tick()
    assert "assigned" in hall.kinds(waits)
    assert {hall.kinds(one)[-1] for one in flood} == {"waiting"}


def test_a_higher_priority_goes_first() -> None:
    hall = TenantsDesk(Policy(quotas={"carol": Quota(priority=1)}), slots=4)
    running = hall.begin(ALICE)
    bob, carol = hall.come(BOB, queue_s=99), hall.come(CAROL, queue_s=99)
    hall.tick()
    assert (hall.place(bob), hall.place(carol)) == (2, 1)
    hall.leave(running)
    hall.tick()
    assert "assigned" in hall.kinds(carol)


def test_a_job_without_room_holds_others_back_for_a_while_within_its_share() -> None:
    hall = TenantsDesk(slots=12)
    hall.begin(ALICE, slots=10)
    waits = hall.come(BOB, slots=4, queue_s=1000)
    small = hall.come(CAROL, slots=1, queue_s=1000)
    hall.tick()
    assert hall.told[small][-1].waiting.why == "earlier jobs in the queue have no room yet"
    hall.tick(HOLD_BACK)
    assert "assigned" in hall.kinds(small)
    assert "assigned" not in hall.kinds(waits)


def test_who_asks_for_more_than_its_share_holds_nobody_back() -> None:
    hall = TenantsDesk(slots=12)
    hall.begin(ALICE, slots=2)
    hall.come(BOB, slots=12, queue_s=1000)
    assert hall.kinds(hall.come(CAROL, slots=2, queue_s=1000)) == ["assigned"]


def test_what_is_reserved_is_there_until_its_end() -> None:
    reserved = Reservation("carol", 8, MONTH + 50, MONTH + 200)
    hall = TenantsDesk(Policy(reservations=(reserved,)))
    hall.begin(ALICE, slots=4)
    assert "12 slots asked, 4 of 16 free" in hall.last(hall.come(BOB, slots=12)).message
    waits = hall.come(BOB, slots=5, queue_s=1000)
    hall.tick()
    assert hall.place(waits) == 1
    carols = hall.begin(CAROL, slots=6)  # though another waits before
    assert "earlier jobs in the queue" in hall.last(hall.come(CAROL, "more", slots=3)).message
    hall.begin(CAROL, "more", slots=2)
    hall.tick(90)
    assert hall.place(waits) == 1
    hall.tick(20)  # the reservation has ended, and its jobs run on
    assert hall.kinds(carols)[-1] == "ready"
    assert "assigned" not in hall.kinds(waits)
    hall.leave(carols)
    hall.tick()
    assert "assigned" in hall.kinds(waits)


def test_room_that_is_left_is_in_a_row() -> None:
    pool = SlotPool(16)
    for first in (0, 6):
        pool.take(SlotRange(first, 2))
    seen = pool.without([4, 4])
    with pytest.raises(PoolFull, match="4 of 16 free"):
        seen.find(5)
    assert seen.find(4) == SlotRange(2, 4)
    assert pool.free == 12
    assert pool.without([9]).free == 3  # though no range is so long
    assert pool.without([99]).free == 0


def test_slot_hours_end_what_runs_and_refuse_what_comes_until_the_next_month() -> None:
    hall = TenantsDesk(Policy(quotas={"alice": Quota(slot_hours=1.0)}))
    mine, other = hall.begin(ALICE), hall.begin(BOB)
    for _ in range(9):
        hall.tick(100)
    ended = hall.last(mine)
    assert (ended.reason, "has used up the 1 slot-hours of 2027-01" in ended.message) == (pb.QUOTA_EXCEEDED, True)
    assert hall.kinds(other)[-1] == "ready"
    hall.removed()
    assert hall.last(hall.come(ALICE, queue_s=99)).reason == pb.QUOTA_EXCEEDED
    assert hall.tenancy.hours("alice") == pytest.approx(1.0)
    hall.tick(31 * 86400.0)
    assert hall.kinds(hall.come(ALICE)) == ["assigned"]


def test_use_survives_a_restart_with_what_ran_meanwhile() -> None:
    hall = TenantsDesk(returns=True)
    hall.begin(ALICE, slots=2)
    hall.begin(BOB, slots=2)
    hall.tick(1800)
    hall.jobs.failed(next(job for job in hall.jobs if job.tenant == "bob"), "it ends")
    kept = hall.tenancy.to_json()
    hall.now += 900  # nobody charges
    [job] = hall.jobs.live
    after = Tenancy(None, lambda: MONTH + hall.now)
    after.restore(kept, [job], 5.0)
    after.charge(job, 5.0)
    assert (after.hours("alice"), after.hours("bob")) == (pytest.approx(1.5), pytest.approx(1.0))
    for wrong in ({"at": "x"}, {"slot_seconds": {"a": -1.0}}, {"month": 3}, {"slot_seconds": {"a": math.nan}}):
        with pytest.raises(ValueError):
            Tenancy().restore({**kept, **wrong}, [], 0.0)


def test_who_sees_what() -> None:
    hall = TenantsDesk(slots=8)
    for who in (ALICE, BOB):
        hall.begin(who)
    for who in (ALICE, BOB):
        hall.come(who, "next", queue_s=99)
    everything = hall.status()
    for who in (ALICE, VIEWER):
        seen = seen_by(who, everything)
        assert {job.tenant for job in (*seen.jobs, *seen.queue)} == {one.name for one in seen.tenants} == {"alice"}
        assert seen.joins == 0
        assert "bob" not in str(seen)
    for who in (OPERATOR, Caller("page", Role.VIEWER, "")):
        assert seen_by(who, everything) == everything


def test_who_ends_what() -> None:
    hall = TenantsDesk(slots=8)
    alices, bobs = hall.begin(ALICE), hall.begin(BOB)
    queued = hall.come(BOB, "next", queue_s=99)
    for who, tenant in ((CAROL, ""), (CAROL, "alice"), (ALICE, "bob"), (VIEWER, ""), (VIEWER, "alice")):
        with pytest.raises(LookupError) as refused:
            hall.jobs.end("job", who, tenant, "")
        mine = "'job'" if who is ALICE else "none"
        assert str(refused.value) == f"there is no job 'job'; the jobs are {mine}"
    with pytest.raises(LookupError, match="the tenants alice, bob each have a job of that name; name the tenant"):
        hall.jobs.end("job", OPERATOR, "", "")
    hall.carry_out()
    assert [hall.kinds(one)[-1] for one in (alices, bobs)] == ["ready"] * 2
    assert hall.jobs.end("job", ALICE, "", "a mistake") == "alice"
    hall.carry_out()
    ended = hall.last(alices)
    assert (ended.reason, ended.message) == (pb.ENDED_BY_USER, "job 'job': was ended by alice: a mistake")
    assert hall.jobs.end("job", OPERATOR, "", "") == "bob"
    assert hall.jobs.end("next", OPERATOR, "", "") == "bob"
    hall.carry_out()
    assert hall.last(queued).reason == hall.last(bobs).reason == pb.ENDED_BY_USER


def test_coming_back_to_a_job_of_another_tenant_is_as_to_none() -> None:
    hall = TenantsDesk(returns=True)
    session = hall.begin(ALICE)
    assigned = hall.assigned(session)

    def back(caller: Caller, key: str, generation: int = assigned.generation) -> str:
        attempt = ("back", len(hall.told))
        rejoin = pb.Rejoin(job=assigned.job, generation=generation, rank=0, key=key)
        hall.jobs.rejoin(attempt, rejoin, hall.now, caller)
        hall.carry_out()
        return hall.last(attempt).message.partition(": ")[2]

    unknown = back(BOB, "", generation=assigned.generation ^ 1)
    assert back(BOB, assigned.rejoin_key) == back(BOB, "") == unknown
    assert hall.kinds(session)[-1] == "ready"
    hall.lose(session)
    assert back(BOB, assigned.rejoin_key) == unknown
    assert "was lost" in back(ALICE, assigned.rejoin_key)
    assert digest(assigned.rejoin_key)


def test_what_begins_and_ends_is_noted() -> None:
    hall = TenantsDesk()
    hall.leave(hall.begin(ALICE, "one"))
    hall.lose(hall.begin(ALICE, "two"))
    assert [name for name, _ in hall.noted] == ["one", "one", "two", "two"]
    assert [outcome for _, outcome in hall.noted][:3] == ["", "finished", ""]
    assert "was lost" in hall.noted[-1][1]


TENANTS = {
    "alice": Quota(slots=6, jobs=2, queued=1),
    "bob": Quota(slots=6, jobs=8, priority=1, slot_hours=0.01),
    "carol": Quota(slot_hours=0.02, queued=1),
}
NAMES = "vwxyz"
CALLERS = {caller.tenant: caller for caller in (ALICE, BOB, CAROL)}
RESERVED = Reservation("carol", 5, MONTH, MONTH + 10**6)


class AnySchedule(RuleBasedStateMachine):
    """A machine of tenants that join, wait, leave, are lost, are ended and run out of hours.

    Its switches forget jobs late.
    """

    def __init__(self) -> None:
        super().__init__()
        self.hall = TenantsDesk(Policy(Quota(), TENANTS, (RESERVED,)), slots=16)
        self.sessions: list[object] = []
        self.carol_came = False
        self.spent: Counter[str] = Counter()

    @property
    def open(self) -> list[object]:
        return [one for one in self.sessions if one not in self.hall.ended]

    @rule(
        tenant=st.sampled_from(sorted(TENANTS)),
        name=st.sampled_from(NAMES),
        rank=st.integers(0, 1),
        size=st.integers(1, 2),
        slots=st.sampled_from([1, 1, 2, 3, 5, 17]),
        queue=st.sampled_from([0, 30, 90]),
        join_timeout=st.sampled_from([1, 60]),
    )
    def joins(
        self, tenant: str, name: str, rank: int, size: int, slots: int, queue: float, join_timeout: float
    ) -> None:
        self.carol_came = self.carol_came or tenant == "carol"
        self.sessions.append(
            self.hall.come(CALLERS[tenant], name, rank, size, slots=slots, queue_s=queue, timeout_s=join_timeout)
        )

    @precondition(lambda self: self.open)
    @rule(data=st.data(), how=st.sampled_from(["hear", "hear", "leave", "lost"]))
    def something_of_a_rank(self, data: st.DataObject, how: str) -> None:
        session = data.draw(st.sampled_from(self.open))
        if how == "hear":
            if "assigned" in self.hall.kinds(session):
                self.hall.hear(session)
            return
        others = self.states(but=session[0])  # type: ignore[index]
        if how == "leave":
            self.hall.jobs.leave(session, self.hall.now)
        else:
            self.hall.jobs.lost(session)
        self.hall.carry_out()
        assert self.states(but=session[0]) == others, "another tenant's job has felt that"  # type: ignore[index]

    @rule(tenant=st.sampled_from(sorted(TENANTS)), name=st.sampled_from(NAMES), of=st.sampled_from(["", *TENANTS]))
    def ends(self, tenant: str, name: str, of: str) -> None:
        others = self.states(but=tenant)
        try:
            assert self.hall.jobs.end(name, CALLERS[tenant], of, "") == tenant
            assert of in ("", tenant)
        except LookupError:
            pass
        self.hall.carry_out()
        assert self.states(but=tenant) == others

    def states(self, but: object) -> list[tuple[int, State, int]]:
        return [(job.number, job.state, len(job.members)) for job in self.hall.jobs if job.tenant != but]

    @rule()
    def switches_set_up(self) -> None:
        self.hall.installed()

    @rule()
    def switches_forget(self) -> None:
        self.hall.removed()

    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        for job in self.hall.jobs.live:
            self.spent[job.tenant] += job.slots * seconds  # type: ignore[assignment]
        self.hall.tick(seconds)

    @invariant()
    def no_quota_is_broken(self) -> None:
        slots: Counter[str] = Counter()
        jobs: Counter[str] = Counter()
        for job in self.hall.jobs:
            slots[job.tenant] += job.slots
            jobs[job.tenant] += 1
        for tenant, quota in TENANTS.items():
            assert slots[tenant] <= quota.slots
            assert jobs[tenant] <= quota.jobs
            assert self.hall.tenancy.hours(tenant) * 3600 == pytest.approx(self.spent[tenant])
            queued = [one for one in self.hall.jobs.queue.described(self.hall.now) if one.tenant == tenant]
            assert len(queued) <= quota.queued
        for job in self.hall.jobs.live:
            assert self.hall.tenancy.hours(job.tenant) < TENANTS[job.tenant].slot_hours
        # Slots that carol has reserved and does not use are free for her, in a row unless they were in use meanwhile.
        unused = max(0, RESERVED.slots - slots["carol"])
        assert self.hall.jobs.pools[0].free >= unused
        assert self.carol_came or self.hall.jobs.pools[0].longest >= unused

    @invariant()
    def no_slot_leaks(self) -> None:
        jobs = list(self.hall.jobs)
        assert self.hall.jobs.pools[0].used == sum(job.slots for job in jobs)
        over = [job for job in jobs if job.over]
        assert {id(job) for job in over} == {id(removal.job) for removal in self.hall.removals}

    @invariant()
    def everyone_is_somewhere(self) -> None:
        """Check that each open session is in the queue or in a job, with messages about its own tenant's jobs alone."""
        queued = {(one.tenant, one.name) for one in self.hall.jobs.queue.described(self.hall.now)}
        live = {(job.tenant, job.name) for job in self.hall.jobs.live}
        assert not queued & live
        for session in self.open:
            assert session[:2] in (live if "assigned" in self.hall.kinds(session) else queued)  # type: ignore[index]

    def teardown(self) -> None:
        self.hall.jobs.abort_all(pb.CONTROLLER_STOPPED, "the end")
        self.hall.carry_out()
        self.hall.removed()
        assert self.hall.jobs.pools[0].used == 0
        assert not self.open
        assert not self.hall.jobs.queue.described(self.hall.now)


@pytest.mark.parametrize("examples", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_in_any_schedule_quotas_hold_and_tenants_feel_nothing_of_each_other(examples: int) -> None:
    run_state_machine_as_test(AnySchedule, settings=settings(max_examples=examples, deadline=None))
