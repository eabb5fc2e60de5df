# SPDX-License-Identifier: Apache-2.0
"""A job is moved while ranks or the controller come back: all ranks use the same slots, from the same operation on."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.holding import Holding
from p4reduce_controller.jobs.job import Job, State
from p4reduce_controller.jobs.slot_compaction import COOLDOWN_S
from tests.support.controller.jobs_harness import CompactionHarness, rejoin, report, restarted

pytestmark = pytest.mark.usefixtures("few_slots_do")


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
