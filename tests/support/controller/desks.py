# SPDX-License-Identifier: Apache-2.0
"""Jobs that ranks join, without I/O: what the controller answers, and what it would do."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.effects import Answer, Change, Install, Look, Note, Remove, Tell
from p4reduce_controller.jobs.job import Job, State
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.jobs.lifecycle import JobOptions, digest
from p4reduce_controller.jobs.switches import Switches
from p4reduce_controller.switches.aggregator import Heard, Layout, Placement
from p4reduce_controller.switches.availability import Unavailable
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.trees import Trees, Uplink

ADDRESS = Endpoint("02:00:0a:00:00:fe", "10.0.0.254", 31314)
REJOIN_TIME = 10.0
GRACE = 2.0  # of leaving


class Desk:
    """Jobs, with what each session was told. A session is (job name, rank, which attempt)."""

    def __init__(self, slots: int = 16, switches: int = 1) -> None:
        self.switches = Switches(Layout(4, 64, slots), [ADDRESS] * switches, default_slots=4)
        self.jobs = Jobs(self.switches, JobOptions(rejoin_time=REJOIN_TIME, leave_grace=GRACE))
        self.now = 100.0
        self.told: dict[object, list[pb.ServerMessage]] = defaultdict(list)
        self.ended: set[object] = set()
        self.installs: list[Job] = []
        self.removals: list[Remove] = []
        self.looks: list[Look] = []
        self.answers: list[Answer] = []
        self.changes: list[Job] = []
        self.noted: list[tuple[str, str]] = []  # jobs that have begun, and what became of them

    def carry_out(self) -> None:
        for effect in self.jobs.take_effects():
            if isinstance(effect, Tell):
                assert effect.session not in self.ended, "a word after the last word"
                self.told[effect.session].append(effect.message)
                if effect.last:
                    self.ended.add(effect.session)
            elif isinstance(effect, Install):
                assert effect.job.state is State.INSTALLING
                self.installs.append(effect.job)
            elif isinstance(effect, Look):
                self.looks.append(effect)
            elif isinstance(effect, Change):
                self.changes.append(effect.job)
            elif isinstance(effect, Answer):
                self.answers.append(effect)
            elif isinstance(effect, Note):
                self.noted.append((effect.job.name, effect.outcome))
            else:
                self.removals.append(effect)

    def ask(self, session: object, half: int) -> None:
        self.jobs.unanswered(session, half)
        self.carry_out()

    def answer(self, found: pb.Counted | None) -> None:
        look = self.looks.pop()
        assert not self.looks
        self.jobs.looked(look.job, look.half, found)
        self.carry_out()

    def join(self, rank: int, world_size: int = 2, name: str = "job", attempt: int = 0, **options: Any) -> object:
        session = (name, rank, attempt)
        self.jobs.join(session, pb.Join(job=name, rank=rank, world_size=world_size, **options), self.now)
        self.carry_out()
        return session

    def hear(self, session: object, switch: int = 0, **changes: int) -> bool:
        [assigned] = [message.assigned for message in self.told[session] if message.HasField("assigned")]
        claims = {
            "port": 1,
            "job": assigned.job,
            "generation": assigned.generation,
            "worker": assigned.worker,
            "nonce": assigned.hello_nonce,
        }
        sender = Endpoint("02:00:00:00:00:01", "10.0.0.1", 5000)
        news = self.jobs.heard(switch, Heard(sender=sender, **(claims | changes)))
        self.carry_out()
        return news

    def tick(self, seconds: float = 0.0) -> None:
        self.now += seconds
        self.jobs.tick(self.now)
        self.carry_out()

    def installed(self) -> None:
        for job in self.installs:
            self.jobs.installed(job)
        self.installs.clear()
        self.carry_out()

    def removed(self) -> None:
        for removal in self.removals:
            self.jobs.freed(removal.job)
        self.removals.clear()

    def ready(self, world_size: int = 2, name: str = "job") -> list[object]:
        sessions = [self.join(rank, world_size, name) for rank in range(world_size)]
        for session in sessions:
            self.hear(session)
        self.installed()
        assert all(self.kinds(session)[-1] == "ready" for session in sessions)
        return sessions

    def kinds(self, session: object) -> list[str]:
        return [message.WhichOneof("message") or "" for message in self.told[session]]

    def last(self, session: object) -> pb.Abort:
        assert self.kinds(session)[-1] == "abort"
        return self.told[session][-1].abort


def restarted(desk: Desk) -> Desk:
    """Another controller takes up the jobs that are ready."""
    later = Desk()
    later.now = desk.now
    kept = [job for job in desk.jobs.live if job.state is State.READY]
    for job in kept:
        for member in job.members.values():
            member.session, member.leaving, member.key = None, False, digest(str(member.rank))
        job.leave_deadline = None
    later.jobs.restore(kept, {})
    later.jobs.expect_returns(later.now)
    return later


def rejoin(desk: Desk, job: Job, rank: int, attempt: int = 0) -> object:
    session = (job.name, rank, "back", attempt)
    message = pb.Rejoin(job=job.number, generation=job.generation, rank=rank, key=str(rank))
    desk.jobs.rejoin(session, message, desk.now)
    desk.carry_out()
    return session


def slots_of(job: Job) -> set[int]:
    """With its former ones, while it is moved."""
    taken = [*job.ranges.values(), *(job.move.before.values() if job.move and job.move.before else ())]
    return {slot for each in taken for slot in range(each.first, each.end)}


class AnyOrder(RuleBasedStateMachine):
    """Whatever happens in whatever order, nobody hears two last words and no slot is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = Desk()
        self.sessions: list[object] = []
        self.attempts = 0

    def some(self, data: st.DataObject) -> object:
        return data.draw(st.sampled_from([*self.sessions, "a stranger"]))

    @rule(name=st.sampled_from("abc"), rank=st.integers(0, 2), world=st.integers(1, 2), slots=st.integers(0, 9))
    def join(self, name: str, rank: int, world: int, slots: int) -> None:
        self.attempts += 1
        session = self.desk.join(
            rank, world, name, self.attempts, slots=slots, holds=True, queue_s=float(5 * (slots % 2))
        )
        self.sessions.append(session)

    @rule(data=st.data())
    def hello(self, data: st.DataObject) -> None:
        session = self.some(data)
        if session in self.desk.told and "assigned" in self.desk.kinds(session):
            self.desk.hear(session)

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.desk.jobs.leave(self.some(data), self.desk.now)
        self.desk.carry_out()

    @rule(data=st.data())
    def lost(self, data: st.DataObject) -> None:
        self.desk.jobs.lost(self.some(data))
        self.desk.carry_out()

    @rule(fails=st.booleans())
    def switch_answers(self, fails: bool) -> None:
        if fails:
            for job in self.desk.installs:
                self.desk.jobs.failed(job, "the switch failed")
            self.desk.installs.clear()
            self.desk.carry_out()
        self.desk.installed()

    @rule(data=st.data(), used=st.integers(1, 4))
    def rank_reports(self, data: st.DataObject, used: int) -> None:
        if seat := self.desk.jobs.member_at(self.some(data)):
            seat[1].used.extend([used] * 15)

    @rule(data=st.data(), operations=st.integers(0, 2), quiet=st.booleans(), first_seq=st.sampled_from([4, 6]))
    def rank_holds(self, data: st.DataObject, operations: int, quiet: bool, first_seq: int) -> None:
        held = pb.Held(operations=operations, quiet=quiet, first_seq=first_seq)
        self.desk.jobs.held(self.some(data), held, self.desk.now)
        self.desk.carry_out()

    @rule(kept=st.booleans())
    def change_ends(self, kept: bool) -> None:
        for job in self.desk.changes:
            if kept:
                self.desk.jobs.moved(job, self.desk.now)
            else:
                self.desk.jobs.not_moved(job, "no space left on the device", self.desk.now)
        self.desk.changes.clear()
        self.desk.carry_out()

    @rule()
    def controller_restarts(self) -> None:
        changes = [job for job in self.desk.changes if not job.over]
        self.desk = restarted(self.desk)
        self.desk.changes = changes
        self.sessions = []

    @rule(data=st.data())
    def rejoin(self, data: st.DataObject) -> None:
        if ready := [job for job in self.desk.jobs if job.members and all(one.key for one in job.members.values())]:
            self.attempts += 1
            job = data.draw(st.sampled_from(ready))
            self.sessions.append(rejoin(self.desk, job, data.draw(st.integers(0, job.world_size)), self.attempts))

    @rule()
    def removals_end(self) -> None:
        self.desk.removed()

    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.desk.tick(seconds)

    @invariant()
    def slots_add_up(self) -> None:
        jobs = list(self.desk.jobs)
        held = [slot for job in jobs for slot in slots_of(job)]
        assert self.desk.jobs.pools[0].used == len(held) == len(set(held))
        over = [job for job in jobs if job.state in (State.FINISHED, State.ABORTED)]
        assert {id(job) for job in over} == {id(removal.job) for removal in self.desk.removals}
        assert len(over) + len(self.desk.jobs.live) == len(jobs)

    @invariant()
    def only_the_ready_are_admitted(self) -> None:
        for session, messages in self.desk.told.items():
            kinds = [message.WhichOneof("message") for message in messages]
            assert kinds[0] in ("assigned", "ready", "abort", "waiting")
            assert kinds.count("ready") <= 1
            assert ("left" in kinds or "abort" in kinds) == (session in self.desk.ended)

    def teardown(self) -> None:
        self.desk.jobs.abort_all(pb.CONTROLLER_STOPPED, "the end")
        self.desk.carry_out()
        self.desk.removed()
        assert self.desk.jobs.pools[0].used == 0
        assert set(self.sessions) == self.desk.ended
        assert self.desk.jobs.lifecycle.started == self.desk.jobs.lifecycle.finished + self.desk.jobs.lifecycle.aborted


SPINE, LEAF1, LEAF2 = range(3)
UP = 9  # the leaves' port toward the spine
TWO_LEAVES = Trees(["spine", "leaf1", "leaf2"], {LEAF1: Uplink(UP, SPINE), LEAF2: Uplink(UP, SPINE)})
ADDRESSES = [Endpoint(f"02:00:0a:00:ff:0{n}", f"10.0.255.{n}", 31314) for n in range(3)]


class TreeDesk(Desk):
    """Leaves 1 and 2 have been heard on the spine's ports 1 and 2."""

    def __init__(self, trees: Trees = TWO_LEAVES, slots: int = 16) -> None:
        super().__init__()
        addresses = ADDRESSES[: len(trees.names)]
        self.absent: dict[int, str] = {}
        self.switches = Switches(Layout(4, 64, slots), addresses, trees, default_slots=4)
        self.switches.conditions = self._conditions  # type: ignore[method-assign]
        self.jobs = Jobs(self.switches)
        for child in trees.uplinks:
            self.switches.children[child] = Heard(child, addresses[child], 0, 0, child, 1)

    def _conditions(self, number: int) -> list[Unavailable]:
        return [Unavailable(self.absent[number])] if number in self.absent else []

    def hear_at(self, session: object, switch: int, port: int = 5) -> bool:
        assigned = self.told[session][0].assigned
        rank = assigned.worker
        sender = Endpoint(f"02:00:00:00:00:{rank:02x}", f"10.0.0.{rank}", 5000 + rank)
        hello = Heard(port, sender, assigned.job, assigned.generation, rank, assigned.hello_nonce)
        news = self.jobs.heard(switch, hello)
        self.carry_out()
        return news

    def ready_at(self, *switches: int, name: str = "job") -> list[pb.Ready]:
        """A job of a rank at each of these switches; what the ranks are told."""
        sessions = [self.join(rank, len(switches), name) for rank in range(len(switches))]
        for session, switch in zip(sessions, switches, strict=True):
            assert self.hear_at(session, switch)
        self.placements = self.installs[0].placements
        self.installed()
        return [self.told[session][-1].ready for session in sessions]


ONE = Trees(["one"])


class ThreadsDesk(TreeDesk):
    """Ranks of three threads."""

    def enter(self, rank: int, world_size: int = 2, name: str = "job", **options: object) -> object:
        return self.join(rank, world_size, name, **{"threads": 3, "slots": 7, **options})

    def assigned(self, session: object) -> pb.Assigned:
        return self.told[session][0].assigned

    def hear_thread(self, session: object, thread: int, switch: int = 0, port: int = 5) -> bool:
        assigned = self.assigned(session)
        numbers = [(assigned.job, assigned.generation)]
        numbers += [(packed >> 16, packed & 0xFFFF) for packed in assigned.more_jobs]
        rank = assigned.worker
        sender = Endpoint(f"02:00:00:00:00:{rank:02x}", f"10.0.0.{rank}", 5000 + 100 * thread + rank)
        news = self.jobs.heard(switch, Heard(port, sender, *numbers[thread], rank, assigned.hello_nonce))
        self.carry_out()
        return news

    def all_heard(self, *switches: int, name: str = "job", **options: object) -> list[object]:
        """A rank at each of these switches, with all its threads."""
        sessions = [self.enter(rank, len(switches), name, **options) for rank in range(len(switches))]
        for session, switch in zip(sessions, switches, strict=True):
            for thread in range(1 + len(self.assigned(session).more_jobs)):
                assert self.hear_thread(session, thread, switch)
        return sessions

    def placements(self) -> list[Placement]:  # type: ignore[override]
        return list(self.installs[0].placements.values())
