# SPDX-License-Identifier: Apache-2.0
"""A training host's side of the control service: blocking calls, each with a deadline.

with Session("127.0.0.1:7700") as session:
    assigned = session.join("my-job", rank=0, world_size=2)
    session.wait_ready(hello=lambda: transport.send(hello_packet))
    ...
    session.leave()
"""

from __future__ import annotations

import itertools
import logging
import math
import threading
import time
from collections.abc import Callable

import grpc

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import reports, words
from p4reduce.control.certificates import TlsFiles
from p4reduce.control.channel import (
    DEFAULT_CONTROLLER,
    LEASE,
    Tls,
    code_of,
    details,
    explain,
    has_gone,
    may_come,
    open_channel,
)
from p4reduce.control.holding import Holder, Holding
from p4reduce.control.line import Line
from p4reduce.control.messages import (
    MOST_SAID,
    Assigned,
    Counted,
    Endpoint,
    Ready,
    awaited_text,
    refusal,
    take_abort,
    take_assigned,
    take_counted,
    take_ready,
)
from p4reduce.errors import CollectiveTimeout, JobAborted, JoinError

JOIN_TIMEOUT = 60.0
HELLO_INTERVAL = 0.1
_RARE_HELLO = 0.4  # of a rank of which nobody has said that it was not heard
LEAVE_TIMEOUT = 60.0  # more than the controller waits for the other ranks
_ANSWER_TIMEOUT = 30.0  # for what the controller answers by itself, at once
_ANSWER_TIMEOUT_OF_SEVERAL = 5.0  # as one of several may stand still, and another serve then
_RETRY = 0.2
_LOOK = 1.0  # seconds between looks at certificates, while a rank waits for a controller
_MOST_UNSENT = 4  # beyond which reports are left out
_REMIND_JOINING = 2.0  # seconds, after which and between which who is awaited is told, where that has changed
_REMIND_LEAVING = 5.0  # after which who is awaited is told
_REMIND_AWAY = 30.0

log = logging.getLogger(__name__)


class Session:
    """One rank's membership of one job. Its methods are for one thread; `aborted`, `ask`, `fail` and `close` are for
    any.

    The stream is its lease: it is a member while that is open, whatever its process does, and gRPC's C core sees to it.
    A controller that ends and is started again in time finds the rank back, if it keeps its state.
    `on_abort` is called once, from a thread of the session's, when the job dies after it was ready; `on_counted` when
    the controller tells what a rank has asked by `ask`. They must not block.
    """

    def __init__(
        self,
        address: str = DEFAULT_CONTROLLER,
        *,
        token: str | None = None,
        tls: Tls | None = None,
        connect_timeout: float = 10.0,
        on_abort: Callable[[JobAborted], None] | None = None,
        on_counted: Callable[[Counted], None] | None = None,
        lease: float = LEASE,
    ) -> None:
        """`address`: of the controller, or of those of which one serves, with commas between them. Raises JoinError.

        Does not connect yet; `join` does. `connect_timeout` bounds how long it waits for the controller to start,
        `lease` how long a controller's host that vanished may go unnoticed (seconds).
        """
        self.addresses = list(dict.fromkeys(one.strip() for one in address.split(",")))
        for one in self.addresses:
            try:
                words.check_address("controller", one, DEFAULT_CONTROLLER)
            except ValueError as error:
                raise JoinError(str(error)) from None
        self._token = token
        self._tls = tls
        self._connect_timeout = connect_timeout
        self._on_abort = on_abort
        self._on_counted = on_counted
        self._lease = lease
        self._figures: Callable[[float], pb.Report] | None = None
        self._news = threading.Condition()
        self._line: Line | None = None  # to the controller that serves, as far as is known
        self._asking: dict[str, Line] = {}  # by address, those by which this rank would come back
        self._tls_files: TlsFiles | None = None  # once they were needed
        self._channels: dict[str, tuple[grpc.Channel, int]] = {}  # and the version of these
        self._refusals: dict[str, str] = {}  # by address, for good
        # Guarded by _news, as is what is above.
        self._assigned: Assigned | None = None
        self._ready: Ready | None = None
        self._left = False
        self._closed = False
        self._waiting: pb.Waiting | None = None
        self._aborted: JobAborted | None = None
        self._ended = False  # the latest stream
        self._broken: grpc.RpcError | None = None  # how it ended
        self._away = False  # it broke, and no controller has let us in again so far
        self._returns = 0  # how often one has
        self._leaving = False
        self._failed: pb.Failed | None = None
        self._told_of_switches = -math.inf
        self._holding = Holding(self._news, self._say_unless_away)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """Of the controller that serves, as far as is known; else of all."""
        line = self._line
        return line.address if line is not None else ",".join(self.addresses)

    @property
    def aborted(self) -> JobAborted | None:
        """Why the job is dead, or None while it is not."""
        with self._news:
            return self._aborted

    @property
    def ready(self) -> bool:
        with self._news:
            return self._ready is not None and self._aborted is None

    def join(
        self,
        job: str,
        rank: int,
        world_size: int,
        *,
        slots: int = 0,
        timeout: float = JOIN_TIMEOUT,
        switch: str = "",
        host: str = "",
        shares_stream: bool | None = None,
        threads: int = 1,
        queue: float = 0.0,
        holds: bool = False,
    ) -> Assigned:
        """Takes the rank's seat. `slots` 0 leaves their number to the controller. `switch`: the name of the one that
        the rank is at, where several could hear it. `host`: what only the ranks have in common with which it can share
        memory; "" for none. `shares_stream`: whether one of those may send to the switches for all of them; None where
        this rank cannot reduce beside others that share streams, so that none may. `threads`: how many of the rank
        share the slots. `queue`: seconds that the rank would wait for slots, where there are none for the job now; 0
        for being refused. Its place is logged. `holds`: whether a `Holder` will carry this rank's operations, which
        `hold_with` names.

        `timeout` (seconds) is how long the controller may wait for the other ranks before the job is given up. Raises
        JoinError: nobody listens there, TLS or the token are not accepted, or the controller refuses the join.
        """
        if self._line is not None or self._closed:
            raise JoinError("this session has joined already; a session is for one job")
        for name, value in (("rank", rank), ("world_size", world_size), ("slots", slots)):
            if not 0 <= value < 2**32:
                raise JoinError(f"{name}={value}: it must be 0 or more, and below 2^32")
        join = pb.Join(
            job=job,
            rank=rank,
            world_size=world_size,
            slots=slots,
            timeout_s=timeout,
            switch=switch,
            host=host,
            stream=pb.UNSAID if shares_stream is None else pb.SHARED if shares_stream else pb.OWN,
            threads=threads if threads > 1 else 0,
            queue_s=queue,
            holds=holds,
        )
        self._join_timeout = timeout
        return self._first_that_serves(pb.ClientMessage(join=join), time.monotonic() + self._connect_timeout, queue)

    def _first_that_serves(self, first: pb.ClientMessage, deadline: float, queue: float) -> Assigned:
        troubles: dict[str, str] = {}
        began, queued, told = time.monotonic(), False, False
        rank, job = first.join.rank, first.join.job
        for address in itertools.cycle(self.addresses):
            limit = _ANSWER_TIMEOUT if len(self.addresses) == 1 else _ANSWER_TIMEOUT_OF_SEVERAL
            self._begin(Line(address, first))
            with self._news:
                if self._await_answer(limit, queue):  # so there was time enough to reach it: what comes now is new
                    queued = True
                    troubles, deadline = {}, time.monotonic() + self._connect_timeout
                assigned, aborted, broken, closed = self._assigned, self._aborted, self._broken, self._closed
                ended = self._ended
            if assigned is not None:
                return assigned
            if aborted is not None:
                raise refusal(aborted)
            if closed:
                raise JoinError("the session was closed before the controller answered")
            self._shut()
            no_answer = f"controller at {address}: no answer within {limit:g} s; check address and network"
            troubles[address] = no_answer if broken is None else explain(broken, address, self._tls)
            # The place of one that has waited in the queue is kept for it.
            left = queued and ended and (broken is None or has_gone(broken))
            gone = left or (broken is not None and may_come(broken))
            hopeless = len(self.addresses) == 1 and not gone
            if hopeless or (time.monotonic() + _RETRY >= deadline and len(troubles) == len(self.addresses)):
                self.close()
                raise JoinError("; ".join(troubles.values()))
            if address == self.addresses[-1]:
                if not told and not queued:
                    why = "; ".join(troubles.values())
                    log.warning(
                        "rank %d of job %r waits up to %.0f s for a controller: %s",
                        rank,
                        job,
                        deadline - time.monotonic(),
                        why,
                    )
                    told = True
                time.sleep(_RETRY)
            if queued:
                queue = max(0.0, queue - (time.monotonic() - began))
                began = time.monotonic()
                first = pb.ClientMessage(join=first.join)
                first.join.queue_s = queue
        raise AssertionError

    def _await_answer(self, limit: float, queue: float) -> bool:
        """To a join, and while the controller says that it stands in the queue, for so many seconds more; returns
        whether it has said so. Under _news."""
        deadline = time.monotonic() + limit
        told = ""

        def news() -> bool:
            return self._answered() or self._queued() != told

        while not self._answered() and time.monotonic() < deadline:
            if self._queued() != told:
                deadline += queue if not told else 0.0
                told = self._queued()
                log.warning("this rank waits for %s", told)
            self._news.wait_for(news, max(0.0, deadline - time.monotonic()))
        return bool(told)

    def _queued(self) -> str:
        """What is known of its place in the queue."""
        in_queue = self._waiting is not None and self._waiting.what == pb.Waiting.QUEUE
        return awaited_text(self._waiting) if in_queue and self._waiting is not None else ""

    def wait_ready(
        self, hello: Callable[[], None], timeout: float | None = None, *, trouble: Callable[[], str] = lambda: ""
    ) -> Ready:
        """Waits until all ranks are there, calling `hello` for the switch to hear us: at once, then every 400 ms, and
        every 100 ms while the controller says that we were not heard.

        `timeout` defaults to that of `join`, and a little more, since the controller gives up by itself and knows best
        why. `trouble`: what is known here of HELLOs that do not leave, or "". Raises JoinError, which names the ranks
        that are missing.
        """
        limit = self._join_timeout + _ANSWER_TIMEOUT if timeout is None else timeout
        deadline = time.monotonic() + limit
        due, told = time.monotonic() + _REMIND_JOINING, ""
        while True:
            hello()
            with self._news:
                self._await_next_hello(deadline)
                known = trouble() if self._unheard() else ""
                if self._aborted is not None:
                    raise refusal(self._aborted, known)
                if self._ready is not None:
                    return self._ready
                if self._closed:
                    raise JoinError("the session was closed before the job was ready")
                awaited = f"{self._awaited_text()}; {known}" if known else self._awaited_text()
                if time.monotonic() >= deadline:
                    raise JoinError(f"the job is not ready after {limit:g} s: {awaited}")
                if time.monotonic() >= due and awaited != told:
                    log.warning("this rank waits for its job to begin: %s", awaited)
                    due, told = time.monotonic() + _REMIND_JOINING, awaited

    def _await_next_hello(self, deadline: float) -> None:
        """Or until the job is settled. Under _news."""
        said = time.monotonic()
        while not self._settled():
            due = min(said + (HELLO_INTERVAL if self._unheard() else _RARE_HELLO), deadline)
            if time.monotonic() >= due:
                break
            self._news.wait(due - time.monotonic())

    def ask(self, half: int) -> None:
        """Asks who is counted in a half of the job in which this rank's packet has no answer."""
        with self._news:
            if self._ready is not None:
                self._say_unless_away(pb.ClientMessage(unanswered=pb.Unanswered(half=half)))

    def fail(self, why: str, rank: int | None = None, *, mismatch: bool = False) -> bool:
        """Says, once, that this rank cannot go on, which ends the job for all. False where there is none to end.

        rank: that is the cause, if it is not this one. mismatch: ranks do not call the same. Returns at once;
        `await_abort` waits until the others know.
        """
        text = why[:MOST_SAID].encode(errors="replace").decode()  # whatever it is
        with self._news:
            if self._failed is None and self._assigned is not None and not (self._leaving or self._over()):
                self._failed = pb.Failed(message=text, rank=rank, mismatch=mismatch)
                if not self._away:  # else when it is back
                    self._say(pb.ClientMessage(failed=self._failed))
                return True
        return False

    def report(self, figures: Callable[[float], pb.Report]) -> None:
        """From now on the controller is told what the rank has done, as often as it asks for that, and once more when
        the rank leaves. `figures` is given the time (monotonic), and called by a thread that other sessions share."""
        self._figures = figures
        with self._news:
            delay = self._report_interval() or _LOOK
        reports.schedule.add(self._report, delay)

    def hold_with(self, holder: Holder) -> None:
        """From now on `holder` is told when the job's slots are to change; also of a change that has begun before."""
        self._holding.begin(holder)

    def leave(
        self, timeout: float = LEAVE_TIMEOUT, *, on_heard: Callable[[], None] = lambda: None, is_last: bool = True
    ) -> None:
        """Leaves together with all other ranks, and returns when all have, or soon after if some have not.

        is_last: False to return when the controller knows that this rank leaves.
        on_heard: called when the controller knows that this rank leaves; from then on it may `close` as well. It must
            not block.
        A job that is dead has nothing to leave, so this does not raise JobAborted.
        """
        deadline = time.monotonic() + timeout
        self._report_once()
        with self._news:
            if self._line is None or self._over():
                return
            self._leaving = True
            if not self._away:  # else when it is back
                self._say(pb.ClientMessage(leave=pb.Leave()))
            if self._news.wait_for(self._heard_leaving, timeout):
                on_heard()
                if not is_last:
                    return
            patience = min(_REMIND_LEAVING, deadline - time.monotonic())
            if not self._news.wait_for(self._over, patience) and patience == _REMIND_LEAVING:
                log.warning("this rank is leaving its job: %s", self._awaited_text())
            if not self._news.wait_for(self._over, max(0.0, deadline - time.monotonic())):
                raise CollectiveTimeout(
                    f"the controller at {self.address} did not confirm within {timeout:g} s that this rank may leave: "
                    f"{self._awaited_text()}",
                    awaited=self._waiting.ranks if self._waiting else (),
                )

    def _tell_of_switches(self, why: str) -> None:
        """Logs that switches are away, which the controller answers as often as it is asked, and not so often."""
        if time.monotonic() >= self._told_of_switches + _REMIND_AWAY:
            self._told_of_switches = time.monotonic()
            log.warning("this rank gets no answer from a switch: %s", why)

    def await_abort(self, timeout: float) -> None:
        """Waits until the controller has said why the job is dead, for so many seconds at most."""
        with self._news:
            self._news.wait_for(self._over, timeout)

    def close(self) -> None:
        """Ends the stream. Without `leave` before, the job is aborted for all ranks."""
        with self._news:
            self._closed = True
            self._news.notify_all()
        reports.schedule.remove(self._report)
        self._shut()
        self._broken = self._on_abort = self._on_counted = self._figures = None
        self._holding.end()

    # The stream.

    def _begin(self, line: Line, *, asks: bool = False) -> None:
        """Begins a stream, unless the session was closed. `asks`: to come back, as soon as somebody listens there."""
        with self._news:
            if self._closed:
                return
            if asks:
                self._asking[line.address] = line
            else:
                self._line, self._ended, self._broken, self._waiting = line, False, None, None
            line.begin(self._channel(line.address), self._token, self._heard, self._line_ended, patient=asks)

    def _channel(self, address: str) -> grpc.Channel:
        """One that knows the latest certificates. The line there before has ended, or there was none."""
        if self._tls is not None and self._tls_files is None:
            self._tls_files = self._tls.files()
        pem = self._tls_files.current() if self._tls_files is not None else None
        version = pem.version if pem is not None else 0
        old = self._channels.get(address)
        if old is not None and old[1] == version:
            return old[0]
        if old is not None:
            old[0].close()
        self._channels[address] = open_channel(address, self._tls, self._lease, pem), version
        return self._channels[address][0]

    def _shut(self) -> None:
        with self._news:
            lines = [*([self._line] if self._line else []), *self._asking.values()]
            channels = [channel for channel, _ in self._channels.values()]
            self._line = None
            self._asking, self._channels = {}, {}
        for line in lines:
            line.cancel()
        for line in lines:
            line.wait(_ANSWER_TIMEOUT)
        for channel in channels:
            channel.close()

    def _say(self, message: pb.ClientMessage) -> None:
        if self._line is not None:
            self._line.say(message)

    def _say_unless_away(self, message: pb.ClientMessage) -> None:
        """What is of no use any more once the rank leaves. Under _news."""
        if not (self._away or self._leaving or self._over()):
            self._say(message)

    def _heard(self, line: Line, message: pb.ServerMessage) -> None:
        """What a controller says, in the line's thread. One that another line leads to has its say when it serves."""
        kind = message.WhichOneof("message")
        newly_aborted, left_behind = None, None
        with self._news:
            if line is not self._line and (self._over() or kind not in ("ready", "abort")):
                return
            if kind == "assigned":
                self._assigned = take_assigned(message.assigned)
            elif kind == "ready":
                self._ready = take_ready(message.ready, self._assigned)
                if line is not self._line:
                    left_behind = self._come_back(line)
            elif kind == "left":
                self._left = True
            elif kind == "waiting" and message.waiting.what == pb.Waiting.AWAY:
                self._tell_of_switches(message.waiting.why)
            elif kind == "waiting":
                self._waiting = message.waiting
            elif kind == "hold":
                self._holding.hold(message.hold)
            elif kind == "release":
                self._holding.release(message.release)
            elif kind == "abort":
                newly_aborted = take_abort(message.abort)
            self._news.notify_all()
        if left_behind is not None:
            left_behind.cancel()
        elif kind == "ready" and line is self._line:
            self._ask_others()
        if kind == "notice" and line is self._line:
            log.warning("%s", message.notice.text)
        on_counted = self._on_counted
        if kind == "counted" and on_counted is not None:
            on_counted(take_counted(message.counted))
        if newly_aborted is not None:
            self._abort(newly_aborted)

    def _come_back(self, line: Line) -> Line | None:
        """That controller serves. Returns the line that there was, which may lead to one that stands still."""
        before, self._line = self._line, line
        self._asking.pop(line.address, None)
        self._ended, self._broken, self._away = False, None, False
        self._returns += 1
        if self._leaving:
            self._say(pb.ClientMessage(leave=pb.Leave()))
        elif self._failed is not None:
            self._say(pb.ClientMessage(failed=self._failed))
        return before

    def _line_ended(self, line: Line, error: grpc.RpcError | None) -> None:
        """In its thread, which ends then."""
        with self._news:
            if line is self._line:
                self._ended, self._broken = True, error
                unexpected = not (self._over() or self._away or self._assigned is None)
                self._away = self._away or unexpected
            else:
                unexpected = False
                if error is not None and code_of(error) is grpc.StatusCode.UNAUTHENTICATED:
                    self._refusals[line.address] = explain(error, line.address, self._tls)
            returns = self._returns
            self._news.notify_all()
        if unexpected:
            why = f": {details(error)}" if error is not None else ""
            self._return(line, f"the connection to the controller at {line.address} broke{why}", returns)
        elif line is not self._line:
            self._ask_again(line)

    # Coming back.

    def _ask_others(self) -> None:
        """The others answer when they serve. They may before we notice that this one does not any more."""
        for address in self.addresses:
            if self._line is not None and address != self._line.address and address not in self._asking:
                self._ask_to_return(address)

    def _ask_to_return(self, address: str) -> None:
        assigned = self._assigned
        if assigned is None or not assigned.rejoin_key:
            return
        rejoin = pb.Rejoin(
            job=assigned.job, generation=assigned.generation, rank=assigned.worker, key=assigned.rejoin_key
        )
        self._begin(Line(address, pb.ClientMessage(rejoin=rejoin)), asks=True)

    def _ask_again(self, line: Line) -> None:
        """That controller has ended the line: it begins to serve, or does not listen any more, or we have left it."""
        with self._news:
            if self._assigned is None or self._asking.get(line.address) not in (line, None):
                return
            self._news.wait_for(self._over, _RETRY)
            if self._over() or line.address in self._refusals:
                self._asking.pop(line.address, None)
                return
        self._ask_to_return(line.address)

    def _renew(self) -> None:
        """Those that wait for a controller with certificates of before ask again, with those of now."""
        if self._tls_files is None:
            return
        version = self._tls_files.current().version
        with self._news:
            known = {address: of for address, (_, of) in self._channels.items()}
            old = [line for address, line in self._asking.items() if known.get(address, version) != version]
        for line in old:
            line.cancel()

    def _return(self, line: Line, trouble: str, returns: int) -> None:
        """After the stream broke: until a controller lets us in again or refuses to, or time is up."""
        assigned = self._assigned
        assert assigned is not None
        limit = assigned.rejoin_s if assigned.rejoin_key else 0.0

        def settled() -> bool:
            return self._returns > returns or self._over() or len(self._refusals) == len(self.addresses)

        if limit:
            for address in dict.fromkeys([line.address, *self.addresses]):
                if address not in self._asking:
                    self._ask_to_return(address)
        deadline = time.monotonic() + limit
        in_time = False
        while not in_time:
            with self._news:
                left = deadline - time.monotonic()
                in_time = self._news.wait_for(settled, max(0.0, min(left, _LOOK)))
            if left <= 0:
                break
            self._renew()
        with self._news:
            if self._returns > returns or self._over():
                return
        if self._refusals:
            trouble += f"; {'; '.join(self._refusals.values())}"
        if limit and not in_time:
            trouble += f", and this rank could not rejoin its job for {limit:g} s"
        self._abort(JobAborted(trouble, reason="CONTROLLER_LOST"))
        for asking in list(self._asking.values()):
            asking.cancel()

    def _abort(self, aborted: JobAborted) -> None:
        with self._news:
            if self._aborted is not None:
                return
            self._aborted = aborted
            news = self._ready is not None and not self._leaving and self._failed is None
            on_abort = self._on_abort if news else None
            self._news.notify_all()
        if on_abort is not None:
            on_abort(aborted)

    # Reports.

    def _report(self) -> float | None:
        """Returns after how many seconds it is to be called again."""
        self._report_once()
        self._renew()
        with self._news:
            return None if self._leaving or self._over() else self._report_interval() or _LOOK

    def _report_once(self) -> None:
        """Unless nobody asks for it or listens."""
        with self._news:
            wanted = self._report_interval() > 0 and not (self._away or self._leaving or self._over())
            figures = self._figures if wanted else None
        if figures is None:
            return
        report = figures(time.monotonic())  # may wait for the engine
        with self._news:
            if not (self._away or self._leaving or self._over()) and self._unsent() < _MOST_UNSENT:
                self._say(pb.ClientMessage(report=report))

    def _unsent(self) -> int:
        return self._line.unsent if self._line is not None else 0

    def _report_interval(self) -> float:
        return self._ready.report_s if self._ready is not None else 0.0

    # Conditions; all under _news.

    def _answered(self) -> bool:
        return self._assigned is not None or self._aborted is not None or self._ended or self._closed

    def _settled(self) -> bool:
        return self._ready is not None or self._aborted is not None or self._closed

    def _unheard(self) -> bool:
        waiting, assigned = self._waiting, self._assigned
        if waiting is None or assigned is None or waiting.what != pb.Waiting.HELLO:
            return False
        return assigned.worker in waiting.ranks

    def _over(self) -> bool:
        return self._left or self._closed or self._aborted is not None

    def _heard_leaving(self) -> bool:
        """Who leaves is told who stays."""
        return self._over() or (self._waiting is not None and self._waiting.what == pb.Waiting.LEAVE)

    def _awaited_text(self) -> str:
        if self._away:
            return (
                f"the connection to the controller at {self.address} broke, and this rank has not rejoined its job yet"
            )
        if self._waiting is None:
            return f"no message yet from the controller at {self.address}"
        return awaited_text(self._waiting)


__all__ = ["DEFAULT_CONTROLLER", "Assigned", "Endpoint", "Ready", "Session", "Tls"]
