# SPDX-License-Identifier: Apache-2.0
"""The transitions of jobs from state to state, and of ranks into members; `jobs.py` lists the states."""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.admission import DEFAULT_TIMEOUT
from p4reduce_controller.jobs.deadlines import LEAVE_GRACE, LONGEST_REJOIN_TIME, REJOIN_TIME
from p4reduce_controller.jobs.effects import Effect, Install, Note, Remove, Tell
from p4reduce_controller.jobs.job import Job, Member, Session, State
from p4reduce_controller.jobs.placement import ready_message
from p4reduce_controller.jobs.registry import Registry
from p4reduce_controller.jobs.tenancy import Tenancy
from p4reduce_controller.tenants.access import Caller

MOST_ABORTS = 1024  # reasons that are remembered; of more, the oldest are forgotten
ABORTS_KEPT = LONGEST_REJOIN_TIME  # seconds, and at most twice as long


@dataclass(frozen=True)
class JobOptions:
    """Options that hold for all jobs.

    `rejoin_time`: seconds that ranks have to come back to a later controller.
    `leave_grace`: seconds from the first rank's Leave until all must have left.
    `returns`: ranks get a key, with which they can come back to a later controller that restores the jobs.
    `moves_slots`: running jobs may get other slots, and fewer if they use few, when jobs wait for room; and their slots
    go on at other switches if a switch is lost.
    """

    rejoin_time: float = REJOIN_TIME
    leave_grace: float = LEAVE_GRACE
    returns: bool = False
    moves_slots: bool = True


class Lifecycle:
    """The state transitions of all jobs, and the effects that follow from them.

    `now`: the time of the latest event with a time.
    `effects`: those that have not been carried out yet.
    `awaited`: the ranks whose HELLO counts, or is to be answered, by their nonces.
    """

    def __init__(self, registry: Registry, tenancy: Tenancy, options: JobOptions) -> None:
        self.started = self.aborted = self.finished = self.joins = 0
        self.now = 0.0
        self.effects: list[Effect] = []
        self.sessions: dict[Session, tuple[Job, Member]] = {}
        self.awaited: dict[int, int] = {}
        self.aborts = Aborts()
        self._registry = registry
        self._tenancy = tenancy
        self._options = options

    def add(self, effect: Effect) -> None:
        self.effects.append(effect)

    def tell(self, session: Session | None, message: pb.ServerMessage, *, last: bool = False) -> None:
        """Send the rank a message. A rank that is away gets its news when it comes back."""
        if session is not None:
            self.add(Tell(session, message, last))

    # Members.

    def add_member(self, job: Job, session: Session, join: pb.Join) -> None:
        key = secrets.token_hex(16) if self._options.returns else ""
        key_digest, nonce = digest(key) if key else "", secrets.randbits(64)
        member = Member(join.rank, session, nonce, key_digest, join.switch, join.host, join.stream)
        member.holds, member.moves, member.spares = join.holds, join.moves, join.spares
        job.members[join.rank] = member
        # The shortest timeout decides: a job cannot become ready after one of its ranks has given up.
        timeout = join.timeout_s or DEFAULT_TIMEOUT
        job.timeout = min(job.timeout or timeout, timeout)
        job.deadline = min(job.deadline, self.now + timeout)
        self.sessions[session] = (job, member)
        self.awaited[nonce] = join.rank
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
            hello_nonce=nonce,
            rejoin_key=key,
            rejoin_s=job.rejoin_time,
            abort_secret=job.abort_secret,
            aggregators=_endpoints(job, member.switch),
            more_jobs=_packed(job, 0)[1:],
        )
        self.tell(session, pb.ServerMessage(assigned=assigned))

    def readmit(self, session: Session, rejoin: pb.Rejoin, caller: Caller) -> tuple[Job, Member] | None:
        """Give a rank that has come back its membership on a new stream; return None if it cannot have it.

        The caller learns nothing of jobs of other tenants.
        """
        job = self._registry.numbered(rejoin.job, rejoin.generation)
        if job is not None and job.tenant and not caller.ends(job.tenant):
            job = None
        member = job.members.get(rejoin.rank) if job is not None else None
        known = member is not None and bool(member.key) and hmac.compare_digest(digest(rejoin.key), member.key)
        if job is None or member is None or not known or job.state is not State.READY:
            why_not = self._why_not(rejoin, job, caller, stranger=not known)
            self.tell(session, pb.ServerMessage(abort=why_not), last=True)
            return None
        if member.session is not None:  # the rank noticed the break of its stream before the controller did
            del self.sessions[member.session]
            why = "the rank has reconnected on another stream"
            moved = pb.Abort(rank=member.rank, reason=pb.JOIN_REFUSED, message=why)
            self.tell(member.session, pb.ServerMessage(abort=moved), last=True)
        elif job.leave_deadline is not None:  # the returning rank did not know that others were leaving
            self.restart_grace(job)
        member.session, member.last_notice = session, None
        self.sessions[session] = (job, member)
        self._tell_ready(job, member)
        return job, member

    def _why_not(self, rejoin: pb.Rejoin, job: Job | None, caller: Caller, *, stranger: bool) -> pb.Abort:
        if abort := self.aborts.of(rejoin.job, rejoin.generation, caller):
            return abort
        what = f"rank {rejoin.rank} cannot come back to job {rejoin.job}, generation {rejoin.generation}"
        if job is None:
            why = "this controller does not know the job: it has ended, or was not ready when the previous controller "
            why += "ended; join again"
        else:
            why = "its key is not the key of that rank" if stranger else f"the job is {job.state.value}"
        return pb.Abort(rank=rejoin.rank, reason=pb.JOIN_REFUSED, message=f"{what}: {why}")

    def leave(self, job: Job, member: Member, *, lingers: bool) -> None:
        member.leaving, member.lingers = True, lingers
        if all(other.leaving for other in job.members.values()):
            self.finished += 1
            self.add(Note(job, "finished"))
            self._end(job, State.FINISHED, lambda _: pb.ServerMessage(left=pb.Left()))
            self.add(Remove(job, None))
        elif job.leave_deadline is None:
            self.restart_grace(job)

    def restart_grace(self, job: Job) -> None:
        """Start the time again within which the other ranks must leave."""
        job.leave_deadline = self.now + self._options.leave_grace

    # States.

    def begin(self, job: Job) -> None:
        self.started += 1
        self.add(Note(job, ""))

    def install(self, job: Job) -> None:
        """Install a job that has its slots, and whose ranks have all been heard."""
        job.state = State.INSTALLING
        self._ignore_hellos(job)
        self.add(Install(job))

    def _ignore_hellos(self, job: Job) -> None:
        for member in job.members.values():
            self.awaited.pop(member.nonce, None)

    def installed(self, job: Job) -> None:
        if job.state is State.INSTALLING:
            job.state = State.READY
            self.awaited |= {member.nonce: member.rank for member in job.members.values()}
            for member in job.members.values():
                self._tell_ready(job, member)

    def _tell_ready(self, job: Job, member: Member) -> None:
        ready = ready_message(self._registry.site_with_threads(job), job, member)
        self.tell(member.session, pb.ServerMessage(ready=ready))

    def end(self, job: Job, reason: pb.AbortReason, why: str) -> None:
        self.abort(job, pb.Abort(reason=reason, message=f"job {job.name!r}: {why}"))

    def abort(self, job: Job, abort: pb.Abort) -> None:
        if job.over:
            return
        installed = job.state is not State.GATHERING
        if self._options.returns:  # otherwise no rank has a key to come back with
            self.aborts.add(job, abort)
        self.aborted += 1
        self.add(Note(job, abort.message))
        farewell = pb.ServerMessage(left=pb.Left())
        self._end(job, State.ABORTED, lambda member: farewell if member.leaving else pb.ServerMessage(abort=abort))
        if installed:
            self.add(Remove(job, abort))
        else:
            self._registry.free(job)

    def _end(self, job: Job, state: State, last_words: Callable[[Member], pb.ServerMessage]) -> None:
        job.state, job.over_since = state, self.now
        self._tenancy.charge(job, self.now)
        self._ignore_hellos(job)
        self._registry.give_up_name(job)
        for member in job.members.values():
            self.sessions.pop(member.session, None)
            self.tell(member.session, last_words(member), last=True)


def digest(key: str) -> str:
    """Return the digest of a rank's key, which is kept in place of the key."""
    return hashlib.sha256(key.encode()).hexdigest()


def _endpoint(job: Job, node: int) -> pb.Endpoint:
    address, tree = job.site.addresses[node], job.site.trees.tree(node)
    return pb.Endpoint(**vars(address), tree=tree, jobs=_packed(job, tree) if job.numbered_by_tree else [])


def _endpoints(job: Job, named: str) -> list[pb.Endpoint]:
    """Return the aggregators of a rank at the switch of that name, or at any. Ranks alike get the same list."""
    if named not in job.endpoints:
        job.endpoints[named] = [_endpoint(job, node) for node in job.site.within_reach(named)]
    return job.endpoints[named]


def _packed(job: Job, tree: int) -> list[int]:
    """Return the job's numbers and generations in that tree, one for each thread."""
    return [number << 16 | generation for number, generation in job.numbers[tree :: len(job.site.trees.roots)]]


class Aborts:
    """The reasons why jobs have ended, for ranks that come back later: the latest of each job number."""

    def __init__(self) -> None:
        self._lately: dict[int, tuple[int, str, pb.Abort]] = {}  # with generation and tenant
        self._before: dict[int, tuple[int, str, pb.Abort]] = {}
        self._ages_at = -math.inf

    def add(self, job: Job, abort: pb.Abort) -> None:
        self._lately.pop(job.number, None)
        self._lately[job.number] = (job.generation, job.tenant, abort)
        if len(self._lately) > MOST_ABORTS:
            del self._lately[next(iter(self._lately))]

    def of(self, number: int, generation: int, caller: Caller) -> pb.Abort | None:
        """Return why this job has ended, if that is still known and the caller may know it."""
        for aborts in (self._lately, self._before):
            known, tenant, abort = aborts.get(number, (None, "", None))
            if known == generation and (not tenant or caller.ends(tenant)):
                return abort
        return None

    def age(self, now: float) -> None:
        if now >= self._ages_at:
            self._before, self._lately = self._lately, {}
            self._ages_at = now + ABORTS_KEPT
