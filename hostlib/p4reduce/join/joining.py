# SPDX-License-Identifier: Apache-2.0
"""How a rank comes into a job and out of it: session, transport, worker and engine, in order."""

from __future__ import annotations

import logging
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from p4reduce import settings
from p4reduce.backends import (
    check_threads,
    select_backend,
    start_engine,
    start_local_engine,
    start_sharing_engine,
)
from p4reduce.control.client import Assigned, Session, Tls
from p4reduce.control.messages import MISMATCH, Counted, Ready
from p4reduce.engine.carrier import Carrier
from p4reduce.errors import JobAborted, JoinError, MismatchError, P4ReduceError
from p4reduce.join.reporting import Reporter
from p4reduce.join.ways import Ways
from p4reduce.local.host import LocalChoice
from p4reduce.local.host import digest as host_digest
from p4reduce.protocol import Membership
from p4reduce.protocol.endings import gone_ahead
from p4reduce.transport import SharedTransport, Switch, Transport
from p4reduce.transport.rate import rate_toward

# How long to wait for a controller that is only just starting.
CONNECT_TIMEOUT_S = 10.0

# For the controller to say why a job is dead. Who leaves at once would be blamed.
LAST_WORD_S = 2.0

log = logging.getLogger("p4reduce.joining")


class Attempt:
    """A join that other threads can give up."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._session: Session | None = None
        self.given_up = threading.Event()

    def give_up(self) -> None:
        """Lets it end with JoinError. The other ranks learn of it at once, if the controller knew of this one."""
        self.given_up.set()
        with self._lock:
            session = self._session
        if session is not None:
            session.close()

    def check(self) -> None:
        """Raises JoinError if it was given up."""
        if self.given_up.is_set():
            raise JoinError("this rank has given up joining")

    def begin(self, session: Session) -> None:
        """By this session."""
        with self._lock:
            self._session = session
        self.check()


@dataclass(frozen=True)
class Place:
    """A rank's place in a job that all ranks have joined: what an engine starts from."""

    session: Session
    transport: Transport | SharedTransport
    membership: Membership
    switches: tuple[Switch, ...]
    local: bool = False
    """All ranks can share memory."""

    @property
    def switch(self) -> str:
        """Where its switches are, for error messages."""
        return ",".join(map(str, self.switches))

    @property
    def meets(self) -> bool:
        """Its engine shares memory with those of other ranks, and starts when these do."""
        return self.local or bool(self.membership.hosts)

    def leave(self, trouble: str = "") -> None:
        """Leaves the job, together with the other ranks; at once, where there is trouble, which the others are told."""
        try:
            if trouble:
                self.session.fail(trouble)
                self.session.await_abort(LAST_WORD_S)
            else:
                self.session.leave()
        finally:
            self.session.close()
            self.transport.close()


class _Here:
    """How many of a job's members are of this process and have not begun to leave."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._members: Counter[tuple[int, int, int]] = Counter()

    def begin(self, member: Membership) -> None:
        with self._lock:
            self._members[_job_of(member)] += 1

    def leave(self, member: Membership) -> int:
        """Returns how many stay."""
        with self._lock:
            self._members[_job_of(member)] -= 1
            stay = self._members[_job_of(member)]
            if stay <= 0:
                del self._members[_job_of(member)]
            return stay


def _job_of(member: Membership) -> tuple[int, int, int]:
    """The secret, as controllers number their jobs each for itself."""
    return member.job, member.generation, member.abort_secret


_here = _Here()


@dataclass(frozen=True)
class Seat:
    """A rank's place in a running job."""

    session: Session
    membership: Membership
    engine: Carrier
    rate: int
    """Bits a second of the link toward the switch; 0 where nobody knows."""
    local: bool = False
    """Operations are carried in the host's memory."""

    def leave(self, *, well: bool = True, on_heard: Callable[[], None] | None = None) -> None:
        """Leaves the job, together with the other ranks. Operations under way fail.

        Others of this process, which may come to leave only after this one, are not waited for: the last of them waits
        for all.

        well: False for a rank that cannot go on, which ends the job for the others at once.
        on_heard: called when the controller knows that this rank leaves well, before the others have left.
        """
        if not self.engine.in_own_process():
            return  # a forked process has the session's sockets, but it is its parent that is in the job
        is_last = not _here.leave(self.membership)
        failure = self.engine.failure
        if failure is None and self.engine.busy:
            failure = P4ReduceError("it closed its communicator while operations were under way")
        elif failure is None and not well:
            failure = P4ReduceError("it ended the job")
        try:
            if failure is not None:
                tell_failure(self.session, failure)
            self.engine.close(P4ReduceError("the communicator is closed"))
            if failure is not None:
                self.session.await_abort(LAST_WORD_S)
            elif on_heard is not None:
                self.session.leave(on_heard=on_heard, is_last=is_last)
            else:
                self.session.leave(is_last=is_last)
        finally:
            self.session.close()


def tell_failure(session: Session, failure: BaseException) -> None:
    """Ends the job for the other ranks, which learn why, and through whom."""
    rank = failure.rank if isinstance(failure, JobAborted) else None
    session.fail(str(failure), rank, mismatch=isinstance(failure, MismatchError))


def join_job(
    controller: str,
    *,
    job: str,
    rank: int,
    world_size: int,
    slots: int,
    transport: str,
    interface: str | None,
    token: str | None,
    tls: Tls | None,
    timeout: float,
    at: str,
    host: str = "",
    shares_stream: bool | None = None,
    threads: int = 1,
    holds: bool = False,
    on_abort: Callable[[JobAborted], None],
    on_counted: Callable[[Counted], None] | None = None,
    on_admitted: Callable[[], None] = lambda: None,
    attempt: Attempt | None = None,
) -> Place:
    """Joins the job and returns when all ranks have. Raises JoinError or TransportError.

    at: the name of the switch that the rank is at, or "". host, shares_stream, threads, holds: as of
    `Session.join`.
    on_abort: called once, from a thread of the session's, when the job dies after that. on_counted: as of `Session`.
    on_admitted: called when the job has its slots, before the other ranks are waited for.
    attempt: with which another thread can give it up.
    """
    patience = min(timeout, CONNECT_TIMEOUT_S)
    session = Session(
        controller, token=token, tls=tls, connect_timeout=patience, on_abort=on_abort, on_counted=on_counted
    )
    try:
        if attempt is not None:
            attempt.begin(session)
        place = session.join(
            job,
            rank,
            world_size,
            slots=slots,
            timeout=timeout,
            switch=at,
            host=host,
            shares_stream=shares_stream,
            threads=threads,
            queue=settings.queue(),
            holds=holds,
        )
        on_admitted()
        ways = Ways(transport, place, membership(place, world_size), interface=interface)
        try:
            ready = session.wait_ready(ways.say_hello, trouble=lambda: ways.trouble)
            ways.keep(ready.aggregators)
            if ready.answers:
                ways.await_answers(session)
        except BaseException:
            ways.close()
            raise
    except BaseException as error:
        if session.fail(str(error) or type(error).__name__):  # so that the others hear why
            session.await_abort(LAST_WORD_S)
        session.close()
        raise
    local = bool(host) and len(set(ready.hosts)) == 1
    return Place(session, ways.transport, membership(place, world_size, ready), ways.switches[0], local)


def take_seat(
    controller: str,
    *,
    job: str,
    rank: int,
    world_size: int,
    slots: int,
    transport: str,
    interface: str | None,
    token: str | None,
    tls: Tls | None,
    timeout: float,
    at: str,
    local: LocalChoice = "off",
    threads: int = 1,
    on_admitted: Callable[[], None] = lambda: None,
    attempt: Attempt | None = None,
) -> Seat:
    """Joins the job and starts what carries its operations. Raises JoinError or TransportError."""
    engine: Carrier | None = None
    backend = select_backend()  # complains of a wrong choice before there is anything to undo
    check_threads(threads, transport)
    here = host_digest(world_size) if transport == "udp" and backend.name == "c" else ""

    def abort(error: JobAborted) -> None:
        if engine is not None:
            engine.fail(MismatchError(str(error)) if error.reason == MISMATCH else error)

    def counted(told: Counted) -> None:
        if engine is not None and told.ranks:
            engine.counted(told.half, told.seq, gone_ahead(place.membership, told.half, told.seq, told.ranks))

    place = join_job(
        controller,
        job=job,
        rank=rank,
        world_size=world_size,
        slots=slots,
        transport=transport,
        interface=interface,
        token=token,
        tls=tls,
        timeout=timeout,
        at=at,
        host=here if local == "auto" else "",
        shares_stream=local == "auto" and threads == 1 if here else None,
        threads=threads,
        holds=threads == 1,
        on_abort=abort,
        on_counted=counted,
        on_admitted=on_admitted,
        attempt=attempt,
    )
    try:
        engine = _start(place, job, timeout)
    except BaseException as error:
        aborted = place.session.aborted
        place.leave(str(error) or type(error).__name__)
        if place.meets and isinstance(error, P4ReduceError):
            raise JoinError(str(aborted or error)) from error
        raise
    engine.on_silence = place.session.ask
    engine.on_failure = partial(tell_failure, place.session)
    place.session.hold_with(engine)
    place.session.report(Reporter(engine).report)
    if place.session.aborted is not None:  # before there was an engine to tell
        abort(place.session.aborted)
    _here.begin(place.membership)
    return Seat(place.session, place.membership, engine, rate_toward(place.switches[0], interface), place.local)


def _start(place: Place, job: str, timeout: float) -> Carrier:
    """The engine, by where the job's ranks are."""
    member = place.membership
    name = f"p4reduce rank {member.rank}"
    if place.local:
        engine = start_local_engine(place.transport, member, name=name, timeout=timeout)
        log.info("job %r, rank %d: sends no packets and uses %s", job, member.rank, engine.link())
        return engine
    if place.meets:
        log.info("job %r, rank %d: rank %d sends for ranks %s", job, member.rank, member.leader, member.neighbours)
        return start_sharing_engine(place.transport, member, switch=place.switch, name=name, timeout=timeout)
    return start_engine(place.transport, member, switch=place.switch, name=name)


def membership(place: Assigned, world_size: int, ready: Ready | None = None) -> Membership:
    """What the worker needs of what the controller assigned. Before the job is `ready`, a rank knows no other."""
    return Membership(
        job=place.job,
        generation=place.generation,
        rank=place.worker,
        world_size=world_size,
        slots=place.slots,
        lanes=place.lanes,
        block_size=place.block_size,
        first_seq=place.first_seq,
        peers=ready.peers if ready is not None else (place.worker,),
        hosts=ready.leaders if ready is not None else (),
        abort_secret=place.abort_secret,
        more_jobs=place.more_jobs,
    )


def leave_at_end(seat: Seat) -> None:
    """Of a communicator that nobody has closed."""
    seat.leave(well=not _has_failed())


def _has_failed() -> bool:
    """Whether an exception has ended the program; at a prompt, the last one is no end."""
    interactive = hasattr(sys, "ps1") or bool(sys.flags.interactive)
    return not interactive and getattr(sys, "last_value", None) is not None
