# SPDX-License-Identifier: Apache-2.0
"""The steps in which a rank joins and leaves a job: session, transport, worker and engine, in this order."""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from p4reduce import backends, settings
from p4reduce.backends import check_threads, start_engine
from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.client import Assigned, Session
from p4reduce.control.messages import MISMATCH
from p4reduce.engine.engine import Engine
from p4reduce.errors import JobAborted, JoinError, MismatchError, P4ReduceError
from p4reduce.join.options import JoinOptions
from p4reduce.join.reporter import Reporter
from p4reduce.join.switch_links import SwitchLinks, jobs_of_thread
from p4reduce.local.engine import LocalEngine
from p4reduce.local.host import digest as host_digest
from p4reduce.protocol import Membership
from p4reduce.protocol.job_errors import gone_ahead
from p4reduce.transport import SharedTransport, Switch, Transport
from p4reduce.transport.routes import rate_toward

# Seconds to wait for a controller that is only just starting.
CONNECT_TIMEOUT_S = 10.0

# Seconds that a rank waits for the controller to send the reason of an abort. A rank that closes its session earlier
# would itself be named as the cause.
ABORT_TIMEOUT_S = 2.0

log = logging.getLogger("p4reduce.joining")


class Attempt:
    """A join that other threads can give up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: Session | None = None
        self.given_up = threading.Event()

    def give_up(self) -> None:
        """Make the join end with JoinError. If the controller knew of this rank, the others learn of it at once."""
        self.given_up.set()
        with self._lock:
            session = self._session
        if session is not None:
            session.close()

    def check(self) -> None:
        """Raise JoinError if the join was given up."""
        if self.given_up.is_set():
            raise JoinError("this rank has given up joining")

    def begin(self, session: Session) -> None:
        """Set the session of the join, which `give_up` closes."""
        with self._lock:
            self._session = session
        self.check()


@dataclass(frozen=True)
class JoinedJob:
    """A job that all ranks have joined, with all that an engine needs to start."""

    session: Session
    transport: Transport | SharedTransport
    membership: Membership
    switches: tuple[Switch, ...]
    local: bool = False
    """Whether all ranks can share memory."""

    @property
    def switch(self) -> str:
        """The addresses of the rank's switches, for error messages."""
        return ",".join(map(str, self.switches))

    @property
    def meets(self) -> bool:
        """Whether the engine shares memory with those of other ranks, and so starts only when these do."""
        return self.local or bool(self.membership.hosts)

    def leave(self, trouble: str = "") -> None:
        """Leave the job together with the other ranks, or at once because of `trouble`, which the others learn."""
        try:
            if trouble:
                self.session.fail(trouble)
                self.session.await_abort(ABORT_TIMEOUT_S)
            else:
                self.session.leave()
        finally:
            self.session.close()
            self.transport.close()


_members: Counter[tuple[int, int, int]] = Counter()
_members_lock = threading.Lock()


def _count_members(member: Membership, change: int) -> int:
    """Change the number of the job's ranks in this process that have not begun to leave, and return it."""
    job = (
        member.job,
        member.generation,
        member.abort_secret,
    )  # the secret distinguishes jobs of different controllers, which may have the same number
    with _members_lock:
        _members[job] += change
        return _members[job] or _members.pop(job)


@dataclass(frozen=True)
class RunningJob:
    """A job that this rank has joined, and the engine that runs its operations."""

    session: Session
    membership: Membership
    engine: Engine
    rate: int
    """Bits a second of the link toward the switch; 0 if it is not known."""
    local: bool = False
    """Whether operations are carried out in the host's memory."""

    def leave(self, *, well: bool = True, on_heard: Callable[[], None] = lambda: None) -> None:
        """Leave the job together with the other ranks. Operations in flight fail.

        The engine goes on until the others leave, too: one of them may lack the last sum when a switch is lost.

        Only the last rank of a process waits for all ranks. An earlier one must not, since other ranks of its process
        may begin to leave only when it has returned.

        well: False for a rank that cannot go on, which ends the job for the others at once.
        on_heard: called when the controller knows that this rank leaves well, before the others have left.
        """
        if not self.engine.in_own_process():
            return  # a forked process has the session's sockets, but only its parent is a rank of the job
        is_last = not _count_members(self.membership, -1)
        closed = P4ReduceError("the communicator is closed")
        self.engine.refuse(closed)
        failure = self.engine.failure
        if failure is None and self.engine.busy:
            failure = P4ReduceError("it closed its communicator while operations were under way")
        elif failure is None and not well:
            failure = P4ReduceError("it ended the job")
        try:
            if failure is not None:
                tell_failure(self.session, failure)
                self.engine.close(closed)
                self.session.await_abort(ABORT_TIMEOUT_S)
            else:
                self.session.leave(on_heard=on_heard, is_last=is_last, lingers=is_last)
        finally:
            self.engine.close(closed)
            self.session.close()


def tell_failure(session: Session, failure: BaseException) -> None:
    """End the job for the other ranks, and report the reason and the rank that is the cause."""
    rank = failure.rank if isinstance(failure, JobAborted) else None
    session.fail(str(failure), rank, mismatch=isinstance(failure, MismatchError))


def join_job(
    options: JoinOptions,
    *,
    host: str = "",
    shares_stream: bool | None = None,
    holds: bool = False,
    moves: bool = False,
    spares: bool = False,
    on_abort: Callable[[JobAborted], None],
    on_counted: Callable[[pb.Counted], None] | None = None,
    on_admitted: Callable[[], None] = lambda: None,
    attempt: Attempt | None = None,
) -> JoinedJob:
    """Join the job and return when all ranks have. Raises JoinError or TransportError.

    host, shares_stream, holds, moves, spares: as in `Session.join`.
    on_abort: called once, from a thread of the session, if the job is aborted after all ranks have joined.
    on_counted: as in `Session`.
    on_admitted: called when the job has its slots, before the wait for the other ranks.
    attempt: lets another thread give up the join.
    """
    session = Session(
        options.controller,
        token=options.token,
        tls=options.tls,
        connect_timeout=min(options.timeout, CONNECT_TIMEOUT_S),
        on_abort=on_abort,
        on_counted=on_counted,
    )
    try:
        if attempt is not None:
            attempt.begin(session)
        assigned = session.join(
            options.job,
            options.rank,
            options.world_size,
            slots=options.slots,
            timeout=options.timeout,
            switch=options.switch,
            host=host,
            shares_stream=shares_stream,
            threads=options.threads,
            queue=settings.queue(),
            holds=holds,
            moves=moves,
            spares=spares,
        )
        on_admitted()
        alone = membership(assigned, options.world_size)
        links = SwitchLinks(options.transport, assigned, alone, interface=options.interface)
        try:
            ready = session.wait_ready(links.say_hello, trouble=lambda: links.trouble)
            links.keep(ready.aggregators, ready.spares)
            if ready.answers:
                links.await_answers(session)
        except BaseException:
            links.close()
            raise
    except BaseException as error:
        if session.fail(str(error) or type(error).__name__):  # so that the others learn the reason
            session.await_abort(ABORT_TIMEOUT_S)
        session.close()
        raise
    local = bool(host) and len(set(ready.hosts)) == 1
    everyone = membership(assigned, options.world_size, ready)
    if local and everyone.hosts:  # one host, even if its ranks are behind several ports or leaves
        everyone = replace(everyone, hosts=(0,) * options.world_size, peers=())
    return JoinedJob(session, links.transport, everyone, links.switches[0], local)


def run_job(
    options: JoinOptions, on_admitted: Callable[[], None] = lambda: None, attempt: Attempt | None = None
) -> RunningJob:
    """Join the job and start the engine that runs its operations. Raises JoinError or TransportError."""
    engine: Engine | None = None
    backend = backends.backend()  # raises for a wrong choice before there is anything to undo
    check_threads(options.threads, options.transport)
    shares_memory = options.transport == "udp" and backend.name == "c"
    host = host_digest(options.world_size) if shares_memory else ""
    is_local = options.local == "auto"

    def abort(error: JobAborted) -> None:
        if engine is not None:
            engine.fail(MismatchError(str(error)) if error.reason == MISMATCH else error)

    def counted(told: pb.Counted) -> None:
        if engine is not None and told.ranks:
            engine.counted(told.half, told.seq, gone_ahead(joined.membership, told.half, told.seq, told.ranks))

    joined = join_job(
        options,
        host=host if is_local else "",
        shares_stream=is_local and options.threads == 1 if host else None,
        holds=options.threads == 1,
        moves=True,
        spares=options.transport == "udp",
        on_abort=abort,
        on_counted=counted,
        on_admitted=on_admitted,
        attempt=attempt,
    )
    try:
        engine = _start(joined, options)
    except BaseException as error:
        aborted = joined.session.aborted
        joined.leave(str(error) or type(error).__name__)
        if joined.meets and isinstance(error, P4ReduceError):
            raise JoinError(str(aborted or error)) from error
        raise
    engine.on_silence = joined.session.ask
    engine.on_failure = partial(tell_failure, joined.session)
    joined.session.hold_with(engine)
    joined.session.move_with(engine)
    joined.session.report(Reporter(engine).report)
    if joined.session.aborted is not None:  # aborted before `abort` above had an engine
        abort(joined.session.aborted)
    _count_members(joined.membership, +1)
    rate = rate_toward(joined.switches[0], options.interface)
    return RunningJob(joined.session, joined.membership, engine, rate, joined.local)


def _start(joined: JoinedJob, options: JoinOptions) -> Engine:
    """Start the engine. If the rank does not send its values itself, log how they are sent."""
    member = joined.membership
    engine = start_engine(
        joined.transport,
        member,
        switch=joined.switch,
        name=f"p4reduce rank {member.rank}",
        local=joined.local,
        timeout=options.timeout,
    )
    if isinstance(engine, LocalEngine):
        route = f"rank {member.leader} sends for ranks {member.colocated}"
        if joined.local:
            route = f"sends no packets and uses {engine.link()}"
        log.info("job %r, rank %d: %s", options.job, member.rank, route)
    return engine


def membership(assigned: Assigned, world_size: int, ready: pb.Ready | None = None) -> Membership:
    """Return the worker's membership from the controller's assignment. Before `ready`, a rank knows no other rank.

    The number and generation of each thread are those at its first aggregator.
    """
    jobs = [(assigned.job, assigned.generation), *(divmod(packed, 1 << 16) for packed in assigned.more_jobs)]
    first = ready.aggregators[0] if ready is not None and ready.aggregators else 0
    own = [jobs_of_thread(assigned, thread) for thread in range(len(jobs))]
    (job, generation), *more_jobs = [one[first] if one else job for one, job in zip(own, jobs, strict=True)]
    return Membership(
        job=job,
        generation=generation,
        rank=assigned.worker,
        world_size=world_size,
        slots=assigned.slots,
        lanes=assigned.lanes,
        block_size=assigned.block_size,
        first_seq=assigned.first_seq,
        peers=tuple(ready.peers) if ready is not None else (assigned.worker,),
        hosts=tuple(ready.leaders) if ready is not None else (),
        abort_secret=assigned.abort_secret,
        more_jobs=tuple(more_jobs),
    )


def leave_at_end(job: RunningJob) -> None:
    """Leave the job of a communicator that was not closed: well, unless an exception has ended the program."""
    interactive = hasattr(sys, "ps1") or bool(sys.flags.interactive)  # where an exception does not end the program
    job.leave(well=interactive or getattr(sys, "last_value", None) is None)
