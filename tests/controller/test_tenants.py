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
from tests.support.controller.jobs_harness import ALICE, BOB, CAROL, MONTH, TenantsHarness

OPERATOR = Caller("olga", Role.OPERATOR, "olga")
VIEWER = Caller("vera", Role.VIEWER, "alice")


def test_names_of_jobs_are_each_tenants_own() -> None:
    harness = TenantsHarness()
    mine, other = harness.begin(ALICE), harness.begin(BOB)
    assert [harness.kinds(one) for one in (mine, other)] == [["assigned", "ready"]] * 2
    assert [(job.tenant, job.user) for job in harness.jobs] == [("alice", "alice"), ("bob", "bob")]
    harness.come(BOB, rank=1, world_size=2)  # conflicts with his own job
    assert harness.kinds(mine)[-1] == "ready"


def test_more_slots_than_the_quota_are_refused_for_good() -> None:
    harness = TenantsHarness(Policy(Quota(slots=8)))
    refused = harness.last(harness.come(ALICE, slots=9, queue_s=60))
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
    harness = TenantsHarness(Policy(quota))
    first, _ = harness.begin(ALICE, "one"), harness.begin(ALICE, "two")
    refused = harness.last(harness.come(ALICE, "three"))
    assert (refused.reason, text in refused.message) == (pb.SLOTS_EXHAUSTED, True)
    harness.begin(BOB, "one")
    waits = harness.come(ALICE, "four", queue_s=60)
    harness.tick()
    assert (harness.place(waits), harness.told[waits][-1].waiting.why) == (1, text)
    harness.leave(first)
    harness.tick(0.1)
    assert "assigned" in harness.kinds(waits)


def test_a_place_is_told_whenever_it_changes_and_the_wait_has_an_end() -> None:
    harness = TenantsHarness(slots=4)
    running = harness.begin(ALICE)
    waits = [harness.come(who, "next", queue_s=seconds) for who, seconds in ((BOB, 30), (CAROL, 40))]
    harness.tick(0.1)
    assert [harness.place(one) for one in waits] == [1, 2]
    harness.tick(1)
    assert [len(harness.told[one]) for one in waits] == [1, 1]
    harness.tick(29)
    refused = harness.last(waits[0])
    assert refused.reason == pb.SLOTS_EXHAUSTED
    assert "after 30 s in the queue, position 1 of 2: 4 slots asked, 0 of 4 free" in refused.message
    harness.tick(0.1)
    assert harness.place(waits[1]) == 1
    harness.leave(running)
    harness.tick(0.1)
    assert "assigned" in harness.kinds(waits[1])


def test_all_ranks_of_a_job_wait_and_one_that_goes_ends_it() -> None:
    harness = TenantsHarness(slots=4)
    running = harness.begin(ALICE)
    waits = [harness.come(BOB, rank=rank, world_size=2, queue_s=99) for rank in range(2)]
    again = harness.come(BOB, rank=1, world_size=2, queue_s=99)
    for one in (*waits, again):
        assert "rank 1 is refused: this rank has joined already" in harness.last(one).message
    waits = [harness.come(BOB, rank=rank, world_size=2, queue_s=99) for rank in range(2)]
    harness.lose(waits[1])
    assert "rank 1 was lost" in harness.last(waits[0]).message
    waits = [harness.come(BOB, rank=rank, world_size=2, queue_s=99) for rank in range(2)]
    harness.leave(running)
    harness.tick()
    assert all("assigned" in harness.kinds(one) for one in waits)


def test_who_holds_nothing_is_behind_no_one_who_does() -> None:
    harness = TenantsHarness(slots=8)
    running = [harness.begin(ALICE, "one"), harness.begin(ALICE, "two")]
    flood = [harness.come(ALICE, f"more {number}", queue_s=99) for number in range(20)]
    waits = harness.come(BOB, queue_s=99)
    harness.tick()
    assert harness.place(waits) == 1
    harness.leave(running[0])
    harness.tick()
    assert "assigned" in harness.kinds(waits)
    assert {harness.kinds(one)[-1] for one in flood} == {"waiting"}


def test_a_higher_priority_goes_first() -> None:
    harness = TenantsHarness(Policy(quotas={"carol": Quota(priority=1)}), slots=4)
    running = harness.begin(ALICE)
    bob, carol = harness.come(BOB, queue_s=99), harness.come(CAROL, queue_s=99)
    harness.tick()
    assert (harness.place(bob), harness.place(carol)) == (2, 1)
    harness.leave(running)
    harness.tick()
    assert "assigned" in harness.kinds(carol)


def test_a_job_without_room_holds_others_back_for_a_while_within_its_share() -> None:
    harness = TenantsHarness(slots=12)
    harness.begin(ALICE, slots=10)
    waits = harness.come(BOB, slots=4, queue_s=1000)
    small = harness.come(CAROL, slots=1, queue_s=1000)
    harness.tick()
    assert harness.told[small][-1].waiting.why == "earlier jobs in the queue have no room yet"
    harness.tick(HOLD_BACK)
    assert "assigned" in harness.kinds(small)
    assert "assigned" not in harness.kinds(waits)


def test_who_asks_for_more_than_its_share_holds_nobody_back() -> None:
    harness = TenantsHarness(slots=12)
    harness.begin(ALICE, slots=2)
    harness.come(BOB, slots=12, queue_s=1000)
    assert harness.kinds(harness.come(CAROL, slots=2, queue_s=1000)) == ["assigned"]


def test_what_is_reserved_is_there_until_its_end() -> None:
    reserved = Reservation("carol", 8, MONTH + 50, MONTH + 200)
    harness = TenantsHarness(Policy(reservations=(reserved,)))
    harness.begin(ALICE, slots=4)
    assert "12 slots asked, 4 of 16 free" in harness.last(harness.come(BOB, slots=12)).message
    waits = harness.come(BOB, slots=5, queue_s=1000)
    harness.tick()
    assert harness.place(waits) == 1
    carols = harness.begin(CAROL, slots=6)  # though another waits before
    assert "earlier jobs in the queue" in harness.last(harness.come(CAROL, "more", slots=3)).message
    harness.begin(CAROL, "more", slots=2)
    harness.tick(90)
    assert harness.place(waits) == 1
    harness.tick(20)  # the reservation has ended, and its jobs run on
    assert harness.kinds(carols)[-1] == "ready"
    assert "assigned" not in harness.kinds(waits)
    harness.leave(carols)
    harness.tick()
    assert "assigned" in harness.kinds(waits)


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
    harness = TenantsHarness(Policy(quotas={"alice": Quota(slot_hours=1.0)}))
    mine, other = harness.begin(ALICE), harness.begin(BOB)
    for _ in range(9):
        harness.tick(100)
    ended = harness.last(mine)
    assert (ended.reason, "has used up the 1 slot-hours of 2027-01" in ended.message) == (pb.QUOTA_EXCEEDED, True)
    assert harness.kinds(other)[-1] == "ready"
    harness.removed()
    assert harness.last(harness.come(ALICE, queue_s=99)).reason == pb.QUOTA_EXCEEDED
    assert harness.tenancy.hours("alice") == pytest.approx(1.0)
    harness.tick(31 * 86400.0)
    assert harness.kinds(harness.come(ALICE)) == ["assigned"]


def test_use_survives_a_restart_with_what_ran_meanwhile() -> None:
    harness = TenantsHarness(returns=True)
    harness.begin(ALICE, slots=2)
    harness.begin(BOB, slots=2)
    harness.tick(1800)
    harness.jobs.failed(next(job for job in harness.jobs if job.tenant == "bob"), "it ends")
    [job] = harness.jobs.live
    harness.now += 300  # since the last charge
    kept = harness.tenancy.to_json([job], harness.now)
    harness.now += 600  # nobody charges
    after = Tenancy(None, lambda: MONTH + harness.now)
    after.restore(kept, [job], 5.0)
    after.charge(job, 5.0)
    assert (after.hours("alice"), after.hours("bob")) == (pytest.approx(1.5), pytest.approx(1.0))
    for wrong in ({"at": "x"}, {"slot_seconds": {"a": -1.0}}, {"month": 3}, {"slot_seconds": {"a": math.nan}}):
        with pytest.raises(ValueError):
            Tenancy().restore({**kept, **wrong}, [], 0.0)


def test_who_sees_what() -> None:
    harness = TenantsHarness(slots=8)
    for who in (ALICE, BOB):
        harness.begin(who)
    for who in (ALICE, BOB):
        harness.come(who, "next", queue_s=99)
    everything = harness.status()
    for who in (ALICE, VIEWER):
        seen = seen_by(who, everything)
        assert {job.tenant for job in (*seen.jobs, *seen.queue)} == {one.name for one in seen.tenants} == {"alice"}
        assert seen.joins == 0
        assert "bob" not in str(seen)
    for who in (OPERATOR, Caller("page", Role.VIEWER, "")):
        assert seen_by(who, everything) == everything


def test_who_ends_what() -> None:
    harness = TenantsHarness(slots=8)
    alices, bobs = harness.begin(ALICE), harness.begin(BOB)
    queued = harness.come(BOB, "next", queue_s=99)
    for who, tenant in ((CAROL, ""), (CAROL, "alice"), (ALICE, "bob"), (VIEWER, ""), (VIEWER, "alice")):
        with pytest.raises(LookupError) as refused:
            harness.jobs.end("job", who, tenant, "")
        mine = "'job'" if who is ALICE else "none"
        assert str(refused.value) == f"there is no job 'job'; the jobs are {mine}"
    with pytest.raises(LookupError, match="the tenants alice, bob each have a job of that name; name the tenant"):
        harness.jobs.end("job", OPERATOR, "", "")
    harness.carry_out()
    assert [harness.kinds(one)[-1] for one in (alices, bobs)] == ["ready"] * 2
    assert harness.jobs.end("job", ALICE, "", "a mistake") == "alice"
    harness.carry_out()
    ended = harness.last(alices)
    assert (ended.reason, ended.message) == (pb.ENDED_BY_USER, "job 'job': was ended by alice: a mistake")
    assert harness.jobs.end("job", OPERATOR, "", "") == "bob"
    assert harness.jobs.end("next", OPERATOR, "", "") == "bob"
    harness.carry_out()
    assert harness.last(queued).reason == harness.last(bobs).reason == pb.ENDED_BY_USER


def test_coming_back_to_a_job_of_another_tenant_is_as_to_none() -> None:
    harness = TenantsHarness(returns=True)
    session = harness.begin(ALICE)
    assigned = harness.assigned(session)

    def back(caller: Caller, key: str, generation: int = assigned.generation) -> str:
        attempt = ("back", len(harness.told))
        rejoin = pb.Rejoin(job=assigned.job, generation=generation, rank=0, key=key)
        harness.jobs.rejoin(attempt, rejoin, harness.now, caller)
        harness.carry_out()
        return harness.last(attempt).message.partition(": ")[2]

    unknown = back(BOB, "", generation=assigned.generation ^ 1)
    assert back(BOB, assigned.rejoin_key) == back(BOB, "") == unknown
    assert harness.kinds(session)[-1] == "ready"
    harness.lose(session)
    assert back(BOB, assigned.rejoin_key) == unknown
    assert "was lost" in back(ALICE, assigned.rejoin_key)
    assert digest(assigned.rejoin_key)


def test_what_begins_and_ends_is_noted() -> None:
    harness = TenantsHarness()
    harness.leave(harness.begin(ALICE, "one"))
    harness.lose(harness.begin(ALICE, "two"))
    assert [name for name, _ in harness.noted] == ["one", "one", "two", "two"]
    assert [outcome for _, outcome in harness.noted][:3] == ["", "finished", ""]
    assert "was lost" in harness.noted[-1][1]


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
        self.harness = TenantsHarness(Policy(Quota(), TENANTS, (RESERVED,)), slots=16)
        self.sessions: list[object] = []
        self.carol_came = False
        self.spent: Counter[str] = Counter()

    @property
    def open(self) -> list[object]:
        return [one for one in self.sessions if one not in self.harness.ended]

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
            self.harness.come(CALLERS[tenant], name, rank, size, slots=slots, queue_s=queue, timeout_s=join_timeout)
        )

    @precondition(lambda self: self.open)
    @rule(data=st.data(), how=st.sampled_from(["hear", "hear", "leave", "lost"]))
    def something_of_a_rank(self, data: st.DataObject, how: str) -> None:
        session = data.draw(st.sampled_from(self.open))
        if how == "hear":
            if "assigned" in self.harness.kinds(session):
                self.harness.hear(session)
            return
        others = self.states(but=session[0])  # type: ignore[index]
        if how == "leave":
            self.harness.jobs.leave(session, self.harness.now)
        else:
            self.harness.jobs.lost(session)
        self.harness.carry_out()
        assert self.states(but=session[0]) == others, "another tenant's job has felt that"  # type: ignore[index]

    @rule(tenant=st.sampled_from(sorted(TENANTS)), name=st.sampled_from(NAMES), of=st.sampled_from(["", *TENANTS]))
    def ends(self, tenant: str, name: str, of: str) -> None:
        others = self.states(but=tenant)
        try:
            assert self.harness.jobs.end(name, CALLERS[tenant], of, "") == tenant
            assert of in ("", tenant)
        except LookupError:
            pass
        self.harness.carry_out()
        assert self.states(but=tenant) == others

    def states(self, but: object) -> list[tuple[int, State, int]]:
        return [(job.number, job.state, len(job.members)) for job in self.harness.jobs if job.tenant != but]

    @rule()
    def switches_set_up(self) -> None:
        self.harness.installed()

    @rule()
    def switches_forget(self) -> None:
        self.harness.removed()

    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        for job in self.harness.jobs.live:
            self.spent[job.tenant] += job.slots * seconds  # type: ignore[assignment]
        self.harness.tick(seconds)

    @invariant()
    def no_quota_is_broken(self) -> None:
        slots: Counter[str] = Counter()
        jobs: Counter[str] = Counter()
        for job in self.harness.jobs:
            slots[job.tenant] += job.slots
            jobs[job.tenant] += 1
        for tenant, quota in TENANTS.items():
            assert slots[tenant] <= quota.slots
            assert jobs[tenant] <= quota.jobs
            assert self.harness.tenancy.hours(tenant) * 3600 == pytest.approx(self.spent[tenant])
            queued = [one for one in self.harness.jobs.queue.described(self.harness.now) if one.tenant == tenant]
            assert len(queued) <= quota.queued
        for job in self.harness.jobs.live:
            assert self.harness.tenancy.hours(job.tenant) < TENANTS[job.tenant].slot_hours
        # Slots that carol has reserved and does not use are free for her, in a row unless they were in use meanwhile.
        unused = max(0, RESERVED.slots - slots["carol"])
        assert self.harness.jobs.pools[0].free >= unused
        assert self.carol_came or self.harness.jobs.pools[0].longest >= unused

    @invariant()
    def no_slot_leaks(self) -> None:
        jobs = list(self.harness.jobs)
        assert self.harness.jobs.pools[0].used == sum(job.slots for job in jobs)
        over = [job for job in jobs if job.over]
        assert {id(job) for job in over} == {id(removal.job) for removal in self.harness.removals}

    @invariant()
    def everyone_is_somewhere(self) -> None:
        """Check that each open session is in the queue or in a job, with messages about its own tenant's jobs alone."""
        queued = {(one.tenant, one.name) for one in self.harness.jobs.queue.described(self.harness.now)}
        live = {(job.tenant, job.name) for job in self.harness.jobs.live}
        assert not queued & live
        for session in self.open:
            assert session[:2] in (live if "assigned" in self.harness.kinds(session) else queued)  # type: ignore[index]

    def teardown(self) -> None:
        self.harness.jobs.abort_all(pb.CONTROLLER_STOPPED, "the end")
        self.harness.carry_out()
        self.harness.removed()
        assert self.harness.jobs.pools[0].used == 0
        assert not self.open
        assert not self.harness.jobs.queue.described(self.harness.now)


@pytest.mark.parametrize("examples", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_in_any_schedule_quotas_hold_and_tenants_feel_nothing_of_each_other(examples: int) -> None:
    run_state_machine_as_test(AnySchedule, settings=settings(max_examples=examples, deadline=None))
