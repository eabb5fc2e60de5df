# SPDX-License-Identifier: Apache-2.0
"""The controller's job logic without I/O: tests read its messages to ranks, and the effects that it asks for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from p4reduce.control import jobs_pb2 as pb
from p4reduce.transport.addresses import is_ipv6
from p4reduce_controller.jobs.effects import Answer, Change, Install, Keep, Look, Note, Remove, TakeOver, Tell
from p4reduce_controller.jobs.job import Job, State, Takeover
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.jobs.lifecycle import JobOptions, digest
from p4reduce_controller.jobs.reports import Reports
from p4reduce_controller.jobs.slot_compaction import CHECK_INTERVAL_S
from p4reduce_controller.jobs.switches import Switches
from p4reduce_controller.jobs.tenancy import Tenancy
from p4reduce_controller.switches.aggregator import Heard, Layout, Placement
from p4reduce_controller.switches.availability import Unavailable
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.trees import Trees, Uplink
from p4reduce_controller.tenants.access import Caller, Role
from p4reduce_controller.tenants.quotas import Policy

ADDRESS = Endpoint("02:00:0a:00:00:fe", "10.0.0.254", 31314)
REJOIN_TIME = 10.0
IPV6_ADDRESS = Endpoint("02:00:00:00:00:fe", "fd00::fe", 31314)
GRACE = 2.0  # the time for a job's other ranks to leave, too


class JobsHarness:
    """Jobs, and the messages that each session was sent. A session is a tuple (job name, rank, attempt)."""

    def __init__(self, slots: int = 16, switches: int = 1, address: Endpoint = ADDRESS) -> None:
        self.switches = Switches(Layout(4, 64, slots), [address] * switches, default_slots=4)
        self.jobs = Jobs(self.switches, JobOptions(rejoin_time=REJOIN_TIME, leave_grace=GRACE))
        self.now = 100.0
        self.told: dict[object, list[pb.ServerMessage]] = defaultdict(list)
        self.ended: set[object] = set()
        self.installs: list[Job] = []
        self.removals: list[Remove] = []
        self.looks: list[Look] = []
        self.answers: list[Answer] = []
        self.changes: list[Job] = []
        self.keeps: list[tuple[Job, Takeover]] = []
        self.takeovers: list[tuple[Job, Takeover]] = []
        self.noted: list[tuple[str, str]] = []  # jobs that have begun, each with its outcome

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
            elif isinstance(effect, Keep):
                self.keeps.append((effect.job, effect.takeover))
            elif isinstance(effect, TakeOver):
                self.takeovers.append((effect.job, effect.takeover))
            elif isinstance(effect, Note):
                self.noted.append((effect.job.name, effect.outcome))
            else:
                self.removals.append(effect)

    def ask(self, session: object, half: int) -> None:
        self.jobs.unanswered(session, half, self.now)
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

    def assigned(self, session: object) -> pb.Assigned:
        [assigned] = [message.assigned for message in self.told[session] if message.HasField("assigned")]
        return assigned

    def hear(
        self, session: object, switch: int = 0, port: int = 5, *, thread: int = 0, tree: int = 0, **changes: Any
    ) -> bool:
        """Deliver the HELLO of a rank's thread, with `changes`, at a port of the switch. Return whether it was news.

        tree: the tree of the aggregator that it is for, if these have numbers of their own.
        """
        one = self.assigned(session)
        own = next((at.jobs for at in one.aggregators if at.tree == tree), [])
        numbers = [divmod(packed, 1 << 16) for packed in own or [one.job << 16 | one.generation, *one.more_jobs]]
        rank, (job, generation) = one.worker, numbers[thread]
        switch_ip = self.switches.addresses[switch].ip
        ip = f"fd00::{rank + 1:x}" if is_ipv6(switch_ip) else f"10.0.0.{rank}"
        sender = Endpoint(f"02:00:00:00:00:{rank:02x}", ip, 5000 + 100 * thread + rank)
        hello = Heard(port, sender, job, generation, rank, one.hello_nonce)
        news = self.jobs.on_hello(switch, replace(hello, **changes))
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

    def lose(self, session: object) -> None:
        self.jobs.lost(session)
        self.carry_out()

    def leave(self, session: object, *, lingers: bool = False) -> None:
        self.jobs.leave(session, self.now, lingers=lingers)
        self.carry_out()

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


def restarted(harness: JobsHarness) -> JobsHarness:
    """Return the harness of another controller, which has restored the jobs that are ready."""
    later = JobsHarness()
    later.now = harness.now
    kept = [job for job in harness.jobs.live if job.state is State.READY]
    for job in kept:
        for member in job.members.values():
            member.session, member.leaving, member.key = None, False, digest(str(member.rank))
        job.leave_deadline = None
    later.jobs.restore(kept, {})
    later.jobs.expect_returns(later.now)
    return later


def rejoin(harness: JobsHarness, job: Job, rank: int, attempt: int = 0) -> object:
    session = (job.name, rank, "back", attempt)
    message = pb.Rejoin(job=job.number, generation=job.generation, rank=rank, key=str(rank))
    harness.jobs.rejoin(session, message, harness.now)
    harness.carry_out()
    return session


def slots_of(job: Job) -> set[int]:
    """Return the slots of a job. While it is moved, they include its former ones."""
    taken = [*job.ranges.values(), *(job.move.before.values() if job.move and job.move.before else ())]
    return {slot for each in taken for slot in range(each.first, each.end)}


class AnyOrder(RuleBasedStateMachine):
    """Random events in any order: no session gets two final messages, and no slot is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.harness = JobsHarness()
        self.sessions: list[object] = []
        self.attempts = 0

    def some(self, data: st.DataObject) -> object:
        return data.draw(st.sampled_from([*self.sessions, "a stranger"]))

    @rule(name=st.sampled_from("abc"), rank=st.integers(0, 2), world=st.integers(1, 2), slots=st.integers(0, 9))
    def join(self, name: str, rank: int, world: int, slots: int) -> None:
        self.attempts += 1
        session = self.harness.join(
            rank, world, name, self.attempts, slots=slots, holds=True, queue_s=float(5 * (slots % 2))
        )
        self.sessions.append(session)

    @rule(data=st.data())
    def hello(self, data: st.DataObject) -> None:
        session = self.some(data)
        if session in self.harness.told and "assigned" in self.harness.kinds(session):
            self.harness.hear(session)

    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.harness.jobs.leave(self.some(data), self.harness.now)
        self.harness.carry_out()

    @rule(data=st.data())
    def lost(self, data: st.DataObject) -> None:
        self.harness.jobs.lost(self.some(data))
        self.harness.carry_out()

    @rule(fails=st.booleans())
    def switch_answers(self, fails: bool) -> None:
        if fails:
            for job in self.harness.installs:
                self.harness.jobs.failed(job, "the switch failed")
            self.harness.installs.clear()
            self.harness.carry_out()
        self.harness.installed()

    @rule(data=st.data(), used=st.integers(1, 4))
    def rank_reports(self, data: st.DataObject, used: int) -> None:
        if seat := self.harness.jobs.member_at(self.some(data)):
            seat[1].used.extend([used] * 15)

    @rule(data=st.data(), operations=st.integers(0, 2), quiet=st.booleans(), first_seq=st.sampled_from([4, 6]))
    def rank_holds(self, data: st.DataObject, operations: int, quiet: bool, first_seq: int) -> None:
        held = pb.Held(operations=operations, quiet=quiet, first_seq=first_seq)
        self.harness.jobs.held(self.some(data), held, self.harness.now)
        self.harness.carry_out()

    @rule(kept=st.booleans())
    def change_ends(self, kept: bool) -> None:
        for job in self.harness.changes:
            if kept:
                self.harness.jobs.moved(job, self.harness.now)
            else:
                self.harness.jobs.not_moved(job, "no space left on the device", self.harness.now)
        self.harness.changes.clear()
        self.harness.carry_out()

    @rule()
    def controller_restarts(self) -> None:
        changes = [job for job in self.harness.changes if not job.over]
        self.harness = restarted(self.harness)
        self.harness.changes = changes
        self.sessions = []

    @rule(data=st.data())
    def rejoin(self, data: st.DataObject) -> None:
        if ready := [job for job in self.harness.jobs if job.members and all(one.key for one in job.members.values())]:
            self.attempts += 1
            job = data.draw(st.sampled_from(ready))
            self.sessions.append(rejoin(self.harness, job, data.draw(st.integers(0, job.world_size)), self.attempts))

    @rule()
    def removals_end(self) -> None:
        self.harness.removed()

    @rule(seconds=st.sampled_from([0.1, 1.0, 6.0]))
    def time_passes(self, seconds: float) -> None:
        self.harness.tick(seconds)

    @invariant()
    def slots_add_up(self) -> None:
        jobs = list(self.harness.jobs)
        held = [slot for job in jobs for slot in slots_of(job)]
        assert self.harness.jobs.pools[0].used == len(held) == len(set(held))
        over = [job for job in jobs if job.state in (State.FINISHED, State.ABORTED)]
        assert {id(job) for job in over} == {id(removal.job) for removal in self.harness.removals}
        assert len(over) + len(self.harness.jobs.live) == len(jobs)

    @invariant()
    def only_the_ready_are_admitted(self) -> None:
        for session, messages in self.harness.told.items():
            kinds = [message.WhichOneof("message") for message in messages]
            assert kinds[0] in ("assigned", "ready", "abort", "waiting")
            assert kinds.count("ready") <= 1
            assert ("left" in kinds or "abort" in kinds) == (session in self.harness.ended)

    def teardown(self) -> None:
        self.harness.jobs.abort_all(pb.CONTROLLER_STOPPED, "the end")
        self.harness.carry_out()
        self.harness.removed()
        assert self.harness.jobs.pools[0].used == 0
        assert set(self.sessions) == self.harness.ended
        assert (
            self.harness.jobs.lifecycle.started
            == self.harness.jobs.lifecycle.finished + self.harness.jobs.lifecycle.aborted
        )


SPINE, LEAF1, LEAF2 = range(3)
UP = 9  # the port of each leaf that leads to the spine
TWO_LEAVES = Trees(["spine", "leaf1", "leaf2"], {LEAF1: Uplink(UP, SPINE), LEAF2: Uplink(UP, SPINE)})
ADDRESSES = [Endpoint(f"02:00:0a:00:ff:0{n}", f"10.0.255.{n}", 31314) for n in range(3)]


class TreeHarness(JobsHarness):
    """A harness with a spine and two leaves, which the spine has heard at its ports 1 and 2.

    nodes: as in `Switches`.
    """

    def __init__(self, trees: Trees = TWO_LEAVES, slots: int = 16, nodes: Sequence[int] = ()) -> None:
        super().__init__()
        count = len(set(nodes)) or len(trees.names)
        addresses = [Endpoint(f"02:00:0a:00:ff:{n:02x}", f"10.0.255.{n}", 31314) for n in range(count)]
        self.absent: dict[int, str] = {}
        self.switches = Switches(Layout(4, 64, slots), addresses, trees, nodes, default_slots=4)
        self.switches.conditions = self._conditions  # type: ignore[method-assign]
        self.jobs = Jobs(self.switches)
        number = self.switches.site.number
        for child, up in trees.uplinks.items():
            heard = Heard(number(child), addresses[number(child)], 0, 0, number(child), 1)
            self.switches.children[number(child), number(up.parent)] = heard

    def _conditions(self, number: int) -> list[Unavailable]:
        return [Unavailable(self.absent[number])] if number in self.absent else []

    def ready_at(self, *switches: int, name: str = "job") -> list[pb.Ready]:
        """Start a job with a rank at each of these switches, and return the Ready messages of its ranks."""
        sessions = [self.join(rank, len(switches), name) for rank in range(len(switches))]
        for session, switch in zip(sessions, switches, strict=True):
            assert self.hear(session, switch)
        self.placements = self.installs[0].placements
        self.installed()
        return [self.told[session][-1].ready for session in sessions]


ONE = Trees(["one"])


class ThreadsHarness(TreeHarness):
    """A harness for ranks with three engine threads."""

    def enter(self, rank: int, world_size: int = 2, name: str = "job", **options: object) -> object:
        return self.join(rank, world_size, name, **{"threads": 3, "slots": 7, **options})

    def all_heard(self, *switches: int, name: str = "job", **options: object) -> list[object]:
        """Let a rank join at each of these switches, deliver the HELLOs of all its threads, and return the sessions."""
        sessions = [self.enter(rank, len(switches), name, **options) for rank in range(len(switches))]
        for session, switch in zip(sessions, switches, strict=True):
            for thread in range(1 + len(self.assigned(session).more_jobs)):
                assert self.hear(session, switch, thread=thread)
        return sessions

    def placements(self) -> list[Placement]:  # type: ignore[override]
        return list(self.installs[0].placements.values())


ALICE, BOB, CAROL = (Caller(name, Role.USER, name) for name in ("alice", "bob", "carol"))
MONTH = 1_800_000_000.0  # in the middle of January 2027


class TenantsHarness(JobsHarness):
    """A harness whose callers have quotas. A session is a tuple (tenant, job name, rank, attempt)."""

    def __init__(self, policy: Policy | None = None, slots: int = 16, returns: bool = False) -> None:
        super().__init__(slots)
        self.tenancy = Tenancy(policy, lambda: MONTH + self.now)
        self.come_so_far = 0
        self.jobs = Jobs(self.switches, JobOptions(returns=returns), tenancy=self.tenancy)

    def come(self, caller: Caller, name: str = "job", rank: int = 0, world_size: int = 1, **options: Any) -> object:
        self.come_so_far += 1
        session = (caller.tenant, name, rank, self.come_so_far)
        join = pb.Join(job=name, rank=rank, world_size=world_size, **options)
        self.jobs.join(session, join, self.now, caller)
        self.carry_out()
        return session

    def begin(self, caller: Caller, name: str = "job", **options: Any) -> object:
        """Start a job of one rank, and return its session when the job is ready."""
        session = self.come(caller, name, **options)
        self.hear(session)
        self.installed()
        assert self.kinds(session)[-1] == "ready", self.told[session]
        return session

    def leave(self, session: object) -> None:
        super().leave(session)
        self.removed()

    def place(self, session: object) -> int:
        """Return the position in the queue that a session was told last."""
        waiting = self.told[session][-1].waiting
        assert waiting.what == pb.Waiting.QUEUE
        return waiting.place

    def status(self) -> pb.StatusReply:
        jobs = [pb.Job(name=job.name, tenant=job.tenant) for job in self.jobs]
        return pb.StatusReply(
            jobs=jobs, queue=self.jobs.queue.described(self.now), tenants=self.jobs.tenants(), joins=9
        )


class CompactionHarness(JobsHarness):
    """A harness for slot compaction, with jobs a, b and c of two ranks each.

    Each job has 4 of 16 slots, and b ends. So 8 slots are free, but no 5 adjacent ones.
    """

    def __init__(self, jobs: str = "abc", holds: bool = True) -> None:
        super().__init__(slots=16)
        self.sessions = {name: self.begin(name, 4, holds=holds) for name in jobs}
        for session in self.sessions.get("b", []):
            self.jobs.leave(session, self.now)
        self.carry_out()
        self.removed()

    def begin(self, name: str, slots: int, **options: Any) -> list[object]:
        sessions = [self.join(rank, 2, name, slots=slots, **options) for rank in range(2)]
        for session in sessions:
            self.hear(session)
        self.installed()
        for rank, member in self.job(name).members.items():
            member.key = digest(str(rank))
        return sessions

    def job(self, name: str) -> Job:
        job = self.jobs.named(name)
        assert job is not None
        return job

    def queue(self, slots: int, name: str = "d") -> object:
        session = self.join(0, 1, name, slots=slots, queue_s=1000.0)
        assert self.kinds(session) == []
        return session

    def make_room(self, *, held: bool = False) -> object:
        """Queue job d, which needs 8 adjacent slots. Job c is asked to hold, so that it can be moved.

        held: whether c then holds.
        """
        waiting = self.queue(8)
        self.tick(CHECK_INTERVAL_S)
        if held:
            self.all_hold("c", 7, first_seq=100)
        return waiting

    def all_hold(self, name: str, operations: int, *, first_seq: int = 100) -> None:
        for rank in range(2):
            self.hold(name, operations, rank=rank, first_seq=first_seq)

    def hold(self, name: str, operations: int, *, rank: int, quiet: bool = True, first_seq: int = 100) -> None:
        session = self.sessions[name][rank]
        [number] = [one.hold.number for one in self.told[session] if one.HasField("hold")][-1:]
        held = pb.Held(operations=operations, quiet=quiet, first_seq=first_seq, number=number)
        self.jobs.held(session, held, self.now)
        self.carry_out()

    def asked(self, name: str) -> list[list[int]]:
        """Return the numbers of operations in the hold messages to each rank."""
        return [
            [message.hold.operations for message in self.told[session] if message.HasField("hold")]
            for session in self.sessions[name]
        ]

    def released(self, name: str) -> list[list[tuple[int, int]]]:
        return [
            [(one.release.slots, one.release.first_seq) for one in self.told[session] if one.HasField("release")]
            for session in self.sessions[name]
        ]

    def moved(self) -> Job:
        [job] = self.changes
        self.changes.clear()
        self.jobs.moved(job, self.now)
        self.carry_out()
        return job


def report(harness: CompactionHarness, name: str, slots: int, times: int = 5) -> None:
    job = harness.job(name)
    for _ in range(times):
        for member in job.members.values():
            Reports().record(job, member, pb.Report(operations=1, most_slots=slots), harness.now)
