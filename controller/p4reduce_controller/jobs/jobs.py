# SPDX-License-Identifier: Apache-2.0
"""The life of jobs, without I/O: events and a clock go in, effects come out of `take_effects`.

    gathering --all joined and heard--> installing --switch ready--> ready --all left--> finished
        \\________________________________\\___________________________\\--anything wrong--> aborted

A finished or aborted job holds its number and slots until `freed` says that every switch has forgotten it. `restore`
takes up jobs that were ready when an earlier controller ended; their ranks are away until they `rejoin`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.messages import LONGEST_FAILURE
from p4reduce_controller.jobs.admission import conflict_with, problem_of, refusal
from p4reduce_controller.jobs.admission_queue import AdmissionQueue, Admitted, Queued, Refused
from p4reduce_controller.jobs.deadlines import Awaited, awaited, overdue
from p4reduce_controller.jobs.effects import Effect
from p4reduce_controller.jobs.failover import Failover
from p4reduce_controller.jobs.gathering import Gathering
from p4reduce_controller.jobs.job import Job, Member, Session, State
from p4reduce_controller.jobs.lifecycle import JobOptions, Lifecycle
from p4reduce_controller.jobs.numbers import JobNumbers
from p4reduce_controller.jobs.questions import Questions
from p4reduce_controller.jobs.registry import Registry
from p4reduce_controller.jobs.slot_compaction import SlotCompaction
from p4reduce_controller.jobs.switches import Switches
from p4reduce_controller.jobs.tenancy import Tenancy
from p4reduce_controller.switches.aggregator import Children
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.pools import SlotPool
from p4reduce_controller.switches.trees import Misplaced
from p4reduce_controller.tenants.access import ANYONE, LONGEST_NAME, Caller

NOTIFY_AFTER = 0.2  # seconds from a job's start; most jobs are ready before, and need no notice of who is awaited
NOTICES_A_SECOND = 250  # of each job, about changes of the ranks that it waits for
BROKEN = "was lost: its connection to the controller broke"


class Jobs:
    """All jobs of one switch, or of several trees of switches that share the slots of each job.

    Every switch with a parent must have been heard by its parent before jobs begin.
    """

    def __init__(
        self,
        switches: Switches,
        options: JobOptions | None = None,
        *,
        tenancy: Tenancy | None = None,
        fixed: Sequence[Mapping[str, int]] = (),
    ) -> None:
        """Create the jobs' parts. `fixed`: for each switch, the configured ports of MAC addresses."""
        options = options or JobOptions()
        self.switches = switches
        self.tenancy = tenancy or Tenancy()
        self._registry = registry = Registry(JobNumbers())
        addresses = switches.addresses
        for (number, address), hosts in zip(addresses.items(), fixed or [{}] * len(addresses), strict=True):
            registry.switch_comes(number, switches.site.layout.slots, address, hosts)
        self.lifecycle = lifecycle = Lifecycle(registry, self.tenancy, options)
        self._gathering = Gathering(registry, switches, self.tenancy, lifecycle)
        self._questions = Questions(switches, lifecycle)
        self.queue = AdmissionQueue(registry, switches, self.tenancy, options.rejoin_time)
        moves_slots = options.moves_slots
        self._compaction = SlotCompaction(lifecycle, registry, self.queue, switches, moves_slots=moves_slots)
        self._failover = Failover(lifecycle, registry, switches, enabled=moves_slots)
        # Events that one part handles alone.
        self.on_hello = self._gathering.on_hello
        self.installed, self.freed = lifecycle.installed, registry.free
        self.looked = self._questions.answer
        self.moved, self.not_moved = self._compaction.done, self._compaction.failed
        self.stored, self.taken_over = self._failover.stored, self._failover.taken_over
        self.lost_at = self._failover.lost_at

    def __iter__(self) -> Iterator[Job]:
        return iter(self._registry)

    @property
    def pools(self) -> tuple[SlotPool, ...]:
        return tuple(self._registry.pools.values())

    def pool(self, number: int) -> SlotPool:
        return self._registry.pools[number]

    @property
    def live(self) -> list[Job]:
        return self._registry.live

    def member_at(self, session: Session) -> tuple[Job, Member] | None:
        """Return the job and the member with that stream, while the job lives."""
        return self.lifecycle.sessions.get(session)

    def take_effects(self) -> list[Effect]:
        """Return the effects to carry out now, in this order. Each effect is returned once."""
        effects, self.lifecycle.effects = self.lifecycle.effects, []
        return effects

    # Events from ranks.

    def join(self, session: Session, join: pb.Join, now: float, caller: Caller = ANYONE) -> None:
        self.lifecycle.now = now
        job = self._registry.named(join.job, caller.tenant)
        if job is None:
            self._answer(self.queue.offer(session, join, caller, now))
            return
        slots = self.switches.slots_at(job.site)
        problem = self.switches.problem_of(join, job.site, new=False) or conflict_with(job, join, slots)
        if problem is None:
            self.lifecycle.add_member(job, session, join)
            return
        abort = refusal(join, problem)
        self.lifecycle.tell(session, pb.ServerMessage(abort=abort), last=True)
        if job.state is State.GATHERING:  # a latecomer does not disturb a job that runs
            self.lifecycle.abort(job, abort)

    def _answer(self, answers: Iterable[Admitted | Queued | Refused]) -> None:
        """Carry out the decisions of the queue, and tell the ranks."""
        for one in answers:
            if isinstance(one, Refused):
                for session in one.sessions:
                    self.lifecycle.tell(session, pb.ServerMessage(abort=one.abort), last=True)
            elif isinstance(one, Admitted):
                self.lifecycle.begin(one.job)
                for session, join, _ in one.entry.ranks.values():
                    self.lifecycle.add_member(one.job, session, join)

    def rejoin(self, session: Session, rejoin: pb.Rejoin, now: float, caller: Caller = ANYONE) -> None:
        self.lifecycle.now = now
        if found := self.lifecycle.readmit(session, rejoin, caller):
            self._compaction.came_back(*found)
            self._failover.came_back(*found)

    def rounds(self, session: Session, rounds: pb.Rounds) -> None:
        """Handle the message that a rank has suspended slots."""
        if found := self.member_at(session):
            self._failover.rounds(*found, rounds)

    def held(self, session: Session, held: pb.Held, now: float) -> None:
        """Handle the message that a rank has paused."""
        if found := self.member_at(session):
            self._compaction.held(*found, held, now)

    def unanswered(self, session: Session, half: int, now: float) -> None:
        if found := self.member_at(session):
            job, member = found
            if half < 2 * job.slots:
                self._failover.unanswered(job, half, now)
            self._questions.ask(job, member, half)

    def leave(self, session: Session, now: float, *, lingers: bool = False) -> None:
        """Handle that a rank leaves. `lingers`: it still sends packets again if a switch is lost."""
        self.lifecycle.now = now
        if (found := self.member_at(session)) is None:
            self._answer(self.queue.give_up(session, "left before the job was admitted"))
            return
        job, member = found
        if job.state is State.READY:
            self.lifecycle.leave(job, member, lingers=lingers)
            if not lingers:
                self._failover.gone(job, member)
        else:
            self._blame(job, member.rank, pb.LEFT_EARLY, "left before the job was ready")

    def lost(self, session: Session, what: str = BROKEN) -> None:
        """Handle the end of a rank's stream. After a Leave, this ends no job. `what`: the text for other ranks."""
        if (found := self.member_at(session)) is None:
            self._answer(self.queue.give_up(session, what))
            return
        job, member = found
        if not member.leaving:
            self._blame(job, member.rank, pb.WORKER_LOST, what)
        elif member.lingers:
            member.lingers = False
            self._failover.gone(job, member)

    def rank_failed(self, session: Session, failed: pb.Failed) -> None:
        """Abort the job because a rank has failed. The other ranks learn which rank failed, and why."""
        if (found := self.member_at(session)) is None:
            return
        job, member = found
        if member.leaving:
            return
        why = "".join(each if each.isprintable() else " " for each in failed.message[:LONGEST_FAILURE])
        if failed.mismatch:
            reason = pb.WORKER_LOST  # earlier releases know this reason
            self.lifecycle.abort(job, pb.Abort(rank=member.rank, reason=reason, message=why, mismatch=True))
        elif failed.HasField("rank") and failed.rank != member.rank and failed.rank in job.members:
            self._blame(job, failed.rank, pb.WORKER_LOST, f"has failed, as rank {member.rank} reports: {why}")
        else:
            self._blame(job, member.rank, pb.WORKER_LOST, f"has failed: {why}")

    def _blame(self, job: Job, rank: int, reason: pb.AbortReason, what: str) -> None:
        self.lifecycle.abort(job, job.blame([rank], reason, what))

    # Events from the switches.

    def switch_comes(self, number: int, address: Endpoint, fixed: Mapping[str, int]) -> None:
        """Prepare for a new switch, before the site contains it. `fixed`: the configured ports of MAC addresses."""
        self._registry.switch_comes(number, self.switches.site.layout.slots, address, fixed)

    def switch_goes(self, number: int) -> None:
        """Forget a switch that no job holds slots at and that is no longer in the site.

        Jobs that gather end if their site contains it.
        """
        self.switches.children = {pair: one for pair, one in self.switches.children.items() if number not in pair}
        for job in self.live:
            if job.state is State.GATHERING and (index := job.site.index_of(number)) is not None:
                why = f"the switch {job.site.trees.names[index]} was removed while its ranks gathered; join again"
                self.lifecycle.end(job, pb.JOIN_REFUSED, why)
        self._registry.switch_goes(number)

    def end_at(self, number: int, why: str) -> None:
        for job in [job for job in self.live if number in job.holds]:
            name = job.site.trees.names[job.site.index_of(number) or 0]
            self.lifecycle.end(job, pb.ENDED_BY_OPERATOR, f"its switch {name} {why}")

    def held_at(self, number: int) -> list[Job]:
        return [job for job in self if number in job.holds]

    def awaits(self, nonce: int) -> bool:
        """Return whether a rank has this nonce whose HELLO counts, or is to be answered."""
        return nonce in self.lifecycle.awaited

    def failed(self, job: Job, why: str, reason: pb.AbortReason = pb.SWITCH_FAILED) -> None:
        """End the job because a switch could not be set up for it, or has lost it."""
        self.lifecycle.end(job, reason, why)

    def notice(self, job: Job, text: str) -> None:
        for member in job.members.values():
            self.lifecycle.tell(member.session, pb.ServerMessage(notice=pb.Notice(text=text)))

    # Jobs of an earlier run.

    def restore(self, jobs: Sequence[Job], children: Children) -> None:
        """Restore jobs that were ready, before there are others. Raises ValueError if one cannot have been ready."""
        self.switches.children = dict(children)
        self._registry.restore_numbers(jobs)
        retained = self._registry.pools.keys() - set(self.switches.numbers)
        for job in jobs:
            try:
                request = pb.Join(
                    job=job.name, world_size=job.world_size, slots=job.slots, threads=job.threads, numbers=True
                )
                if problem := problem_of(request, job.site, job.slots):
                    raise ValueError(problem)
                job.children = self.switches.children_at(job.site) | job.children
                self._registry.restore(job, job.children)
            except (ValueError, Misplaced) as error:
                raise ValueError(f"job {job.name!r}: {error}") from None
            for index, heard in job.children.items():
                pair = job.site.number(index), job.site.number(job.site.trees.uplinks[index].parent)
                if retained & set(pair):
                    self.switches.children[pair] = heard
            self.lifecycle.started += 1

    def expect_returns(self, now: float) -> None:
        """Start the time in which ranks that are away can come back."""
        self.queue.expect_returns(now)
        for job in self.live:
            for member in job.away:
                member.away_since = now

    # Events from the clock and from above.

    def tick(self, now: float) -> None:
        """End jobs that are overdue, and tell ranks whom they wait for. Call it about every 0.1 s."""
        self.lifecycle.now = now
        self.lifecycle.aborts.age(now)
        self._answer(self.queue.admit(now))
        self._compaction.tick(now)
        self._failover.tick(now)
        self._answer(self.queue.expire(now))
        for session, notice in self.queue.notices():
            self.lifecycle.tell(session, pb.ServerMessage(waiting=notice))
        for job in self.live:
            self.tenancy.charge(job, now)
        for job in self.live:
            if self.tenancy.is_spent(job.tenant):
                self.lifecycle.end(job, pb.QUOTA_EXCEEDED, self.tenancy.spent_text(job.tenant))
                continue
            gathering = job.state is State.GATHERING
            site = self._registry.site_with_threads(job)
            if gathering:  # it may have had no room while another job was moved
                self._gathering.proceed(job)
            if gathering and job.state is not State.GATHERING:
                continue
            if abort := overdue(job, site, now):
                if abort.reason == pb.LEFT_EARLY and (cause := self._failover.trouble(job)):
                    abort = pb.Abort(reason=pb.SWITCH_LOST, message=f"{abort.message}; {cause}")
                if gathering:
                    unavailable = [
                        *job.excluded_switches,
                        *self.switches.unavailable(job.site, range(job.site.nodes)),
                    ]
                    abort.message += "".join(f"; {text}" for text in unavailable)
                self.lifecycle.abort(job, abort)
            elif why := gathering and self.switches.unreachable(job.site, {one.switch for one in job.members.values()}):
                self.lifecycle.end(job, pb.JOIN_REFUSED, str(why))
            elif now - job.started >= NOTIFY_AFTER and (waits := awaited(job)):
                self._notify(job, waits, now)

    def _notify(self, job: Job, waits: Awaited, now: float) -> None:
        """Tell members what they wait for: at once if they wait for something else than before, changes later."""
        noticed, all_changes = (waits.what, len(waits.waiting)), now >= job.next_notice
        if all_changes:
            job.next_notice = now + job.world_size / NOTICES_A_SECOND
        elif job.noticed == noticed:
            return
        job.noticed = noticed
        others, themselves = waits.notices()
        ranks = set(waits.ranks)
        for member in waits.waiting:
            notice, last = themselves if member.rank in ranks else others, member.last_notice
            if last is None or last.what != notice.what or (all_changes and last != notice):
                member.last_notice = notice
                self.lifecycle.tell(member.session, pb.ServerMessage(waiting=notice))

    def end(self, name: str, caller: Caller, tenant: str, why: str) -> str:
        """End a job, running or queued, for a user. Return its tenant. Raises as `owner_of` does."""
        owner = self.owner_of(name, caller, tenant)
        by = f"was ended by {caller.name}" if caller.name else "was ended"
        text = f"{by}: {why}" if why else by
        job, entry = self.named(name, owner), self.queue.waitlist.named(owner, name)
        if job is not None:
            self.lifecycle.end(job, pb.ENDED_BY_USER, text)
        if entry is not None:
            self._answer([self.queue.dismiss(entry, pb.ENDED_BY_USER, text)])
        return owner

    def owner_of(self, name: str, caller: Caller, tenant: str) -> str:
        """Return the tenant of the job, running or queued, that the caller means. Raises LookupError if there is none.

        If `tenant` is "", it is the caller's own tenant, or the only one with a job of that name.
        """
        mine = [one for one in (*self.live, *self.queue.waitlist) if caller.ends(one.tenant)]
        whose = {one.tenant for one in mine if one.name == name and tenant in ("", one.tenant)}
        if not tenant and caller.tenant in whose:
            return caller.tenant
        if len(whose) > 1:
            raise LookupError(
                f"job {name[:LONGEST_NAME]!r}: the tenants {', '.join(sorted(whose))} each have a job of that name; "
                "name the tenant"
            )
        if not whose:
            there = ", ".join(repr(one.name) for one in mine[:8]) or "none"
            raise LookupError(f"there is no job {name[:LONGEST_NAME]!r}; the jobs are {there}")
        return str(*whose)

    def named(self, name: str, tenant: str = "") -> Job | None:
        """Return the job of that name that has not ended."""
        return self._registry.named(name, tenant)

    def tenants(self) -> list[pb.Tenant]:
        held = self._registry.held
        names = {*self.tenancy.known(), *held.jobs, *(entry.tenant for entry in self.queue.waitlist)}
        return [self.tenancy.described(name, held) for name in sorted(names)]

    def abort_all(self, reason: pb.AbortReason, why: str, *, except_ready: bool = False) -> None:
        for entry in self.queue.waitlist if not except_ready else ():  # the others move to a later controller
            self._answer([self.queue.dismiss(entry, reason, why)])
        for job in self.live:
            if not (except_ready and job.state is State.READY):
                self.lifecycle.end(job, reason, why)
