# SPDX-License-Identifier: Apache-2.0
"""Jobs that run get other slots while their ranks come back, and while others come and grow."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.holding import Holding
from p4reduce_controller.jobs.job import Job
from p4reduce_controller.jobs.lifecycle import digest
from p4reduce_controller.jobs.moves import HOLD_S, LONG_REST_S, LOOK_S, REST_S
from p4reduce_controller.jobs.waitlist import HOLD_BACK
from p4reduce_controller.tenants.access import Caller, Role
from p4reduce_controller.tenants.quotas import Policy, Quota
from tests.support.controller.desks import LEAF1, LEAF2, SPINE, TreeDesk, rejoin, restarted
from tests.support.controller.moves import Hall, report


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

    # As `Holder`.

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

    # Its program.

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

    # Its stream.

    def hear(self, messages: list[pb.ServerMessage]) -> None:
        """What the session passes on."""
        for message in messages:
            kind = message.WhichOneof("message")
            if kind == "ready":  # what was said before went to the stream that is broken
                self.said.clear()
            elif kind == "hold":
                self.holding.hold(message.hold)
            elif kind == "release":
                self.holding.release(message.release)


def carry(hall: Any, sessions: dict[int, object], hosts: list[Host], heard: dict[int, int], *only: int) -> None:
    """What these ranks were told and have not heard, and what they say to that."""
    for rank in only or range(len(hosts)):
        told = hall.told[sessions[rank]]
        hosts[rank].hear(told[heard.get(rank, 0) :])
        heard[rank] = len(told)


def say(hall: Any, sessions: dict[int, object], hosts: list[Host], *only: int) -> None:
    for rank in only or range(len(hosts)):
        said, hosts[rank].said = hosts[rank].said, []
        for one in said:
            hall.jobs.held(sessions[rank], one, hall.now)
        hall.carry_out()


def wide() -> Hall:
    """One job a of 16 slots that uses 2, whose ranks have keys, and another that waits for 8."""
    hall = Hall(jobs="")
    hall.sessions = {"a": hall.begin("a", 16, holds=True)}
    for rank, member in hall.job("a").members.items():
        member.key = digest(str(rank))
    report(hall, "a", 2)
    return hall


def test_what_a_rank_tells_a_later_controller_is_of_before_its_release() -> None:
    """The later controller wants the same change again as soon as all are back, and a Held that is under way answers
    the hold of its predecessor."""
    hall = Hall()
    hall.queue(8)
    hall.tick(LOOK_S)
    job = hall.job("c")
    hosts = [Host(4, 7, 100), Host(4, 7, 100)]
    heard: dict[int, int] = {}
    sessions = dict(enumerate(hall.sessions["c"]))
    carry(hall, sessions, hosts, heard)
    assert [host.said[-1].operations for host in hosts] == [7, 7]
    for host in hosts:
        host.said.clear()  # the controller ends now

    job.move, job.cooldown_until = None, -float("inf")  # as it is when it is read again
    later = restarted(hall)
    later.join(0, 1, "d", slots=8, queue_s=1000.0, attempt=1)
    back = {rank: rejoin(later, job, rank) for rank in range(2)}
    heard.clear()
    carry(later, back, hosts, heard)  # Ready and Release: both say Held, and go on
    assert [host.limit for host in hosts] == [None, None]
    hosts[1].call()  # rank 1 has begun operation 7, and rank 0 computes
    assert (hosts[1].begun, hosts[1].quiet) == (8, False)
    later.tick(0.1)  # before what they have said is read
    assert later.kinds(back[1])[-1] == "hold"
    say(later, back, hosts)
    if later.changes:  # else nothing is wrong
        carry(later, back, hosts, heard)
        say(later, back, hosts)
        later.jobs.moved(job, later.now)
        later.carry_out()
        carry(later, back, hosts, heard)
        assert hosts[0].anew == hosts[1].anew, "one has begun its slots anew, and the other goes on in those of before"


def report_to(job: Job, slots: int) -> None:
    for member in job.members.values():
        member.used.extend([slots] * 5)


def test_a_rank_that_is_back_within_a_hold_is_released_before_its_engine_answers() -> None:
    """It tells again what it has said of the first hold, and that is taken for an answer to the second."""
    hall = wide()
    hall.queue(8)
    hall.tick(LOOK_S)
    job = hall.job("a")
    hosts = [Host(16, 7, 100), Host(16, 7, 100)]
    heard: dict[int, int] = {}
    sessions = dict(enumerate(hall.sessions["a"]))
    carry(hall, sessions, hosts, heard)
    say(hall, sessions, hosts, 0)
    # Rank 1 has said so, on a stream that is broken.
    hosts[1].said.clear()
    sessions[1] = rejoin(hall, job, 1)
    heard[1] = 0
    hosts[1].slow = True  # its engine is, or the interpreter's lock is taken
    carry(hall, sessions, hosts, heard, 1)
    say(hall, sessions, hosts, 1)
    if hall.changes:
        hall.moved()
        carry(hall, sessions, hosts, heard)
        assert [host.slots for host in hosts] == [job.slots] * 2, "ranks deal blocks to different slots"


def test_a_rank_that_has_missed_its_release_is_asked_for_the_next_move() -> None:
    """Its stream was broken, and nobody knew. It comes back when its job is to be moved again."""
    hall = wide()
    waiting = hall.queue(8)
    hall.tick(LOOK_S)
    job = hall.job("a")
    hosts = [Host(16, 7, 100), Host(16, 7, 100)]
    heard: dict[int, int] = {}
    sessions = dict(enumerate(hall.sessions["a"]))
    carry(hall, sessions, hosts, heard)
    say(hall, sessions, hosts)
    hall.moved()
    carry(hall, sessions, hosts, heard, 0)  # and rank 1 does not hear it
    assert (hosts[0].slots, hosts[1].slots) == (job.slots, 16)
    hosts[0].call()
    hall.tick(0.1)
    hall.jobs.lost(waiting)
    hall.carry_out()
    report(hall, "a", job.slots, times=15)
    hall.tick(REST_S)
    assert job.move is not None, "to grow again"
    carry(hall, sessions, hosts, heard, 0)
    say(hall, sessions, hosts, 0)
    sessions[1] = rejoin(hall, job, 1)
    heard[1] = 0
    hosts[1].call()
    carry(hall, sessions, hosts, heard)
    say(hall, sessions, hosts)
    carry(hall, sessions, hosts, heard)
    if hosts[1].begun == hosts[0].begun == 8:
        assert hosts[1].slots == hosts[0].slots, "both add up the same operation in different slots"


def test_a_job_does_not_grow_beyond_a_quota_that_another_has_used_meanwhile() -> None:
    hall = Hall(jobs="")
    eve = Caller("eve", Role.USER, "eve")
    hall.jobs.tenancy.policy = Policy(quotas={"eve": Quota(slots=8)})
    for rank in range(2):
        hall.jobs.join(("a", rank, 0), pb.Join(job="a", rank=rank, world_size=2, slots=2, holds=True), hall.now, eve)
        hall.carry_out()
    hall.sessions = {"a": [("a", rank, 0) for rank in range(2)]}
    for session in hall.sessions["a"]:
        hall.hear(session)
    hall.installed()
    job = hall.jobs.named("a", "eve")
    assert job is not None
    job.most_slots = 8  # it has given 6 back
    report_to(job, 2)
    hall.tick(LOOK_S)
    assert job.move is not None
    assert job.move.slots == 8
    hall.jobs.join(("e", 0, 0), pb.Join(job="e", world_size=1, slots=6), hall.now, eve)
    hall.carry_out()
    for session in hall.sessions["a"]:
        number = hall.told[session][-1].hold.number
        hall.jobs.held(session, pb.Held(operations=1, quiet=True, first_seq=100, number=number), hall.now)
    hall.carry_out()
    assert hall.jobs._registry.held.slots["eve"] <= 8


class Leaves(TreeDesk):
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
            assert self.hear_at(session, switch)
        self.installed()
        return sessions


def crowded() -> tuple[Leaves, list[object], list[object]]:
    """Of the leaf's slots 0-3, 12 and 13 are free, and c has 4-11; g gathers, for 4, and d waits for 6."""
    desk = Leaves(slots=16)
    gone = desk.running("b", 4, LEAF1, LEAF1)
    c = desk.running("c", 8, LEAF1, LEAF1)
    gone += desk.running("k", 2, LEAF1, LEAF1)
    desk.running("f", 2, LEAF1, LEAF1)
    desk.running("y", 12, LEAF2, LEAF2)
    desk.running("z", 12, SPINE, SPINE)
    for session in gone:
        desk.jobs.leave(session, desk.now)
    desk.carry_out()
    desk.removed()
    g = [desk.join(rank, 2, "g", slots=4) for rank in range(2)]
    assert desk.kinds(g[0]) == ["assigned"]
    d = desk.join(0, 2, "d", slots=6, queue_s=100.0)
    assert desk.kinds(d) == []
    return desk, c, g


@pytest.mark.parametrize("moves", [False, True])
def test_a_job_that_gathers_finds_its_slots_at_a_leaf_while_another_is_moved(moves: bool) -> None:
    """Before the move there is room for it, and after it; in between c holds its former slots and its new ones."""
    desk, c, g = crowded()
    if moves:
        desk.tick(LOOK_S)
        desk.hold(c)
        assert desk.changes, "c is moved"
    for session in g:
        desk.hear_at(session, LEAF1)
    assert "abort" not in desk.kinds(g[0]), desk.last(g[0]).message


@pytest.mark.parametrize("grows", [False, True])
def test_a_job_does_not_grow_into_what_one_that_gathers_meanwhile_needs(grows: bool) -> None:
    desk = Leaves(slots=16)
    c = desk.running("c", 8, LEAF1, LEAF1)
    job = desk.jobs.named("c")
    assert job is not None
    job.most_slots = 16  # it has given half back
    report_to(job, 8)
    if grows:
        desk.tick(LOOK_S)
        assert job.move is not None
    g = [desk.join(rank, 2, "g", slots=4) for rank in range(2)]
    assert desk.kinds(g[0])[0] == "assigned"
    desk.hold(c)
    for session in g:
        desk.hear_at(session, LEAF1)
    assert "abort" not in desk.kinds(g[0]), desk.last(g[0]).message


def test_who_would_not_wait_does_so_while_a_job_has_its_former_slots_and_its_new_ones() -> None:
    hall = Hall()
    hall.queue(8)
    hall.tick(HOLD_BACK)  # from now on, others may go ahead
    for _ in range(int(2 * LONG_REST_S / HOLD_S)):
        if hall.job("c").move is None:
            hall.tick(HOLD_S)
    for rank in range(2):
        hall.hold("c", 7, rank=rank)
    assert hall.job("c").moving
    first, second = (hall.join(0, 1, name, slots=4) for name in "ef")
    assert hall.kinds(first) == ["assigned"]
    hall.tick(0.1)
    assert "abort" not in hall.kinds(second)
    hall.moved()
    hall.tick(0.1)
    assert hall.kinds(second)[-1] == "assigned"
    third = hall.join(0, 1, "g", slots=4)
    assert hall.kinds(third) == ["abort"]
