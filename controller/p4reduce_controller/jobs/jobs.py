# SPDX-License-Identifier: Apache-2.0
"""The life of jobs, without I/O: events and a clock go in, effects come out of `take_effects`.

    gathering --all joined and heard--> installing --switch ready--> ready --all left--> finished
        \\________________________________\\___________________________\\--anything wrong--> aborted

A finished or aborted job holds its number and slots until `freed` says that every switch has forgotten it. `restore`
takes up jobs that were ready when an earlier controller ended; their ranks are away until they `rejoin`.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.messages import MOST_SAID
from p4reduce.transport.base import mtu_advice
from p4reduce_controller.jobs.aborts import Aborts
from p4reduce_controller.jobs.admission import DEFAULT_SLOTS, DEFAULT_TIMEOUT, LONGEST_NAME, problem_of, quarrel_with
from p4reduce_controller.jobs.deadlines import LEAVE_GRACE, REJOIN_TIME, awaited, overdue
from p4reduce_controller.jobs.door import Door
from p4reduce_controller.jobs.effects import Answer, Effect, Install, Look, Remove, Tell
from p4reduce_controller.jobs.job import Job, Member, Move, Session, State
from p4reduce_controller.jobs.moves import Moves
from p4reduce_controller.jobs.numbers import JobNumbers
from p4reduce_controller.jobs.placement import check_room, find_slots, on_the_way, place, told_when_ready
from p4reduce_controller.jobs.pools import PoolFull, SlotPool
from p4reduce_controller.jobs.rearranging import Change, grow, make_room
from p4reduce_controller.jobs.registry import Registry
from p4reduce_controller.jobs.waitlist import Entry
from p4reduce_controller.switches.aggregator import Heard, Layout
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.site import Site
from p4reduce_controller.switches.trees import Misplaced, Trees
from p4reduce_controller.tenants.access import ANYONE, Caller
from p4reduce_controller.tenants.quotas import Tenancy

TELL_AFTER = 0.2  # seconds from a job's beginning; most are ready before, and nobody needs to know whom they wait for
SHORT_HELLOS = 20  # of a rank of which no full one comes: so many are not lost by chance
FORGOTTEN_WITHIN = 10.0  # seconds, by the switches, of a job that is over; longer only where one is away
BROKEN = "was lost: its connection to the controller broke"


class Jobs:
    """All jobs of one switch, or of several trees of switches over which the slots of each are dealt.

    `child_heard` has to have told where every switch with a parent is before there are jobs.
    """

    def __init__(
        self,
        layout: Layout,
        addresses: Sequence[Endpoint],
        *,
        trees: Trees | None = None,
        fixed: Sequence[Mapping[str, int]] = (),
        rejoin_time: float = REJOIN_TIME,
        leave_grace: float = LEAVE_GRACE,
        default_slots: int = DEFAULT_SLOTS,
        numbers: JobNumbers | None = None,
        first_seq: Callable[[], int] = lambda: secrets.randbits(31) << 1,
        nonce: Callable[[], int] = lambda: secrets.randbits(64),
        returns: bool = False,
        absence: Callable[[int], str] = lambda _: "",
        problem: Callable[[int], str] = lambda _: "",
        closed: Callable[[int], str] = lambda _: "",
        tenancy: Tenancy | None = None,
        note: Callable[[Job, str], None] = lambda _, __: None,
        moves_slots: bool = True,
    ) -> None:
        """`layout`: of every switch. `addresses`: where workers send to, one a switch. `trees`: by default one each.
        `fixed`: of each switch, the ports of MAC addresses that the controller was told.

        `returns`: ranks are given a key, with which they can come back to a later controller that restores the jobs,
        within `rejoin_time` seconds. `leave_grace`: seconds from the first rank's leaving until all must have left.
        `absence`: why new jobs cannot count on the switch of that number now, or "". `problem`: why it is not in hand,
        be it for a moment, or "". `closed`: why it takes no jobs that begin.
        `note`: is told of jobs that begin ("") and end, with what became of them.
        `moves_slots`: those that run may get others, and fewer where they hardly use them, when jobs wait for room.
        """
        self.started = self.aborted = self.finished = self.joins = 0
        self.site = Site(layout, tuple(addresses), trees or Trees([str(address) for address in addresses]))
        self._usable: tuple[Site, frozenset[int], Site] | None = None
        self._rejoin_time = rejoin_time
        self._leave_grace = leave_grace
        self._registry = Registry(numbers or JobNumbers())
        for number, (address, hosts) in enumerate(zip(addresses, fixed or [{}] * len(addresses), strict=True)):
            self._registry.switch_comes(number, layout.slots, address, hosts)
        self._default_slots = default_slots
        self._first_seq = first_seq
        self._nonce = nonce
        self._returns = returns
        self._absence = absence
        self._problem = problem
        self.closed = closed
        self.severed: Callable[[int], str] = lambda _: ""  # why a switch does not reach its parent
        self._seats: dict[Session, tuple[Job, Member]] = {}
        self._awaited: set[int] = set()  # nonces of the ranks of jobs
        self._now = 0.0  # at the last tick
        self._effects: list[Effect] = []
        self._children: dict[int, Heard] = {}
        self._aborts = Aborts()
        self._note = note
        self.tenancy = tenancy or Tenancy()
        self._queued: list[tuple[str, str]] = []
        self._door = Door(self._registry, self.tenancy, self._found, self._for_new, self._shut, default_slots)
        self._moves_slots = moves_slots
        self._moves = Moves(self._registry, self._effects_add, self._tell, self._change_wanted, self._hindrance)

    def __iter__(self) -> Iterator[Job]:
        """All that hold slots."""
        return iter(self._registry)

    @property
    def pools(self) -> tuple[SlotPool, ...]:
        """One a switch."""
        return tuple(self._registry.pools.values())

    def pool(self, number: int) -> SlotPool:
        """Of the switch that the controller calls so."""
        return self._registry.pools[number]

    @property
    def live(self) -> list[Job]:
        """Jobs that are not over."""
        return self._registry.live

    @property
    def children(self) -> Mapping[int, Heard]:
        """Where each switch with a parent was heard by it."""
        return self._children

    def member_at(self, session: Session) -> tuple[Job, Member] | None:
        """Whose stream that is, while its job lives."""
        return self._seats.get(session)

    def take_effects(self) -> list[Effect]:
        """What is to be done now, in this order. Each effect is given once."""
        effects, self._effects = self._effects, []
        return effects

    # Events from ranks.

    def join(self, session: Session, join: pb.Join, now: float, caller: Caller = ANYONE) -> None:
        self._now = now
        job = self._registry.named(join.job, caller.tenant)
        site = job.site if job is not None else self._for_new()
        queued = job is None and self._door.waitlist.named(caller.tenant, join.job) is not None
        if queued and self._shut([join]) is not None:
            problem = problem_of(join, self.site, self._slots_at(self.site))  # it waits with the others of its job
        else:
            problem = self._problem_of(join, site, new=job is None)
        if problem is None and job is None:
            problem = self._door.problem_of(join, caller)
        if problem is None and job is not None:
            problem = quarrel_with(job, join, self._slots_at(site))
        if problem is not None:
            self._refuse(session, join, problem, caller)
        elif job is not None:
            self._seat(job, session, join, now)
        else:
            entry = self._door.waitlist.add(session, join, caller, join.slots or self._slots_at(site), now)
            self._let_in(now)
            waits = join.queue_s or self._has_room_soon(entry)
            if not waits and self._door.waitlist.of(session) is not None:
                self._dismiss(entry, pb.SLOTS_EXHAUSTED, f"rank {join.rank} is refused: {entry.why}")

    def _problem_of(self, join: pb.Join, site: Site, *, new: bool) -> str | None:
        """Why the rank cannot be served by these switches. `new`: by a job that begins."""
        problem = self._left_out(site, join) or problem_of(join, site, self._slots_at(site))
        return problem or self._nobody_at(site, join.switch, new=new)

    def _slots_at(self, site: Site) -> int:
        """Of jobs that leave it to the controller."""
        return min(self._default_slots, site.capacity)

    def _refuse(
        self, session: Session, join: pb.Join, problem: str, caller: Caller, reason: pb.AbortReason = pb.JOIN_REFUSED
    ) -> None:
        name = join.job[:LONGEST_NAME]
        message = f"job {name!r}: rank {join.rank} is refused: {problem}"
        refusal = pb.Abort(rank=join.rank, reason=reason, message=message)
        self._tell(session, pb.ServerMessage(abort=refusal), last=True)
        # Ranks that still gather, or wait in the queue, would do so in vain. A job that runs is not troubled by a
        # latecomer.
        job = self._registry.named(join.job, caller.tenant)
        if job is not None and job.state is State.GATHERING:
            self._abort(job, refusal)
        if entry := self._door.waitlist.named(caller.tenant, join.job):
            self._dismiss(entry, pb.JOIN_REFUSED, f"rank {join.rank} is refused: {problem}", join.rank)

    def rejoin(self, session: Session, rejoin: pb.Rejoin, now: float, caller: Caller = ANYONE) -> None:
        """The rank is back, on a new stream. Of a job that is another tenant's, the caller hears nothing."""
        job = self._registry.numbered(rejoin.job, rejoin.generation)
        if job is not None and job.tenant and not caller.ends(job.tenant):
            job = None
        member = job.members.get(rejoin.rank) if job is not None else None
        known = member is not None and bool(member.key) and hmac.compare_digest(digest(rejoin.key), member.key)
        if job is None or member is None or not known or job.state is not State.READY:
            why_not = self._why_not(rejoin, job, caller, stranger=not known)
            self._tell(session, pb.ServerMessage(abort=why_not), last=True)
            return
        was_away = member.session is None
        if member.session is not None:  # it noticed the break of its stream before we did
            del self._seats[member.session]
            moved = pb.Abort(
                rank=member.rank, reason=pb.JOIN_REFUSED, message="the rank has reconnected on another stream"
            )
            self._tell(member.session, pb.ServerMessage(abort=moved), last=True)
        member.session, member.told = session, None
        self._seats[session] = (job, member)
        if was_away and job.leave_deadline is not None:  # which it knew nothing of
            job.leave_deadline = now + self._leave_grace
        self._tell(session, pb.ServerMessage(ready=self._ready(job, member)))
        self._moves.came_back(job, member)

    def held(self, session: Session, held: pb.Held, now: float) -> None:
        """The rank begins no operation at present."""
        if seat := self.member_at(session):
            self._moves.held(*seat, held, now)

    def leave(self, session: Session, now: float) -> None:
        self._now = now
        if session not in self._seats:
            self._give_up_queue(session, "left before the job was admitted")
            return
        job, member = self._seats[session]
        if job.state is not State.READY:
            self._abort(job, job.blame([member.rank], pb.LEFT_EARLY, "left before the job was ready"))
            return
        member.leaving = True
        if all(other.leaving for other in job.members.values()):
            self._finish(job)
        elif job.leave_deadline is None:
            job.leave_deadline = now + self._leave_grace

    def unanswered(self, session: Session, half: int) -> None:
        """The rank has no answer in that half. One question of each rank is kept, and one look is under way in a job,
        so that nobody can ask more of the switches."""
        if session not in self._seats:
            return
        job, member = self._seats[session]
        if job.state is State.READY and half < 2 * job.slots:
            if away := self._unusable(job.site, sorted({*job.ranges} & {*range(job.site.switches)})):
                notice = pb.Waiting(what=pb.Waiting.AWAY, why="; ".join(away))
                self._tell(session, pb.ServerMessage(waiting=notice))
            job.unanswered.setdefault(member.rank, half)
            self._look(job)

    def lost(self, session: Session, what: str = BROKEN) -> None:
        """The rank's stream has ended. After its Leave that is no news. `what`: what the others are told of it."""
        if session not in self._seats:
            self._give_up_queue(session, what)
            return
        job, member = self._seats[session]
        if not member.leaving:
            self._abort(job, job.blame([member.rank], pb.WORKER_LOST, what))

    def rank_failed(self, session: Session, failed: pb.Failed) -> None:
        """The rank cannot go on: the others learn why, and of which rank."""
        if session not in self._seats:
            return
        job, member = self._seats[session]
        if member.leaving:
            return
        why = "".join(each if each.isprintable() else " " for each in failed.message[:MOST_SAID])
        if failed.mismatch:
            reason = pb.WORKER_LOST  # as earlier releases know it
            self._abort(job, pb.Abort(rank=member.rank, reason=reason, message=why, mismatch=True))
        elif failed.HasField("rank") and failed.rank != member.rank and failed.rank in job.members:
            self._abort(
                job, job.blame([failed.rank], pb.WORKER_LOST, f"has failed, as rank {member.rank} reports: {why}")
            )
        else:
            self._abort(job, job.blame([member.rank], pb.WORKER_LOST, f"has failed: {why}"))

    # Events from the switches.

    def child_heard(self, child: int, hello: Heard) -> None:
        """Where a switch is that has a parent, as the parent has heard it."""
        self._children[child] = hello

    def change_site(self, site: Site) -> None:
        """For jobs that begin from now on. The others keep theirs."""
        self.site = site

    def switch_comes(self, number: int, address: Endpoint, fixed: Mapping[str, int]) -> None:
        """Before `change_site` has it. `fixed`: the ports of MAC addresses that do not have to be learned."""
        self._registry.switch_comes(number, self.site.layout.slots, address, fixed)

    def switch_goes(self, number: int) -> None:
        """No job holds slots there, and the site has it no more. Jobs that gather may have had it in mind."""
        self._children.pop(number, None)
        for job in self.live:
            if job.state is State.GATHERING and (place := job.site.place_of(number)) is not None:
                why = f"the switch {job.site.trees.names[place]} was removed while its ranks gathered; join again"
                self._abort(job, pb.Abort(reason=pb.JOIN_REFUSED, message=f"job {job.name!r}: {why}"))
        self._registry.switch_goes(number)

    def end_at(self, number: int, why: str) -> None:
        """Aborts all jobs that have slots there."""
        for job in [job for job in self.live if number in job.holds]:
            name = job.site.trees.names[job.site.place_of(number) or 0]
            text = f"job {job.name!r}: its switch {name} {why}"
            self._abort(job, pb.Abort(reason=pb.ENDED_BY_OPERATOR, message=text))

    def held_at(self, number: int) -> list[Job]:
        """All that hold slots there, those that are over too."""
        return [job for job in self if number in job.holds]

    def forget_child(self, number: int) -> None:
        """Its parent is another now."""
        self._children.pop(number, None)

    def awaits(self, nonce: int) -> bool:
        """Whether a rank has it that may have to be heard, or answered."""
        return nonce in self._awaited

    def heard(self, switch: int, hello: Heard) -> bool:
        """True when there is something to carry out.

        It is that of a rank that the job still waited for in that switch's tree, or one that is to be answered.
        """
        known = self._registry.thread(hello.job, hello.generation)
        if known is None:
            return False
        job, thread = known
        children, here = self._children_at(job.site), job.site.place_of(switch)
        if here is None or job.site.leads_to_a_switch(here, hello.port, children):
            return False  # it was meant for another switch, which is nearer to the rank
        at, site = job.site.switches * thread + here, self._registry.site_of(job)
        if job.state is State.READY:
            return self._answered(job, at, hello)
        if job.state is not State.GATHERING:
            return False
        member = job.members.get(hello.worker)
        if member is None or member.nonce != hello.nonce or at not in site.within_reach(member.switch):
            return False
        if member.switch != job.site.trees.names[here] and job.site.trees.children(here) - children.keys():
            return False  # it may have come by one of those, whose ports are not known
        if site.trees.among(list(member.heard), site.trees.tree(at)):
            return False
        if hello.short:
            return self._too_long(job, member, at)
        if problem := self._registry.claim(job, at, hello):
            where = f"at the switch {job.site.addresses[here]}"
            self._abort(job, job.blame([member.rank], pb.JOIN_REFUSED, f"is refused {where}: {problem}"))
            return True
        member.heard[at] = hello
        if hello.full:  # so the rank has its answer by the time that it is released
            self._effects.append(Answer(site.number(at), hello))
        self._proceed(job)
        return True

    def _answered(self, job: Job, at: int, hello: Heard) -> bool:
        """Whether a rank wants to know that what is as long as any packet comes to it, too, or that anything does."""
        member = job.members.get(hello.worker)
        heard = member.heard.get(at) if member is not None and member.nonce == hello.nonce else None
        if not (hello.full or hello.short) or heard is None or (heard.port, heard.sender) != (hello.port, hello.sender):
            return False
        self._effects.append(Answer(job.site.number(at), hello))
        return True

    def _too_long(self, job: Job, member: Member, at: int) -> bool:
        """Counts a short HELLO. Whether there were so many that the full ones between them were not lost by chance."""
        member.short[at] += 1
        if member.short[at] < SHORT_HELLOS:
            return False
        needed, where = job.site.layout.mtu, job.site.addresses[at % job.site.switches]
        text = (
            f"is refused at the switch {where}: its short packets arrive there, but not the job's longest, {needed} "
            f"bytes with IPv4 headers; every link on the way needs an MTU of {needed} or more{mtu_advice(needed)}"
        )
        self._abort(job, job.blame([member.rank], pb.JOIN_REFUSED, text))
        return True

    def installed(self, job: Job) -> None:
        if job.state is State.INSTALLING:
            job.state = State.READY
            self._awaited |= {member.nonce for member in job.members.values()}
            for member in job.members.values():
                self._tell(member.session, pb.ServerMessage(ready=self._ready(job, member)))

    def failed(self, job: Job, why: str, reason: pb.AbortReason = pb.SWITCH_FAILED) -> None:
        """A switch could not be set up for the job, or has lost it."""
        self._abort(job, pb.Abort(reason=reason, message=f"job {job.name!r}: {why}"))

    def moved(self, job: Job, now: float) -> None:
        """Every switch has it in its new slots alone, and it is kept so."""
        self._moves.done(job, now)

    def not_moved(self, job: Job, why: str, now: float) -> None:
        """It could not be kept in its new slots, and no switch has it there."""
        self._moves.failed(job, why, now)

    def looked(self, job: Job, half: int, found: pb.Counted | None) -> None:
        """What the switches hold in that half, if they have said it."""
        job.looking = False
        job.unanswered = {rank: other for rank, other in job.unanswered.items() if other != half}
        if found is not None:
            job.uncounted = sorted(set(job.workers) - set(found.ranks)), self._now
        if job.state is State.READY:
            for member in job.members.values() if found is not None else ():
                self._tell(member.session, pb.ServerMessage(counted=found))
            self._look(job)

    def _look(self, job: Job) -> None:
        if job.unanswered and not job.looking:
            job.looking = True
            self._effects.append(Look(job, next(iter(job.unanswered.values()))))

    def freed(self, job: Job) -> None:
        """Every switch has forgotten the job."""
        self._registry.free(job)

    # Jobs of an earlier run.

    def restore(self, jobs: Iterable[Job], children: Mapping[int, Heard]) -> None:
        """Takes up jobs that were ready, before there are others. Raises ValueError for those that cannot have been."""
        self._children = dict(children)
        jobs = list(jobs)
        self._registry.resume(jobs)
        for job in jobs:
            try:
                request = pb.Join(job=job.name, world_size=job.world_size, slots=job.slots, threads=job.threads)
                if problem := problem_of(request, job.site, job.slots):
                    raise ValueError(problem)
                job.children = self._children_at(job.site) | job.children
                self._registry.take_up(job, job.children)
            except (ValueError, Misplaced) as error:
                raise ValueError(f"job {job.name!r}: {error}") from None
            at = {job.site.number(place): heard for place, heard in job.children.items()}
            aside = self._registry.pools.keys() - {self.site.number(place) for place in range(self.site.switches)}
            self._children |= {number: heard for number, heard in at.items() if number in aside}
            self.started += 1

    def expect_returns(self, now: float) -> None:
        """From now on, ranks that are away can come back."""
        self._door.expect_returns(now)
        for job in self.live:
            for member in job.away:
                member.away_since = now

    def expect_queue(self, kept: Sequence[Any], now: float) -> None:
        """Jobs that waited for slots at an earlier controller have their places when their ranks come back soon. Raises
        ValueError."""
        self._door.expect(kept, time.time(), now)

    def queue_to_keep(self, now: float) -> list[dict[str, Any]]:
        """What `expect_queue` takes."""
        return self._door.to_keep(time.time(), now)

    def queue_changed(self) -> bool:
        """Since it was asked last."""
        before, self._queued = self._queued, [(one.tenant, one.name) for one in self._door.waitlist]
        return before != self._queued

    # Events from the clock and from above.

    def tick(self, now: float) -> None:
        """Ends what is over time, and tells ranks whom they wait for. Call it every tenth of a second or so."""
        self._now = now
        self._aborts.age(now)
        self._see_to_the_queue(now)
        for job in self.live:
            self.tenancy.charge(job, now)
        for job in self.live:
            if self.tenancy.is_spent(job.tenant):
                text = f"job {job.name!r}: {self.tenancy.spent_text(job.tenant)}"
                self._abort(job, pb.Abort(reason=pb.QUOTA_EXCEEDED, message=text))
                continue
            gathering = job.state is State.GATHERING
            site = self._registry.site_of(job)
            if gathering:  # and may have had no room while another was moved
                self._proceed(job)
            if gathering and job.state is not State.GATHERING:
                continue
            if abort := overdue(job, site, now):
                if gathering:
                    unusable = [*job.left_out, *self._unusable(job.site, range(job.site.switches))]
                    abort.message += "".join(f"; {text}" for text in unusable)
                self._abort(job, abort)
            elif why := gathering and self._nobody_at(job.site, *{member.switch for member in job.members.values()}):
                self._abort(job, pb.Abort(reason=pb.JOIN_REFUSED, message=f"job {job.name!r}: {why}"))
            elif now - job.started >= TELL_AFTER and (waits := awaited(job, site)):
                notice, waiting = waits
                for member in waiting:
                    if member.told != notice:
                        member.told = notice
                        self._tell(member.session, pb.ServerMessage(waiting=notice))

    def _see_to_the_queue(self, now: float) -> None:
        self._let_in(now)
        self._moves.tick(now)
        for entry, why in self._door.overdue(now):
            if not self._has_room_soon(entry):
                self._dismiss(entry, pb.SLOTS_EXHAUSTED, why)
        for session, notice in self._door.notices():
            self._tell(session, pb.ServerMessage(waiting=notice))

    def _has_room_soon(self, entry: Entry) -> bool:
        """What it waits for may be held for a moment only: twice, or by a job that is over."""
        return (entry.no_room and self._moving) or (entry.for_others and self._freeing)

    @property
    def _freeing(self) -> bool:
        """Some job is over, and its switches are about to forget it."""
        return any(job.over and self._now - job.over_since < FORGOTTEN_WITHIN for job in self._registry)

    @property
    def _moving(self) -> bool:
        """Some job has its former slots, and its new ones."""
        return any(job.moving for job in self._registry)

    def end(self, name: str, caller: Caller, tenant: str, why: str) -> str:
        """Ends a job, or takes one off the queue, for a person. Returns whose it was. Raises as `owner_of`."""
        owner = self.owner_of(name, caller, tenant)
        by = f"was ended by {caller.name}" if caller.name else "was ended"
        text = f"{by}: {why}" if why else by
        job, entry = self.named(name, owner), self._door.waitlist.named(owner, name)
        if job is not None:
            self._abort(job, pb.Abort(reason=pb.ENDED_BY_USER, message=f"job {job.name!r}: {text}"))
        if entry is not None:
            self._dismiss(entry, pb.ENDED_BY_USER, text)
        return owner

    def owner_of(self, name: str, caller: Caller, tenant: str) -> str:
        """Whose the job of that name is that the caller means, be it in the queue; `tenant` "" is the caller's, or the
        only one that has one of that name. Raises LookupError where the caller has no such job."""
        mine = [one for one in (*self.live, *self._door.waitlist) if caller.ends(one.tenant)]
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
        """That is not over."""
        return self._registry.named(name, tenant)

    def queue(self, now: float) -> list[pb.QueuedJob]:
        """Those that wait for slots, the next first."""
        return self._door.described(now)

    def tenants(self) -> list[pb.Tenant]:
        """Those of whom something is known."""
        held = self._door.held
        names = {*self.tenancy.known(), *held.jobs, *(entry.tenant for entry in self._door.waitlist)}
        return [self.tenancy.described(name, held) for name in sorted(names)]

    def abort_all(self, reason: pb.AbortReason, why: str, *, but_ready: bool = False) -> None:
        for entry in self._door.waitlist if not but_ready else ():  # else they come to a later controller
            self._dismiss(entry, reason, why)
        for job in self.live:
            if not (but_ready and job.state is State.READY):
                self._abort(job, pb.Abort(reason=reason, message=f"job {job.name!r}: {why}"))

    # Joining.

    def _found(self, join: pb.Join, caller: Caller, slots: int, now: float) -> Job:
        first_seq, site = self._first_seq() & 0xFFFFFFFE, self._for_new()
        kept = self.tenancy.kept_from(caller.tenant, self._door.held)
        job = self._registry.found(join, site, slots, first_seq, self._rejoin_time, now, caller, kept)
        there = [at for at in range(self.site.switches) if site.place_of(self.site.number(at)) is None]
        job.left_out = self._unusable(self.site, there, new=True)
        job.barred = frozenset(at for at in range(site.switches) if self.closed(site.number(at)))
        self.started += 1
        self._note(job, "")
        return job

    def _let_in(self, now: float) -> None:
        """Those in the queue whose turn it is."""
        for entry, found in self._door.let_in(now):
            why, reason = None, pb.JOIN_REFUSED
            if not isinstance(found, Job):
                why, reason = str(found), pb.QUOTA_EXCEEDED
            for session, join, caller in entry.ranks.values():
                if isinstance(found, Job):  # for other switches than there were when it came, perhaps
                    why = why or self._problem_of(join, found.site, new=True)
                    why = why or quarrel_with(found, join, found.slots)
                if isinstance(found, Job) and why is None:
                    self._seat(found, session, join, now)
                else:
                    self._refuse(session, join, str(why), caller, reason)

    def _dismiss(self, entry: Entry, reason: pb.AbortReason, why: str, rank: int | None = None) -> None:
        """Takes a job off the queue. `rank`: who is to blame."""
        self._door.waitlist.remove(entry)
        abort = pb.Abort(rank=rank, reason=reason, message=f"job {entry.name!r}: {why}")
        for session, _, _ in entry.ranks.values():
            self._tell(session, pb.ServerMessage(abort=abort), last=True)

    def _give_up_queue(self, session: Session, what: str) -> None:
        """A rank that may be in the queue is not there any more, and its job cannot come to be."""
        if queued := self._door.waitlist.of(session):
            entry, rank = queued
            self._dismiss(entry, pb.WORKER_LOST, f"rank {rank} {what}", rank)

    def _change_wanted(self, movable: list[Job]) -> Change | None:
        """Of which job's slots, so that the next that waits finds room, or because nobody waits."""
        movable = [job for job in movable if not self._away(job)] if self._moves_slots else []
        if not movable:
            return None
        if (entry := self._door.without_room()) is None:
            return grow((job for job in movable if not self._cannot_grow(job)), self._registry.pools)
        base, kept = self._for_new(), self.tenancy.kept_from(entry.tenant, self._door.held)
        site = base.for_threads(entry.first[1].threads or 1)

        def fits(pools: Mapping[int, SlotPool]) -> bool:
            pools = self._registry.without(kept, base, pools)
            try:
                check_room(site, entry.slots, pools)
                find_slots(site, entry.slots, pools, site.always_needed)
            except PoolFull:
                return False
            return True

        held = self._door.held

        def most_given(tenant: str) -> float:
            """What it has reserved would be kept for it if it were given back."""
            reserved = self.tenancy.reserved(tenant)
            return held.slots[tenant] - reserved if reserved and tenant != entry.tenant else math.inf

        return make_room(movable, self._registry.pools, fits, most_given)

    def _hindrance(self, job: Job, move: Move) -> str:
        """Why the job cannot be moved so now, or ""."""
        return self._away(job) or (self._cannot_grow(job) if move.slots > job.slots else "")

    def _away(self, job: Job) -> str:
        """Why some switch of the job cannot be changed now, or ""."""
        names = job.site.trees.names
        whys = ((names[at % job.site.switches], self._problem(job.site.number(at))) for at in sorted(job.ranges))
        return "; ".join(f"the switch {name} is unavailable: {why}" for name, why in whys if why)

    def _cannot_grow(self, job: Job) -> str:
        """Why it cannot have what it had, or "": its tenant has no quota for that, or others may need it."""
        held, more = self._door.held, job.most_slots - job.slots
        if held.slots[job.tenant] + more > self.tenancy.policy.quota(job.tenant).slots:
            return "its tenant may not have more slots"
        if self.tenancy.kept_from(job.tenant, held):
            return "slots are reserved for others"
        gathering = any(one.state is State.GATHERING for one in self.live)
        return "another job is starting, which may need more slots" if gathering else ""

    def _for_new(self) -> Site:
        """The switches for a job that begins now: all that it can be placed at."""
        numbers = [self.site.number(at) for at in range(self.site.switches)]
        out = frozenset(at for at, number in enumerate(numbers) if self._absence(number) or self.closed(number))
        if self._usable is None or self._usable[:2] != (self.site, out):
            self._usable = self.site, out, self.site.without(out) if out else self.site
        return self._usable[2]

    def _shut(self, joins: Iterable[pb.Join]) -> str | None:
        """Why no switch takes a job that begins now with such ranks."""
        return self._nobody_at(self._for_new(), *{join.switch for join in joins}, new=True)

    def _left_out(self, site: Site, join: pb.Join) -> str | None:
        """Whether the rank needs what there is, but not for its job."""
        names = self.site.trees.names
        if join.switch in names and join.switch not in site.trees.names:
            now = "; ".join(self._unusable(self.site, [names.index(join.switch)], new=True))
            return now or (
                f"the switch {join.switch} could not be used when the job began, so the job does not include it"
            )
        if site.capacity < join.slots <= self.site.capacity:
            why = "; ".join(self._unusable(self.site, range(self.site.switches), new=True))
            return f"slots={join.slots}, and {site.capacity} are available: {why}"
        return None

    def _children_at(self, site: Site) -> dict[int, Heard]:
        """Where each of its switches with a parent was heard by it, by their places."""
        heard = {at: self._children.get(site.number(at)) for at in site.trees.uplinks}
        return {at: one for at, one in heard.items() if one is not None}

    def _seat(self, job: Job, session: Session, join: pb.Join, now: float) -> None:
        key = secrets.token_hex(16) if self._returns else ""
        kept = digest(key) if key else ""
        member = Member(join.rank, session, self._nonce(), kept, join.switch, join.host, join.stream)
        member.holds = join.holds
        job.members[join.rank] = member
        # The least patient rank decides: when it gives up, the job cannot come to be.
        timeout = join.timeout_s or DEFAULT_TIMEOUT
        job.timeout = min(job.timeout or timeout, timeout)
        job.deadline = min(job.deadline, now + timeout)
        self._seats[session] = (job, member)
        self._awaited.add(member.nonce)
        self.joins += 1
        layout = job.site.layout
        assigned = pb.Assigned(
            job=job.number,
            generation=job.generation,
            worker=join.rank,
            slots=job.slots,
            lanes=layout.lanes,
            block_size=layout.block_size,
            first_seq=job.first_seq,
            hello_nonce=member.nonce,
            rejoin_key=key,
            rejoin_s=job.rejoin_time,
            abort_secret=job.abort_secret,
            aggregators=[_endpoint(job.site, switch) for switch in job.site.within_reach(member.switch)],
            more_jobs=[number << 16 | generation for number, generation in job.more_numbers],
        )
        self._tell(session, pb.ServerMessage(assigned=assigned))

    def _unusable(self, site: Site, switches: Iterable[int], *, new: bool = False) -> list[str]:
        """Which of these, and why. `new`: for a job that begins."""
        numbers = ((switch, site.number(switch)) for switch in switches)
        whys = ((switch, self._absence(number) or (new and self.closed(number))) for switch, number in numbers)
        return [f"the switch {site.trees.names[switch]} cannot be used: {why}" for switch, why in whys if why]

    def _nobody_at(self, site: Site, *named: str, new: bool = False) -> str | None:
        """Why ranks that say that they are there cannot be served: some tree has no switch for them."""
        for name in named:
            for tree in range(len(site.trees.roots)):
                could = site.trees.among(site.within_reach(name), tree)
                if len(unusable := self._unusable(site, could, new=new)) == len(could):
                    return "; ".join(unusable)
        return None

    def _why_not(self, rejoin: pb.Rejoin, job: Job | None, caller: Caller, *, stranger: bool) -> pb.Abort:
        if abort := self._aborts.of(rejoin.job, rejoin.generation, caller):
            return abort
        what = f"rank {rejoin.rank} cannot come back to job {rejoin.job}, generation {rejoin.generation}"
        if job is None:
            why = "this controller does not know the job: it has ended, or was not ready when the previous controller "
            why += "ended; join again"
        else:
            why = "its key is not the key of that rank" if stranger else f"the job is {job.state.value}"
        return pb.Abort(rank=rejoin.rank, reason=pb.JOIN_REFUSED, message=f"{what}: {why}")

    # Becoming ready.

    def _proceed(self, job: Job) -> None:
        site = self._registry.site_of(job)
        if job.without(lambda member: site.heard_everywhere(member.heard)):
            return
        job.settle()
        try:
            places = on_the_way(site, job)
            needed = {at % site.switches for at in places}
            unusable = self._unusable(site, sorted(needed - job.barred))
            if unusable := unusable + self._unusable(site, sorted(needed & job.barred), new=True):
                raise Misplaced("; ".join(unusable))
            self._check_links(job.site, needed)
            self._registry.take_slots(job, places, self.tenancy.kept_from(job.tenant, self._door.held))
            job.children = self._children_at(job.site)
            job.placements = place(site, job, job.children, self._registry.hosts)
        except PoolFull as error:
            if (self._moving or self._freeing) and self._now < job.deadline:
                return  # the next tick tries again
            why = f"all ranks were heard, but {error}; ask for fewer slots, or wait until other jobs end"
            self._abort(job, pb.Abort(reason=pb.SLOTS_EXHAUSTED, message=f"job {job.name!r}: {why}"))
            return
        except Misplaced as error:
            self._abort(job, pb.Abort(reason=pb.JOIN_REFUSED, message=f"job {job.name!r}: {error}"))
            return
        job.state = State.INSTALLING
        self._awaited -= {member.nonce for member in job.members.values()}
        self._effects.append(Install(job))

    def _check_links(self, site: Site, needed: set[int]) -> None:
        """Between switches that a job needs. Raises Misplaced."""
        below = [at for at in sorted(needed) if at in site.trees.uplinks and site.trees.uplinks[at].parent in needed]
        if whys := [why for at in below if (why := self.severed(site.number(at)))]:
            raise Misplaced("; ".join(whys))

    def notice(self, job: Job, text: str) -> None:
        """For who looks at its ranks' logs."""
        for member in job.members.values():
            self._tell(member.session, pb.ServerMessage(notice=pb.Notice(text=text)))

    def _ready(self, job: Job, member: Member) -> pb.Ready:
        return told_when_ready(self._registry.site_of(job), job, member)

    # Ending.

    def _abort(self, job: Job, abort: pb.Abort) -> None:
        if job.over:
            return
        installed = job.state is not State.GATHERING
        if self._returns:  # else no rank has a key to come back with
            self._aborts.add(job, abort)
        self.aborted += 1
        self._note(job, abort.message)
        farewell = pb.ServerMessage(left=pb.Left())
        self._end(job, State.ABORTED, lambda member: farewell if member.leaving else pb.ServerMessage(abort=abort))
        if installed:
            self._effects.append(Remove(job, abort))
        else:
            self.freed(job)

    def _finish(self, job: Job) -> None:
        self.finished += 1
        self._note(job, "finished")
        self._end(job, State.FINISHED, lambda _: pb.ServerMessage(left=pb.Left()))
        self._effects.append(Remove(job, None))

    def _end(self, job: Job, state: State, last_words: Callable[[Member], pb.ServerMessage]) -> None:
        job.state, job.over_since = state, self._now
        self.tenancy.charge(job, self._now)
        self._awaited -= {member.nonce for member in job.members.values()}
        self._registry.give_up_name(job)
        for member in job.members.values():
            self._seats.pop(member.session, None)
            self._tell(member.session, last_words(member), last=True)

    def _effects_add(self, effect: Effect) -> None:
        self._effects.append(effect)

    def _tell(self, session: Session | None, message: pb.ServerMessage, *, last: bool = False) -> None:
        """Who is away is told when it comes back."""
        if session is not None:
            self._effects.append(Tell(session, message, last))


def digest(key: str) -> str:
    """What is kept of a rank's key."""
    return hashlib.sha256(key.encode()).hexdigest()


def _endpoint(site: Site, switch: int) -> pb.Endpoint:
    at = site.addresses[switch]
    return pb.Endpoint(ip=at.ip, udp_port=at.udp_port, mac=at.mac, tree=site.trees.tree(switch))
