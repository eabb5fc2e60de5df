# SPDX-License-Identifier: Apache-2.0
"""Jobs that run get other slots, on a clock of the test's own."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.holding import Holding
from p4reduce_controller.jobs.job import Job, State
from p4reduce_controller.jobs.slot_compaction import CHECK_INTERVAL_S, COOLDOWN_S, LONG_COOLDOWN_S, PAUSE_TIMEOUT_S
from p4reduce_controller.jobs.waitlist import HOLD_BACK
from p4reduce_controller.switches.availability import Unavailable
from p4reduce_controller.switches.pools import SlotRange
from p4reduce_controller.tenants.access import Caller, Role
from p4reduce_controller.tenants.quotas import Policy, Quota, Reservation
from tests.support.controller.jobs_harness import (
    LEAF1,
    LEAF2,
    ONE,
    SPINE,
    AnyOrder,
    CompactionHarness,
    ThreadsHarness,
    TreeHarness,
    rejoin,
    report,
    restarted,
)

pytestmark = pytest.mark.usefixtures("few_slots_do")


def test_a_job_is_moved_when_all_its_ranks_hold_and_who_waited_is_let_in() -> None:
    harness = CompactionHarness()
    waiting = harness.make_room()
    assert harness.asked("c") == [[0], [0]]
    assert harness.asked("a") == [[], []]
    harness.hold("c", 7, rank=0, quiet=False)
    harness.hold("c", 9, rank=1, quiet=False)
    assert harness.asked("c") == [[0, 9], [0]], "who is behind catches up"
    harness.hold("c", 9, rank=0)
    assert not harness.changes
    harness.hold("c", 9, rank=1)
    [job] = harness.changes
    assert job is harness.job("c")
    placement = job.placements[0]
    assert (placement.slots, placement.first_seq) == (SlotRange(4, 4), 100)
    assert harness.jobs.pools[0].used == 12, "some switch may have it where it was"
    harness.tick(60.0)
    assert harness.kinds(waiting)[-1] == "waiting"
    assert harness.released("c") == [[], []]
    harness.moved()
    assert harness.released("c") == [[(4, 100)], [(4, 100)]]
    assert harness.jobs.pools[0].used == 8
    harness.tick(0.1)
    assert harness.kinds(waiting)[-1] == "assigned"
    assert harness.job("d").ranges == {0: SlotRange(8, 8)}


def test_ranks_that_do_not_hold_soon_go_on_as_they_were_and_are_left_alone_for_long() -> None:
    harness = CompactionHarness()
    harness.make_room()
    harness.hold("c", 7, rank=0, quiet=False)
    harness.tick(PAUSE_TIMEOUT_S)
    assert harness.released("c") == [[(0, 0)], [(0, 0)]]
    assert harness.job("c").ranges == {0: SlotRange(8, 4)}
    harness.tick(LONG_COOLDOWN_S / 2)
    assert harness.asked("c") == [[0], [0]]
    harness.tick(LONG_COOLDOWN_S)
    assert harness.asked("c") == [[0, 0], [0, 0]]


def test_ranks_of_different_rounds_stay_where_they_are() -> None:
    harness = CompactionHarness()
    harness.make_room()
    harness.hold("c", 7, rank=0, first_seq=100)
    harness.hold("c", 7, rank=1, first_seq=102)
    assert not harness.changes
    assert harness.released("c") == [[(0, 0)], [(0, 0)]]


@pytest.mark.parametrize("changing", [False, True])
def test_a_rank_that_is_lost_meanwhile_ends_the_job_and_all_its_slots_are_freed(changing: bool) -> None:
    harness = CompactionHarness()
    waiting = harness.make_room()
    harness.hold("c", 7, rank=0)
    if changing:
        harness.hold("c", 7, rank=1)
        assert harness.changes
    harness.lose(harness.sessions["c"][1])
    assert harness.last(harness.sessions["c"][0]).reason == pb.WORKER_LOST
    if changing:
        harness.moved()  # too late
        assert harness.released("c") == [[], []]
    harness.removed()
    assert harness.jobs.pools[0].used == 4
    harness.tick(CHECK_INTERVAL_S)
    assert harness.kinds(waiting)[-1] == "assigned"


def test_what_could_not_be_kept_is_undone() -> None:
    harness = CompactionHarness()
    harness.make_room()
    first_seq = harness.job("c").first_seq
    harness.all_hold("c", 7)
    [job] = harness.changes
    harness.jobs.not_moved(job, "no space left on the device", harness.now)
    harness.carry_out()
    assert (job.ranges, job.slots, job.first_seq) == ({0: SlotRange(8, 4)}, 4, first_seq)
    assert (job.placements[0].slots, job.placements[0].first_seq) == (SlotRange(8, 4), first_seq)
    assert harness.released("c") == [[(0, 0)], [(0, 0)]]
    assert harness.jobs.pools[0].used == 8


def test_who_cannot_hold_is_not_asked() -> None:
    harness = CompactionHarness(holds=False)
    harness.queue(8)
    harness.tick(60.0)
    assert harness.asked("a") + harness.asked("c") == [[], [], [], []]


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


@pytest.mark.parametrize("changed", [False, True])
def test_a_later_controller_lets_those_go_on_who_hold(changed: bool) -> None:
    """The round that they are told says whether their job was moved."""
    harness = CompactionHarness()
    harness.make_room(held=True)
    job = harness.job("c")
    if changed:
        harness.jobs.moved(job, harness.now)  # and nobody was told
    else:
        harness.jobs.not_moved(job, "it ended", harness.now)
    harness.jobs.take_effects()
    later = restarted(harness)
    session = rejoin(later, job, 0)
    assert later.kinds(session) == ["ready", "release"]
    told = later.told[session][-1].release
    assert (told.slots, told.first_seq) == (4, 100) if changed else (4, job.first_seq)
    later.jobs.held(session, pb.Held(operations=7, quiet=True, first_seq=100), later.now)
    later.carry_out()
    assert later.told[session][-1].release == told


def test_a_later_controller_finishes_what_an_earlier_one_has_begun() -> None:
    harness = CompactionHarness()
    harness.make_room(held=True)
    job = harness.job("c")
    assert job.moving
    later = restarted(harness)
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
    """The rank starts over when it comes back, and does not keep to the hold that it confirmed before."""
    harness = CompactionHarness()
    harness.make_room()
    harness.hold("c", 7, rank=0)
    harness.sessions["c"][0] = rejoin(harness, harness.job("c"), 0)
    harness.hold("c", 7, rank=1)
    assert not harness.changes
    harness.hold("c", 7, rank=0)
    assert harness.changes


def test_what_answers_an_earlier_hold_is_no_answer() -> None:
    """The rank says it on its new stream, before it reads that it was released, and is to hold again."""
    harness = CompactionHarness()
    harness.make_room()
    harness.hold("c", 7, rank=0)
    [earlier] = [one.hold.number for one in harness.told[harness.sessions["c"][1]] if one.HasField("hold")]
    session = harness.sessions["c"][1] = rejoin(harness, harness.job("c"), 1)
    assert harness.kinds(session) == ["ready", "release", "hold"]
    harness.jobs.held(session, pb.Held(operations=7, quiet=True, first_seq=100, number=earlier), harness.now)
    harness.carry_out()
    assert not harness.changes
    harness.hold("c", 7, rank=1)
    assert harness.changes


def test_ranks_that_share_memory_are_not_asked() -> None:
    harness = CompactionHarness("")
    harness.sessions = {name: harness.begin(name, 4, host="here") for name in "abc"}
    harness.leave(harness.sessions["b"][0])
    harness.leave(harness.sessions["b"][1])
    harness.removed()
    harness.make_room()
    assert harness.changes
    assert harness.asked("a") == harness.asked("c") == [[], []]


def test_a_job_of_several_threads_in_memory_is_left_where_it_is() -> None:
    harness = ThreadsHarness(ONE)
    gone = harness.enter(0, 1, "gone", slots=1, threads=1)
    assert harness.hear(gone, thread=0)
    harness.installed()
    harness.installs.clear()
    harness.all_heard(0, 0, slots=8, host="one")
    harness.installed()
    harness.leave(gone)
    harness.removed()
    job = harness.jobs.named("job")
    assert job.in_memory
    harness.join(0, 1, "waits", slots=8, queue_s=100.0)
    harness.tick(CHECK_INTERVAL_S)
    assert not harness.changes
    assert (job.slots, harness.jobs.pools[0].used) == (8, 8)


def test_an_error_of_ours_in_looking_costs_nobody_anything(caplog: pytest.LogCaptureFixture) -> None:
    harness = CompactionHarness()

    def fails(_: list[Job]) -> None:
        raise RuntimeError("ours")

    harness.jobs._compaction._wanted, wanted = fails, harness.jobs._compaction._wanted
    harness.make_room()
    assert "no slots are moved for the next 60 s" in caplog.text
    harness.jobs._compaction._wanted = wanted
    harness.tick(LONG_COOLDOWN_S / 2)
    assert harness.asked("c") == [[], []]
    harness.tick(LONG_COOLDOWN_S)
    assert harness.asked("c") == [[0], [0]]


def test_a_job_is_not_moved_while_its_switch_is_away() -> None:
    harness = CompactionHarness()
    away = [Unavailable("it is not reached", brief=True)]
    harness.switches.conditions = lambda _: away  # type: ignore[method-assign]
    harness.make_room()
    assert harness.asked("c") == [[], []]
    away.clear()
    harness.tick(CHECK_INTERVAL_S)
    harness.hold("c", 7, rank=0)
    away.append(Unavailable("it is not reached"))
    harness.hold("c", 7, rank=1)
    assert not harness.changes
    assert harness.released("c") == [[(0, 0)], [(0, 0)]]


def test_who_does_not_hold_is_asked_ever_more_rarely_and_after_the_others() -> None:
    harness = CompactionHarness()
    harness.queue(8)
    asked = 0
    for _ in range(int(1000 / (10 * PAUSE_TIMEOUT_S))):
        harness.tick(10 * PAUSE_TIMEOUT_S)
        asked += bool(harness.asked("c")[0])
        harness.told.clear()
    assert 4 <= asked <= 6, "after 60, 120, 240 and 480 s"
    [other] = [harness.begin("e", 4, holds=True)]
    harness.jobs._compaction._look_at = harness.now  # e is at 4 to 8; a, c and e are in a row
    harness.sessions["e"] = other
    assert harness.job("e").ranges == {0: SlotRange(4, 4)}
    harness.job("c").cooldown_until = harness.now
    tried: list[list[str]] = []

    def wanted(jobs: list[Job]) -> None:
        tried.append([job.name for job in jobs])

    harness.jobs._compaction._wanted = wanted
    harness.job("a").tenant, harness.job("c").tenant = "anna", "carla"
    harness.job("e").tenant = "carla"
    harness.tick(CHECK_INTERVAL_S)
    assert tried == [["a"], ["a", "e"], ["a", "c", "e"]]


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


class AnyMove(AnyOrder):
    """The rules of AnyOrder, with more jobs that are ready, and with ranks that hold together."""

    moved = 0

    @initialize()
    def fragment(self) -> None:
        for name in "abc":
            self.begin(name, 4)
        self.harness.leave(self.sessions[1])
        self.harness.removed()
        self.sessions.append(self.harness.join(0, 1, "f", 99, slots=8, queue_s=1000.0))
        self.harness.tick(COOLDOWN_S)

    @rule(name=st.sampled_from("abcdef"), slots=st.integers(1, 9))
    def begin(self, name: str, slots: int) -> None:
        self.join(name, 0, 1, slots)
        if self.sessions[-1] in self.harness.told and self.harness.kinds(self.sessions[-1]) == ["assigned"]:
            self.harness.hear(self.sessions[-1])
        self.harness.installed()

    @rule()
    def a_while_passes(self) -> None:
        self.harness.tick(COOLDOWN_S)

    @rule(again=st.booleans())
    def all_hold(self, again: bool) -> None:
        for job in self.harness.jobs.live:
            for rank in job.workers if job.move is not None or again else ():
                number = job.move.numbers.get(rank, 0) if job.move is not None else 0
                held = pb.Held(operations=3, quiet=True, first_seq=8, number=number)
                self.harness.jobs.held(job.members[rank].session, held, self.harness.now)
        self.harness.carry_out()
        self.moved += len(self.harness.changes)


@pytest.mark.parametrize("examples", [20, pytest.param(300, marks=pytest.mark.slow)])
def test_whatever_happens_meanwhile_no_slot_is_lost_or_anothers(examples: int) -> None:
    run_state_machine_as_test(AnyMove, settings=settings(max_examples=examples, stateful_step_count=40, deadline=None))


def test_the_schedules_can_move_a_job() -> None:
    schedule = AnyMove()
    schedule.fragment()
    schedule.all_hold(again=False)
    assert schedule.moved > 0


# --- while ranks come back, and others come and grow -----------------------------------------------------------------


class Host:
    """A rank as its host has it: the real `Holding`, and an engine without packets. `slow`: it answers a hold later."""

    def __init__(self, slots: int, begun: int, seq: int) -> None:
        self.said: list[pb.Held] = []
        self.holding = Holding(threading.Condition(), lambda message: self.said.append(message.held))
        self.slots, self.begun, self.seq = slots, begun, seq
        self.start = slots, seq - 2 * begun
        self.anew: list[tuple[int, int]] = []  # when its slots set out together, and with which round
        self.called = begun  # operations that the program has called
        self.limit: int | None = None
        self.slow = False
        self.ends = True  # what has begun
        self._owed: Any = None
        self._told: tuple[int, bool] | None = None
        self.holding.begin(self)

    # The methods of `Holder`.

    def hold(self, operations: int, tell: Any) -> None:
        self.limit = max(operations, self.begun)
        self._owed, self._told = tell, None
        if not self.slow:
            self.answer()

    def answer(self) -> None:
        self._begin()
        if self._owed is not None and self._told != (self.begun, self.quiet):
            self._told = self.begun, self.quiet
            self._owed(self.begun, self.quiet, self.seq if self.quiet else 0)

    def go_on(self, slots: int, first_seq: int) -> None:
        self.limit = self._owed = None
        if slots:
            assert self.quiet
            if (slots, first_seq) != self.start:  # else they stand where they set out
                self.anew.append((self.begun, first_seq))
            self.slots, self.seq = self.start = slots, first_seq
        self._begin()

    # Calls of its program.

    under_way = False

    @property
    def quiet(self) -> bool:
        return not self.under_way

    def call(self) -> None:
        self.called += 1
        self._begin()

    def _begin(self) -> None:
        if self.begun < self.called and (self.limit is None or self.begun < self.limit):
            self.begun += 1
            self.under_way = True  # its others have not begun it

    # Messages of its stream.

    def hear(self, messages: list[pb.ServerMessage]) -> None:
        """Receive messages of the controller, and pass them on as the session does."""
        for message in messages:
            kind = message.WhichOneof("message")
            if kind == "ready":  # what was said before went to the stream that is broken
                self.said.clear()
            elif kind == "hold":
                self.holding.hold(message.hold)
            elif kind == "release":
                self.holding.release(message.release)


class Ranks:
    """The ranks of a job: what the controller tells them, and what their hosts make of it."""

    def __init__(self, harness: Any, sessions: list[object], hosts: list[Host]) -> None:
        self.harness = harness
        self.sessions = sessions
        self.hosts = hosts
        self._heard = [0] * len(hosts)

    def hear(self, *only: int) -> None:
        """Pass on to these ranks, by default all, the messages that came since the last call."""
        for rank in only or range(len(self.hosts)):
            told = self.harness.told[self.sessions[rank]]
            self.hosts[rank].hear(told[self._heard[rank] :])
            self._heard[rank] = len(told)

    def say(self, *only: int) -> None:
        for rank in only or range(len(self.hosts)):
            said, self.hosts[rank].said = self.hosts[rank].said, []
            for one in said:
                self.harness.jobs.held(self.sessions[rank], one, self.harness.now)
            self.harness.carry_out()

    def come_back(self, rank: int, job: Job) -> None:
        self.sessions[rank] = rejoin(self.harness, job, rank)
        self._heard[rank] = 0


def wide() -> CompactionHarness:
    """Return a harness with a job a of 16 slots, whose ranks have keys, and which uses 2 of the slots."""
    harness = CompactionHarness(jobs="")
    harness.sessions = {"a": harness.begin("a", 16, holds=True)}
    report(harness, "a", 2)
    return harness


def test_what_a_rank_tells_a_later_controller_is_of_before_its_release() -> None:
    """A Held that is still on its way answers the hold of the earlier controller, not that of the later one.

    The later controller wants the same change again as soon as all ranks are back.
    """
    harness = CompactionHarness()
    harness.make_room()
    job = harness.job("c")
    hosts = [Host(4, 7, 100), Host(4, 7, 100)]
    Ranks(harness, harness.sessions["c"], hosts).hear()
    assert [host.said[-1].operations for host in hosts] == [7, 7]
    for host in hosts:
        host.said.clear()  # the controller ends now

    job.move, job.cooldown_until = None, -float("inf")  # as it is when it is read again
    later = restarted(harness)
    later.join(0, 1, "d", slots=8, queue_s=1000.0, attempt=1)
    back = Ranks(later, [rejoin(later, job, rank) for rank in range(2)], hosts)
    back.hear()  # Ready and Release: both say Held, and go on
    assert [host.limit for host in hosts] == [None, None]
    hosts[1].call()  # rank 1 has begun operation 7, and rank 0 computes
    assert (hosts[1].begun, hosts[1].quiet) == (8, False)
    later.tick(0.1)  # before what they have said is read
    assert later.kinds(back.sessions[1])[-1] == "hold"
    back.say()
    if later.changes:  # else nothing is wrong
        back.hear()
        back.say()
        later.jobs.moved(job, later.now)
        later.carry_out()
        back.hear()
        assert hosts[0].anew == hosts[1].anew, "one has begun its slots anew, and the other goes on in those of before"


def test_a_rank_that_is_back_within_a_hold_is_released_before_its_engine_answers() -> None:
    """It repeats its answer to the first hold, and the controller takes this for an answer to the second."""
    harness = wide()
    harness.make_room()
    job = harness.job("a")
    hosts = [Host(16, 7, 100), Host(16, 7, 100)]
    ranks = Ranks(harness, harness.sessions["a"], hosts)
    ranks.hear()
    ranks.say(0)
    hosts[1].said.clear()  # rank 1 has said so, on a stream that is broken
    ranks.come_back(1, job)
    hosts[1].slow = True  # its engine is, or the interpreter's lock is taken
    ranks.hear(1)
    ranks.say(1)
    if harness.changes:
        harness.moved()
        ranks.hear()
        assert [host.slots for host in hosts] == [job.slots] * 2, "ranks deal blocks to different slots"


def test_a_rank_that_has_missed_its_release_is_asked_for_the_next_move() -> None:
    """Its stream was broken, and nobody knew. It comes back when its job is to be moved again."""
    harness = wide()
    waiting = harness.make_room()
    job = harness.job("a")
    hosts = [Host(16, 7, 100), Host(16, 7, 100)]
    ranks = Ranks(harness, harness.sessions["a"], hosts)
    ranks.hear()
    ranks.say()
    harness.moved()
    ranks.hear(0)  # and rank 1 does not hear it
    assert (hosts[0].slots, hosts[1].slots) == (job.slots, 16)
    hosts[0].call()
    harness.tick(0.1)
    harness.lose(waiting)
    report(harness, "a", job.slots, times=15)
    harness.tick(COOLDOWN_S)
    assert job.move is not None, "to grow again"
    ranks.hear(0)
    ranks.say(0)
    ranks.come_back(1, job)
    hosts[1].call()
    ranks.hear()
    ranks.say()
    ranks.hear()
    if hosts[1].begun == hosts[0].begun == 8:
        assert hosts[1].slots == hosts[0].slots, "both add up the same operation in different slots"


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
