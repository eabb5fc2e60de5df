# SPDX-License-Identifier: Apache-2.0
"""Jobs shrink for others and grow again, without the slots that others need, wait for or have reserved."""

from __future__ import annotations

import time

import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.job import Job
from p4reduce_controller.jobs.slot_compaction import CHECK_INTERVAL_S, COOLDOWN_S, LONG_COOLDOWN_S, PAUSE_TIMEOUT_S
from p4reduce_controller.jobs.waitlist import HOLD_BACK
from p4reduce_controller.switches.pools import SlotRange
from p4reduce_controller.tenants.access import Caller, Role
from p4reduce_controller.tenants.quotas import Policy, Quota, Reservation
from tests.support.controller.jobs_harness import LEAF1, LEAF2, SPINE, CompactionHarness, TreeHarness, report

pytestmark = pytest.mark.usefixtures("few_slots_do")


def test_a_job_that_hardly_uses_its_slots_gives_some_back_and_has_them_again_when_nobody_waits() -> None:
    harness = CompactionHarness(jobs="")
    harness.sessions = {"a": harness.begin("a", 16, holds=True)}
    waiting = harness.queue(8)
    harness.tick(60.0)
    assert harness.asked("a") == [[], []], "nobody knows yet what it uses"
    report(harness, "a", 2)
    harness.tick(CHECK_INTERVAL_S)
    harness.all_hold("a", 3)
    job = harness.moved()
    assert (job.slots, job.ranges) == (2, {0: SlotRange(0, 2)})
    assert harness.released("a") == [[(2, 100)], [(2, 100)]]
    harness.tick(0.1)
    assert harness.kinds(waiting)[-1] == "assigned"
    harness.lose(waiting)
    report(harness, "a", 2, times=15)
    harness.tick(COOLDOWN_S / 2)
    assert harness.asked("a") == [[0], [0]]
    harness.tick(COOLDOWN_S)
    harness.all_hold("a", 9, first_seq=300)
    job = harness.moved()
    assert (job.slots, job.ranges, harness.jobs.pools[0].used) == (16, {0: SlotRange(0, 16)}, 16)
    assert harness.released("a") == [[(2, 100), (16, 300)]] * 2


def test_nobody_is_shrunk_for_slots_that_are_kept_for_its_tenant() -> None:
    harness = CompactionHarness("")
    now = time.time()
    carol, dave = (Caller(name, Role.USER, name) for name in ("carol", "dave"))
    harness.jobs.tenancy.policy = Policy(reservations=[Reservation("carol", 12, now - 10, now + 1e6)])
    joins = [pb.Join(job="big", rank=rank, world_size=2, slots=12, holds=True) for rank in range(2)]
    for join in joins:
        harness.jobs.join(("big", join.rank, 0), join, harness.now, carol)
        harness.carry_out()
    for join in joins:
        harness.hear(("big", join.rank, 0))
    harness.installed()
    harness.sessions["big"] = [("big", rank, 0) for rank in range(2)]
    job = harness.jobs.named("big", "carol")
    for member in job.members.values():
        member.used.extend([1] * 5)
    harness.jobs.join(("o", 0, 0), pb.Join(job="o", world_size=1, slots=8, queue_s=1000.0), harness.now, dave)
    harness.tick(CHECK_INTERVAL_S)
    assert harness.asked("big") == [[], []]
    harness.jobs.tenancy.policy = Policy(reservations=[Reservation("carol", 1, now - 10, now + 1e6)])
    harness.tick(CHECK_INTERVAL_S)
    assert harness.asked("big") == [[0], [0]]


@pytest.mark.parametrize("gathers", [False, True])
def test_a_job_grows_while_another_waits_for_its_own_quota_but_not_while_one_gathers(gathers: bool) -> None:
    harness = CompactionHarness("a")
    harness.jobs.tenancy.policy = Policy(quotas={"eve": Quota(jobs=0)})
    harness.job("a").most_slots = 8
    report(harness, "a", 4)
    join = pb.Join(job="e", world_size=1, slots=1, queue_s=1000.0)
    harness.jobs.join(("e", 0, 0), join, harness.now, Caller("eve", Role.USER, "eve"))
    if gathers:
        harness.join(0, 2, "g", slots=1)
    harness.tick(CHECK_INTERVAL_S)
    assert harness.asked("a") == ([[], []] if gathers else [[0], [0]])


def report_to(job: Job, slots: int) -> None:
    for member in job.members.values():
        member.used.extend([slots] * 5)


def test_a_job_does_not_grow_beyond_a_quota_that_another_has_used_meanwhile() -> None:
    harness = CompactionHarness(jobs="")
    eve = Caller("eve", Role.USER, "eve")
    harness.jobs.tenancy.policy = Policy(quotas={"eve": Quota(slots=8)})
    for rank in range(2):
        harness.jobs.join(
            ("a", rank, 0), pb.Join(job="a", rank=rank, world_size=2, slots=2, holds=True), harness.now, eve
        )
        harness.carry_out()
    harness.sessions = {"a": [("a", rank, 0) for rank in range(2)]}
    for session in harness.sessions["a"]:
        harness.hear(session)
    harness.installed()
    job = harness.jobs.named("a", "eve")
    job.most_slots = 8  # it has given 6 back
    report_to(job, 2)
    harness.tick(CHECK_INTERVAL_S)
    assert job.move.slots == 8
    harness.jobs.join(("e", 0, 0), pb.Join(job="e", world_size=1, slots=6), harness.now, eve)
    harness.carry_out()
    for session in harness.sessions["a"]:
        number = harness.told[session][-1].hold.number
        harness.jobs.held(session, pb.Held(operations=1, quiet=True, first_seq=100, number=number), harness.now)
    harness.carry_out()
    assert harness.jobs._registry.held.slots["eve"] <= 8


class Leaves(TreeHarness):
    def hold(self, sessions: list[object]) -> None:
        for session in sessions:
            number = self.told[session][-1].hold.number
            self.jobs.held(session, pb.Held(operations=1, quiet=True, first_seq=100, number=number), self.now)
        self.carry_out()

    def running(self, name: str, slots: int, *switches: int) -> list[object]:
        sessions = [
            self.join(rank, len(switches), name, slots=slots, holds=True, attempt=7) for rank in range(len(switches))
        ]
        for session, switch in zip(sessions, switches, strict=True):
            assert self.hear(session, switch)
        self.installed()
        return sessions


def crowded() -> tuple[Leaves, list[object], list[object]]:
    """Return a harness and the sessions of jobs c and g, where c has to move for others to find slots.

    The leaf's slots 0-3, 12 and 13 are free, and c has 4-11; g gathers, for 4 slots, and d waits for 6.
    """
    harness = Leaves(slots=16)
    gone = harness.running("b", 4, LEAF1, LEAF1)
    c = harness.running("c", 8, LEAF1, LEAF1)
    gone += harness.running("k", 2, LEAF1, LEAF1)
    harness.running("f", 2, LEAF1, LEAF1)
    harness.running("y", 12, LEAF2, LEAF2)
    harness.running("z", 12, SPINE, SPINE)
    for session in gone:
        harness.leave(session)
    harness.removed()
    g = [harness.join(rank, 2, "g", slots=4) for rank in range(2)]
    assert harness.kinds(g[0]) == ["assigned"]
    d = harness.join(0, 2, "d", slots=6, queue_s=100.0)
    assert harness.kinds(d) == []
    return harness, c, g


@pytest.mark.parametrize("moves", [False, True])
def test_a_job_that_gathers_finds_its_slots_at_a_leaf_while_another_is_moved(moves: bool) -> None:
    """Before and after the move there is room for it. In between, c has its former slots and its new ones."""
    harness, c, g = crowded()
    if moves:
        harness.tick(CHECK_INTERVAL_S)
        harness.hold(c)
        assert harness.changes, "c is moved"
    for session in g:
        harness.hear(session, LEAF1)
    assert "abort" not in harness.kinds(g[0]), harness.last(g[0]).message


@pytest.mark.parametrize("grows", [False, True])
def test_a_job_does_not_grow_into_what_one_that_gathers_meanwhile_needs(grows: bool) -> None:
    harness = Leaves(slots=16)
    c = harness.running("c", 8, LEAF1, LEAF1)
    job = harness.jobs.named("c")
    job.most_slots = 16  # it has given half back
    report_to(job, 8)
    if grows:
        harness.tick(CHECK_INTERVAL_S)
        assert job.move is not None
    g = [harness.join(rank, 2, "g", slots=4) for rank in range(2)]
    assert harness.kinds(g[0])[0] == "assigned"
    harness.hold(c)
    for session in g:
        harness.hear(session, LEAF1)
    assert "abort" not in harness.kinds(g[0]), harness.last(g[0]).message


def test_who_would_not_wait_does_so_while_a_job_has_its_former_slots_and_its_new_ones() -> None:
    harness = CompactionHarness()
    harness.queue(8)
    harness.tick(HOLD_BACK)  # from now on, others may go ahead
    for _ in range(int(2 * LONG_COOLDOWN_S / PAUSE_TIMEOUT_S)):
        if harness.job("c").move is None:
            harness.tick(PAUSE_TIMEOUT_S)
    harness.all_hold("c", 7)
    assert harness.job("c").moving
    first, second = (harness.join(0, 1, name, slots=4) for name in "ef")
    assert harness.kinds(first) == ["assigned"]
    harness.tick(0.1)
    assert "abort" not in harness.kinds(second)
    harness.moved()
    harness.tick(0.1)
    assert harness.kinds(second)[-1] == "assigned"
    third = harness.join(0, 1, "g", slots=4)
    assert harness.kinds(third) == ["abort"]
