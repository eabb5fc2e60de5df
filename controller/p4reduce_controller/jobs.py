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
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.messages import MOST_SAID
from p4reduce_controller.aborts import Aborts
from p4reduce_controller.admission import DEFAULT_SLOTS, DEFAULT_TIMEOUT, LONGEST_NAME, problem_of, quarrel_with
from p4reduce_controller.aggregator import Heard, Layout
from p4reduce_controller.deadlines import LEAVE_GRACE, REJOIN_TIME, awaited, overdue
from p4reduce_controller.effects import Answer, Effect, Install, Look, Remove, Tell
from p4reduce_controller.frames import Endpoint
from p4reduce_controller.job import Job, Member, Session, State
from p4reduce_controller.numbers import JobNumbers, NumbersExhausted
from p4reduce_controller.placement import Site, on_the_way, place, told_when_ready
from p4reduce_controller.pools import PoolFull, SlotPool
from p4reduce_controller.registry import Registry
from p4reduce_controller.trees import Misplaced, Trees

SHORT_HELLOS = 20  # of a rank of which no full one comes: so many are not lost by chance
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
    ) -> None:
        """`layout`: of every switch. `addresses`: where workers send to, one a switch. `trees`: by default one each.
        `fixed`: of each switch, the ports of MAC addresses that the controller was told.

        `returns`: ranks are given a key, with which they can come back to a later controller that restores the jobs,
        within `rejoin_time` seconds. `leave_grace`: seconds from the first rank's leaving until all must have left.
        `absence`: why the switch of that number cannot be used now, or "".
        """
        self.started = self.aborted = self.finished = self.joins = 0
        self.site = Site(layout, tuple(addresses), trees or Trees([str(address) for address in addresses]))
        self._rejoin_time = rejoin_time
        self._leave_grace = leave_grace
        self._registry = Registry(self.site, numbers or JobNumbers(), fixed)
        self._default_slots = min(default_slots, self.site.capacity)
        self._first_seq = first_seq
        self._nonce = nonce
        self._returns = returns
        self._absence = absence
        self._seats: dict[Session, tuple[Job, Member]] = {}
        self._awaited: set[int] = set()  # nonces of the ranks of jobs
        self._effects: list[Effect] = []
        self._children: dict[int, Heard] = {}
        self._aborts = Aborts()

    def __iter__(self) -> Iterator[Job]:
        """All that hold slots."""
        return iter(self._registry)

    @property
    def pools(self) -> tuple[SlotPool, ...]:
        """One a switch."""
        return self._registry.pools

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

    def join(self, session: Session, join: pb.Join, now: float) -> None:
        job = self._registry.named(join.job)
        problem = problem_of(join, self.site, self._default_slots) or self._nobody_at(join.switch)
        reason = pb.JOIN_REFUSED
        if problem is None and job is None:
            try:
                job = self._found(join, now)
            except (PoolFull, NumbersExhausted) as error:
                problem = f"{error}; ask for fewer slots, or wait until other jobs end"
                reason = pb.SLOTS_EXHAUSTED
        if problem is None and job is not None:
            problem = quarrel_with(job, join, self._default_slots)
        if problem is None and job is not None:
            self._seat(job, session, join, now)
            return
        name = join.job[:LONGEST_NAME]
        refusal = pb.Abort(
            rank=join.rank, reason=reason, message=f"job {name!r}: rank {join.rank} is refused: {problem}"
        )
        self._tell(session, pb.ServerMessage(abort=refusal), last=True)
        # Ranks that still gather would wait in vain. A job that runs is not troubled by a latecomer.
        if job is not None and job.state is State.GATHERING:
            self._abort(job, refusal)

    def rejoin(self, session: Session, rejoin: pb.Rejoin, now: float) -> None:
        """The rank is back, on a new stream."""
        job = self._registry.numbered(rejoin.job, rejoin.generation)
        member = job.members.get(rejoin.rank) if job is not None else None
        known = member is not None and bool(member.key) and hmac.compare_digest(digest(rejoin.key), member.key)
        if job is None or member is None or not known or job.state is not State.READY:
            self._tell(session, pb.ServerMessage(abort=self._why_not(rejoin, stranger=not known)), last=True)
            return
        was_away = member.session is None
        if member.session is not None:  # it noticed the break of its stream before we did
            del self._seats[member.session]
            moved = pb.Abort(rank=member.rank, reason=pb.JOIN_REFUSED, message="the rank is back on another stream")
            self._tell(member.session, pb.ServerMessage(abort=moved), last=True)
        member.session, member.told = session, None
        self._seats[session] = (job, member)
        if was_away and job.leave_deadline is not None:  # which it knew nothing of
            job.leave_deadline = now + self._leave_grace
        self._tell(session, pb.ServerMessage(ready=self._ready(job, member)))

    def leave(self, session: Session, now: float) -> None:
        if session not in self._seats:
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
            job.unanswered.setdefault(member.rank, half)
            self._look(job)

    def lost(self, session: Session, what: str = BROKEN) -> None:
        """The rank's stream has ended. After its Leave that is no news. `what`: what the others are told of it."""
        if session not in self._seats:
            return
        job, member = self._seats[session]
        if not member.leaving:
            self._abort(job, job.blame([member.rank], pb.WORKER_LOST, what))

    def rank_failed(self, session: Session, failed: pb.Failed) -> None:
        """The rank cannot go on: the others learn why, and of which rank."""
        if session not in self._seats:
            return
        job, member = self._seats[session]
        why = "".join(each if each.isprintable() else " " for each in failed.message[:MOST_SAID])
        if failed.mismatch:
            reason = pb.WORKER_LOST  # as earlier releases know it
            self._abort(job, pb.Abort(rank=member.rank, reason=reason, message=why, mismatch=True))
        elif failed.HasField("rank") and failed.rank != member.rank and failed.rank in job.members:
            self._abort(job, job.blame([failed.rank], pb.WORKER_LOST, f"has failed, says rank {member.rank}: {why}"))
        else:
            self._abort(job, job.blame([member.rank], pb.WORKER_LOST, f"has failed: {why}"))

    # Events from the switches.

    def child_heard(self, child: int, hello: Heard) -> None:
        """Where a switch is that has a parent, as the parent has heard it."""
        self._children[child] = hello

    def awaits(self, nonce: int) -> bool:
        """Whether a rank of a job has it."""
        return nonce in self._awaited

    def heard(self, switch: int, hello: Heard) -> bool:
        """True when there is something to carry out.

        It is that of a rank that the job still waited for in that switch's tree, or one that is to be answered.
        """
        if self.site.leads_to_a_switch(switch, hello.port, self._children):
            return False  # it was meant for another switch, which is nearer to the rank
        known = self._registry.thread(hello.job, hello.generation)
        if known is None:
            return False
        job, thread = known
        at, site = self.site.switches * thread + switch, self._registry.site_of(job)
        if job.state is State.READY:
            return self._answered(job, at, hello)
        if job.state is not State.GATHERING:
            return False
        member = job.members.get(hello.worker)
        if member is None or member.nonce != hello.nonce or at not in site.within_reach(member.switch):
            return False
        if member.switch != self.site.trees.names[switch] and self.site.trees.children(switch) - self._children.keys():
            return False  # it may have come by one of those, whose ports are not known
        if site.trees.among(list(member.heard), site.trees.tree(at)):
            return False
        if hello.short:
            return self._too_long(job, member, at)
        if problem := self._registry.claim(job, at, hello):
            where = f"at the switch {self.site.addresses[switch]}"
            self._abort(job, job.blame([member.rank], pb.JOIN_REFUSED, f"is refused {where}: {problem}"))
            return True
        member.heard[at] = hello
        self._proceed(job)
        return True

    def _answered(self, job: Job, at: int, hello: Heard) -> bool:
        """Whether a rank wants to know that what is as long as any packet comes to it, too."""
        member = job.members.get(hello.worker)
        heard = member.heard.get(at) if member is not None and member.nonce == hello.nonce else None
        if not hello.full or heard is None or (heard.port, heard.sender) != (hello.port, hello.sender):
            return False
        self._effects.append(Answer(at % self.site.switches, hello))
        return True

    def _too_long(self, job: Job, member: Member, at: int) -> bool:
        """Counts a short HELLO. Whether there were so many that the full ones between them were not lost by chance."""
        member.short[at] += 1
        if member.short[at] < SHORT_HELLOS:
            return False
        needed, where = self.site.layout.mtu, self.site.addresses[at % self.site.switches]
        text = (
            f"is refused at the switch {where}: short packets of it come there, and none of "
            f"{needed} bytes, which are the job's longest with their IPv4 headers; every link on the way needs an MTU "
            f"of {needed} or more, or the controller that of the links, as --mtu"
        )
        self._abort(job, job.blame([member.rank], pb.JOIN_REFUSED, text))
        return True

    def installed(self, job: Job) -> None:
        if job.state is State.INSTALLING:
            job.state = State.READY
            for member in job.members.values():
                self._tell(member.session, pb.ServerMessage(ready=self._ready(job, member)))

    def failed(self, job: Job, why: str, reason: pb.AbortReason = pb.SWITCH_FAILED) -> None:
        """A switch could not be set up for the job, or has lost it."""
        self._abort(job, pb.Abort(reason=reason, message=f"job {job.name!r}: {why}"))

    def looked(self, job: Job, half: int, found: pb.Counted | None) -> None:
        """What the switches hold in that half, if they have said it."""
        job.looking = False
        job.unanswered = {rank: other for rank, other in job.unanswered.items() if other != half}
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
                if problem := problem_of(request, self.site, job.slots):
                    raise ValueError(problem)
                self._registry.take_up(job, self._children)
            except (ValueError, Misplaced) as error:
                raise ValueError(f"job {job.name!r}: {error}") from None
            self.started += 1

    def expect_returns(self, now: float) -> None:
        """From now on, ranks that are away can come back."""
        for job in self.live:
            for member in job.away:
                member.away_since = now

    # Events from the clock and from above.

    def tick(self, now: float) -> None:
        """Ends what is over time, and tells ranks whom they wait for. Call it every tenth of a second or so."""
        self._aborts.age(now)
        for job in self.live:
            gathering = job.state is State.GATHERING
            site = self._registry.site_of(job)
            if abort := overdue(job, site, now):
                if gathering:
                    abort.message += "".join(f"; {text}" for text in self._unusable(range(len(self.site.addresses))))
                self._abort(job, abort)
            elif why := gathering and self._nobody_at(*{member.switch for member in job.members.values()}):
                self._abort(job, pb.Abort(reason=pb.JOIN_REFUSED, message=f"job {job.name!r}: {why}"))
            elif waits := awaited(job, site):
                notice, waiting = waits
                for member in waiting:
                    if member.told != notice:
                        member.told = notice
                        self._tell(member.session, pb.ServerMessage(waiting=notice))

    def abort_all(self, reason: pb.AbortReason, why: str, *, but_ready: bool = False) -> None:
        for job in self.live:
            if not (but_ready and job.state is State.READY):
                self._abort(job, pb.Abort(reason=reason, message=f"job {job.name!r}: {why}"))

    # Joining.

    def _found(self, join: pb.Join, now: float) -> Job:
        first_seq = self._first_seq() & 0xFFFFFFFE
        job = self._registry.found(join, join.slots or self._default_slots, first_seq, self._rejoin_time, now)
        self.started += 1
        return job

    def _seat(self, job: Job, session: Session, join: pb.Join, now: float) -> None:
        key = secrets.token_hex(16) if self._returns else ""
        kept = digest(key) if key else ""
        member = Member(join.rank, session, self._nonce(), kept, join.switch, join.host, join.stream)
        job.members[join.rank] = member
        # The least patient rank decides: when it gives up, the job cannot come to be.
        job.deadline = min(job.deadline, now + (join.timeout_s or DEFAULT_TIMEOUT))
        self._seats[session] = (job, member)
        self._awaited.add(member.nonce)
        self.joins += 1
        layout = self.site.layout
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
            aggregators=[self._endpoint(switch) for switch in self.site.within_reach(member.switch)],
            more_jobs=[number << 16 | generation for number, generation in job.more_numbers],
        )
        self._tell(session, pb.ServerMessage(assigned=assigned))

    def _endpoint(self, switch: int) -> pb.Endpoint:
        at = self.site.addresses[switch]
        return pb.Endpoint(ip=at.ip, udp_port=at.udp_port, mac=at.mac, tree=self.site.trees.tree(switch))

    def _unusable(self, switches: Iterable[int]) -> list[str]:
        absences = ((switch, self._absence(switch)) for switch in switches)
        return [f"the switch {self.site.trees.names[switch]} cannot be used: {why}" for switch, why in absences if why]

    def _nobody_at(self, *named: str) -> str | None:
        """Why ranks that say that they are there cannot be served: some tree has no switch for them."""
        for name in named:
            for tree in range(len(self.site.trees.roots)):
                could = self.site.trees.among(self.site.within_reach(name), tree)
                if len(unusable := self._unusable(could)) == len(could):
                    return "; ".join(unusable)
        return None

    def _why_not(self, rejoin: pb.Rejoin, *, stranger: bool) -> pb.Abort:
        if abort := self._aborts.of(rejoin.job, rejoin.generation):
            return abort
        what = f"rank {rejoin.rank} cannot come back to job {rejoin.job}, generation {rejoin.generation}"
        job = self._registry.numbered(rejoin.job, rejoin.generation)
        if job is None:
            why = "the controller that is here now does not know the job"
        else:
            why = "its key is not that rank's" if stranger else f"the job is {job.state.value}"
        return pb.Abort(rank=rejoin.rank, reason=pb.JOIN_REFUSED, message=f"{what}: {why}")

    # Becoming ready.

    def _proceed(self, job: Job) -> None:
        site = self._registry.site_of(job)
        if job.without(lambda member: site.heard_everywhere(member.heard)):
            return
        try:
            places = on_the_way(site, job)
            if unusable := self._unusable(sorted({at % site.switches for at in places})):
                raise Misplaced("; ".join(unusable))
            self._registry.take_slots(job, places)
            job.placements = place(site, job, self._children, self._registry.hosts)
        except PoolFull as error:
            why = f"all ranks were heard, but {error}; ask for fewer slots, or wait until other jobs end"
            self._abort(job, pb.Abort(reason=pb.SLOTS_EXHAUSTED, message=f"job {job.name!r}: {why}"))
            return
        except Misplaced as error:
            self._abort(job, pb.Abort(reason=pb.JOIN_REFUSED, message=f"job {job.name!r}: {error}"))
            return
        job.state = State.INSTALLING
        self._effects.append(Install(job))

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
        farewell = pb.ServerMessage(left=pb.Left())
        self._end(job, State.ABORTED, lambda member: farewell if member.leaving else pb.ServerMessage(abort=abort))
        if installed:
            self._effects.append(Remove(job, abort))
        else:
            self.freed(job)

    def _finish(self, job: Job) -> None:
        self.finished += 1
        self._end(job, State.FINISHED, lambda _: pb.ServerMessage(left=pb.Left()))
        self._effects.append(Remove(job, None))

    def _end(self, job: Job, state: State, last_words: Callable[[Member], pb.ServerMessage]) -> None:
        job.state = state
        self._awaited -= {member.nonce for member in job.members.values()}
        self._registry.give_up_name(job)
        for member in job.members.values():
            self._seats.pop(member.session, None)
            self._tell(member.session, last_words(member), last=True)

    def _tell(self, session: Session | None, message: pb.ServerMessage, *, last: bool = False) -> None:
        """Who is away is told when it comes back."""
        if session is not None:
            self._effects.append(Tell(session, message, last))


def digest(key: str) -> str:
    """What is kept of a rank's key."""
    return hashlib.sha256(key.encode()).hexdigest()
