# SPDX-License-Identifier: Apache-2.0
"""Jobs that run get other slots, on a clock of the test's own."""

from __future__ import annotations

import time

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.job import Job, State
from p4reduce_controller.jobs.lifecycle import digest
from p4reduce_controller.jobs.moves import HOLD_S, LONG_REST_S, LOOK_S, REST_S
from p4reduce_controller.switches.availability import Unavailable
from p4reduce_controller.switches.pools import SlotRange
from p4reduce_controller.tenants.access import Caller, Role
from p4reduce_controller.tenants.quotas import Policy, Quota, Reservation
from tests.support.controller.desks import ONE, AnyOrder, ThreadsDesk, rejoin, restarted
from tests.support.controller.moves import Hall, report

pytestmark = pytest.mark.usefixtures("few_slots_do")


def test_a_job_is_moved_when_all_its_ranks_hold_and_who_waited_is_let_in() -> None:
    hall = Hall()
    waiting = hall.queue(8)
    hall.tick(LOOK_S)
    assert hall.asked("c") == [[0], [0]]
    assert hall.asked("a") == [[], []]
    hall.hold("c", 7, rank=0, quiet=False)
    hall.hold("c", 9, rank=1, quiet=False)
    assert hall.asked("c") == [[0, 9], [0]], "who is behind catches up"
    hall.hold("c", 9, rank=0)
    assert not hall.changes
    hall.hold("c", 9, rank=1)
    [job] = hall.changes
    assert job is hall.job("c")
    placement = job.placements[0]
    assert (placement.slots, placement.first_seq) == (SlotRange(4, 4), 100)
    assert hall.jobs.pools[0].used == 12, "some switch may have it where it was"
    hall.tick(60.0)
    assert hall.kinds(waiting)[-1] == "waiting"
    assert hall.released("c") == [[], []]
    hall.moved()
    assert hall.released("c") == [[(4, 100)], [(4, 100)]]
    assert hall.jobs.pools[0].used == 8
    hall.tick(0.1)
    assert hall.kinds(waiting)[-1] == "assigned"
    assert hall.job("d").ranges == {0: SlotRange(8, 8)}


def test_ranks_that_do_not_hold_soon_go_on_as_they_were_and_are_left_alone_for_long() -> None:
    hall = Hall()
    hall.queue(8)
    hall.tick(LOOK_S)
    hall.hold("c", 7, rank=0, quiet=False)
    hall.tick(HOLD_S)
    assert hall.released("c") == [[(0, 0)], [(0, 0)]]
    assert hall.job("c").ranges == {0: SlotRange(8, 4)}
    hall.tick(LONG_REST_S / 2)
    assert hall.asked("c") == [[0], [0]]
    hall.tick(LONG_REST_S)
    assert hall.asked("c") == [[0, 0], [0, 0]]


def test_ranks_of_different_rounds_stay_where_they_are() -> None:
    hall = Hall()
    hall.queue(8)
    hall.tick(LOOK_S)
    hall.hold("c", 7, rank=0, first_seq=100)
    hall.hold("c", 7, rank=1, first_seq=102)
    assert not hall.changes
    assert hall.released("c") == [[(0, 0)], [(0, 0)]]


@pytest.mark.parametrize("changing", [False, True])
def test_a_rank_that_is_lost_meanwhile_ends_the_job_and_all_its_slots_are_freed(changing: bool) -> None:
    hall = Hall()
    waiting = hall.queue(8)
    hall.tick(LOOK_S)
    hall.hold("c", 7, rank=0)
    if changing:
        hall.hold("c", 7, rank=1)
        assert hall.changes
    hall.jobs.lost(hall.sessions["c"][1])
    hall.carry_out()
    assert hall.last(hall.sessions["c"][0]).reason == pb.WORKER_LOST
    if changing:
        hall.moved()  # too late
        assert hall.released("c") == [[], []]
    hall.removed()
    assert hall.jobs.pools[0].used == 4
    hall.tick(LOOK_S)
    assert hall.kinds(waiting)[-1] == "assigned"


def test_what_could_not_be_kept_is_undone() -> None:
    hall = Hall()
    hall.queue(8)
    hall.tick(LOOK_S)
    first_seq = hall.job("c").first_seq
    for rank in range(2):
        hall.hold("c", 7, rank=rank)
    [job] = hall.changes
    hall.jobs.not_moved(job, "no space left on the device", hall.now)
    hall.carry_out()
    assert (job.ranges, job.slots, job.first_seq) == ({0: SlotRange(8, 4)}, 4, first_seq)
    assert (job.placements[0].slots, job.placements[0].first_seq) == (SlotRange(8, 4), first_seq)
    assert hall.released("c") == [[(0, 0)], [(0, 0)]]
    assert hall.jobs.pools[0].used == 8


def test_who_cannot_hold_is_not_asked() -> None:
    hall = Hall(holds=False)
    hall.queue(8)
    hall.tick(60.0)
    assert hall.asked("a") + hall.asked("c") == [[], [], [], []]


def test_a_job_that_hardly_uses_its_slots_gives_some_back_and_has_them_again_when_nobody_waits() -> None:
    hall = Hall(jobs="")
    hall.sessions = {"a": hall.begin("a", 16, holds=True)}
    waiting = hall.queue(8)
    hall.tick(60.0)
    assert hall.asked("a") == [[], []], "nobody knows yet what it uses"
    report(hall, "a", 2)
    hall.tick(LOOK_S)
    for rank in range(2):
        hall.hold("a", 3, rank=rank)
    job = hall.moved()
    assert (job.slots, job.ranges) == (2, {0: SlotRange(0, 2)})
    assert hall.released("a") == [[(2, 100)], [(2, 100)]]
    hall.tick(0.1)
    assert hall.kinds(waiting)[-1] == "assigned"
    hall.jobs.lost(waiting)
    hall.carry_out()
    report(hall, "a", 2, times=15)
    hall.tick(REST_S / 2)
    assert hall.asked("a") == [[0], [0]]
    hall.tick(REST_S)
    for rank in range(2):
        hall.hold("a", 9, rank=rank, first_seq=300)
    job = hall.moved()
    assert (job.slots, job.ranges, hall.jobs.pools[0].used) == (16, {0: SlotRange(0, 16)}, 16)
    assert hall.released("a") == [[(2, 100), (16, 300)]] * 2


def test_a_rank_that_comes_back_while_its_job_holds_is_asked_again() -> None:
    hall = Hall()
    for name in "ac":
        for rank, member in hall.job(name).members.items():
            member.key = digest(str(rank))
    hall.queue(8)
    hall.tick(LOOK_S)
    hall.hold("c", 7, rank=0)
    hall.sessions["c"][1] = rejoin(hall, hall.job("c"), 1)
    assert hall.asked("c") == [[0], [0]]
    hall.hold("c", 7, rank=1)
    assert hall.changes


@pytest.mark.parametrize("changed", [False, True])
def test_a_later_controller_lets_those_go_on_who_hold(changed: bool) -> None:
    """Whether their job was moved or not, they know by the round that they are told."""
    hall = Hall()
    hall.queue(8)
    hall.tick(LOOK_S)
    for rank in range(2):
        hall.hold("c", 7, rank=rank)
    job = hall.job("c")
    if changed:
        hall.jobs.moved(job, hall.now)  # and nobody was told
    else:
        hall.jobs.not_moved(job, "it ended", hall.now)
    hall.jobs.take_effects()
    later = restarted(hall)
    session = rejoin(later, job, 0)
    assert later.kinds(session) == ["ready", "release"]
    told = later.told[session][-1].release
    assert (told.slots, told.first_seq) == (4, 100) if changed else (4, job.first_seq)
    later.jobs.held(session, pb.Held(operations=7, quiet=True, first_seq=100), later.now)
    later.carry_out()
    assert later.told[session][-1].release == told


def test_a_later_controller_finishes_what_an_earlier_one_has_begun() -> None:
    hall = Hall()
    hall.queue(8)
    hall.tick(LOOK_S)
    for rank in range(2):
        hall.hold("c", 7, rank=rank)
    job = hall.job("c")
    assert job.moving
    later = restarted(hall)
    assert job.moving
    assert later.jobs.pools[0].used == 12, "as it is kept, its former slots are the switch's concern"
    session = rejoin(later, job, 0)
    assert later.kinds(session) == ["ready"], "it holds until every switch has its job in the new slots"
    later.jobs.moved(job, later.now)
    later.carry_out()
    assert later.told[session][-1].release == pb.Release(slots=4, first_seq=100)
    other = rejoin(later, job, 1)
    assert later.told[other][-1].release == pb.Release(slots=4, first_seq=100)
    assert later.jobs.pools[0].used == 8
    assert job.state is State.READY


def test_a_rank_that_held_and_came_back_has_to_hold_again() -> None:
    """It has begun anew with what it was asked, so what it said before is nothing that it would keep to."""
    hall = Hall()
    for rank, member in hall.job("c").members.items():
        member.key = digest(str(rank))
    hall.queue(8)
    hall.tick(LOOK_S)
    hall.hold("c", 7, rank=0)
    hall.sessions["c"][0] = rejoin(hall, hall.job("c"), 0)
    hall.hold("c", 7, rank=1)
    assert not hall.changes
    hall.hold("c", 7, rank=0)
    assert hall.changes


def test_what_answers_an_earlier_hold_is_no_answer() -> None:
    """The rank says it on its new stream, before it reads that it was released, and is to hold again."""
    hall = Hall()
    for rank, member in hall.job("c").members.items():
        member.key = digest(str(rank))
    hall.queue(8)
    hall.tick(LOOK_S)
    hall.hold("c", 7, rank=0)
    [earlier] = [one.hold.number for one in hall.told[hall.sessions["c"][1]] if one.HasField("hold")]
    session = hall.sessions["c"][1] = rejoin(hall, hall.job("c"), 1)
    assert hall.kinds(session) == ["ready", "release", "hold"]
    hall.jobs.held(session, pb.Held(operations=7, quiet=True, first_seq=100, number=earlier), hall.now)
    hall.carry_out()
    assert not hall.changes
    hall.hold("c", 7, rank=1)
    assert hall.changes


def test_a_job_of_several_threads_in_memory_is_left_where_it_is() -> None:
    desk = ThreadsDesk(ONE)
    gone = desk.enter(0, 1, "gone", slots=1, threads=1)
    assert desk.hear_thread(gone, 0)
    desk.installed()
    desk.installs.clear()
    desk.all_heard(0, 0, slots=8, host="one")
    desk.installed()
    desk.jobs.leave(gone, desk.now)
    desk.carry_out()
    desk.removed()
    job = desk.jobs.named("job")
    assert job is not None
    assert job.in_memory
    desk.join(0, 1, "waits", slots=8, queue_s=100.0)
    desk.tick(LOOK_S)
    assert not desk.changes
    assert (job.slots, desk.jobs.pools[0].used) == (8, 8)


def test_an_error_of_ours_in_looking_costs_nobody_anything(caplog: pytest.LogCaptureFixture) -> None:
    hall = Hall()

    def fails(_: list[Job]) -> None:
        raise RuntimeError("ours")

    hall.jobs._compaction._wanted, wanted = fails, hall.jobs._compaction._wanted
    hall.queue(8)
    hall.tick(LOOK_S)
    assert "no slots are moved for the next 60 s" in caplog.text
    hall.jobs._compaction._wanted = wanted
    hall.tick(LONG_REST_S / 2)
    assert hall.asked("c") == [[], []]
    hall.tick(LONG_REST_S)
    assert hall.asked("c") == [[0], [0]]


def test_a_job_is_not_moved_while_its_switch_is_away() -> None:
    hall = Hall()
    away = [Unavailable("it is not reached", brief=True)]
    hall.switches.conditions = lambda _: away  # type: ignore[method-assign]
    hall.queue(8)
    hall.tick(LOOK_S)
    assert hall.asked("c") == [[], []]
    away.clear()
    hall.tick(LOOK_S)
    hall.hold("c", 7, rank=0)
    away.append(Unavailable("it is not reached"))
    hall.hold("c", 7, rank=1)
    assert not hall.changes
    assert hall.released("c") == [[(0, 0)], [(0, 0)]]


def test_who_does_not_hold_is_asked_ever_more_rarely_and_after_the_others() -> None:
    hall = Hall()
    hall.queue(8)
    asked = 0
    for _ in range(int(1000 / HOLD_S)):
        hall.tick(HOLD_S)
        asked += bool(hall.asked("c")[0])
        hall.told.clear()
    assert 4 <= asked <= 6, "after 60, 120, 240 and 480 s"
    [other] = [hall.begin("e", 4, holds=True)]
    hall.jobs._compaction._look_at = hall.now  # e is at 4 to 8; a, c and e are in a row
    hall.sessions["e"] = other
    assert hall.job("e").ranges == {0: SlotRange(4, 4)}
    hall.job("c").cooldown_until = hall.now
    tried: list[list[str]] = []

    def wanted(jobs: list[Job]) -> None:
        tried.append([job.name for job in jobs])

    hall.jobs._compaction._wanted = wanted
    hall.job("a").tenant, hall.job("c").tenant = "anna", "carla"
    hall.job("e").tenant = "carla"
    hall.tick(LOOK_S)
    assert tried == [["a"], ["a", "e"], ["a", "c", "e"]]


def test_nobody_is_shrunk_for_slots_that_are_kept_for_its_tenant() -> None:
    hall = Hall("")
    now = time.time()
    carol, dave = (Caller(name, Role.USER, name) for name in ("carol", "dave"))
    hall.jobs.tenancy.policy = Policy(reservations=[Reservation("carol", 12, now - 10, now + 1e6)])
    joins = [pb.Join(job="big", rank=rank, world_size=2, slots=12, holds=True) for rank in range(2)]
    for join in joins:
        hall.jobs.join(("big", join.rank, 0), join, hall.now, carol)
        hall.carry_out()
    for join in joins:
        hall.hear(("big", join.rank, 0))
    hall.installed()
    hall.sessions["big"] = [("big", rank, 0) for rank in range(2)]
    job = hall.jobs.named("big", "carol")
    assert job is not None
    for member in job.members.values():
        member.used.extend([1] * 5)
    hall.jobs.join(("o", 0, 0), pb.Join(job="o", world_size=1, slots=8, queue_s=1000.0), hall.now, dave)
    hall.tick(LOOK_S)
    assert hall.asked("big") == [[], []]
    hall.jobs.tenancy.policy = Policy(reservations=[Reservation("carol", 1, now - 10, now + 1e6)])
    hall.tick(LOOK_S)
    assert hall.asked("big") == [[0], [0]]


@pytest.mark.parametrize("gathers", [False, True])
def test_a_job_grows_while_another_waits_for_its_own_quota_but_not_while_one_gathers(gathers: bool) -> None:
    hall = Hall("a")
    hall.jobs.tenancy.policy = Policy(quotas={"eve": Quota(jobs=0)})
    hall.job("a").most_slots = 8
    report(hall, "a", 4)
    join = pb.Join(job="e", world_size=1, slots=1, queue_s=1000.0)
    hall.jobs.join(("e", 0, 0), join, hall.now, Caller("eve", Role.USER, "eve"))
    if gathers:
        hall.join(0, 2, "g", slots=1)
    hall.tick(LOOK_S)
    assert hall.asked("a") == ([[], []] if gathers else [[0], [0]])


class AnyMove(AnyOrder):
    """As there, with more jobs that are ready, and ranks that hold together."""

    moved = 0

    @initialize()
    def fragment(self) -> None:
        for name in "abc":
            self.begin(name, 4)
        self.desk.jobs.leave(self.sessions[1], self.desk.now)
        self.desk.carry_out()
        self.desk.removed()
        self.sessions.append(self.desk.join(0, 1, "f", 99, slots=8, queue_s=1000.0))
        self.desk.tick(REST_S)

    @rule(name=st.sampled_from("abcdef"), slots=st.integers(1, 9))
    def begin(self, name: str, slots: int) -> None:
        self.join(name, 0, 1, slots)
        if self.sessions[-1] in self.desk.told and self.desk.kinds(self.sessions[-1]) == ["assigned"]:
            self.desk.hear(self.sessions[-1])
        self.desk.installed()

    @rule()
    def a_while_passes(self) -> None:
        self.desk.tick(REST_S)

    @rule(again=st.booleans())
    def all_hold(self, again: bool) -> None:
        for job in self.desk.jobs.live:
            for rank in job.workers if job.move is not None or again else ():
                number = job.move.numbers.get(rank, 0) if job.move is not None else 0
                held = pb.Held(operations=3, quiet=True, first_seq=8, number=number)
                self.desk.jobs.held(job.members[rank].session, held, self.desk.now)
        self.desk.carry_out()
        self.moved += len(self.desk.changes)


def test_whatever_happens_meanwhile_no_slot_is_lost_or_anothers() -> None:
    run_state_machine_as_test(AnyMove, settings=settings(max_examples=100, stateful_step_count=40, deadline=None))


def test_the_schedules_can_move_a_job() -> None:
    schedule = AnyMove()
    schedule.fragment()
    schedule.all_hold(again=False)
    assert schedule.moved > 0
