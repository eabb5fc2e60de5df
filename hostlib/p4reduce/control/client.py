# SPDX-License-Identifier: Apache-2.0
"""The client of the control service on a training host: blocking calls, each with a deadline.

with Session("127.0.0.1:7700") as session:
    assigned = session.join("my-job", rank=0, world_size=2)
    session.wait_ready(hello=lambda: transport.send(hello_packet))
    ...
    session.leave()

A session goes through these states, and no further than `left`, `aborted` or `closed`:

| state | what ended the state before | what the rank may do |
|---|---|---|
| new | | `join` |
| joining | `join` has sent Join | wait; in the queue, if the controller says so |
| assigned | Assigned | send HELLOs until all ranks are there (`wait_ready`) |
| ready | Ready | use its slots, `fail`, `report`, `ask` |
| leaving | `leave` has sent Leave | wait until all ranks leave |
| left | Left | `close` |
| aborted | Abort, or no controller has taken the rank back in time | `close` |
| closed | `close` | nothing |

In each state from assigned on, the serving stream may be broken (`_away`). The rank then asks every controller to take
it back, for as long as Assigned allows. Messages of that time, Failed or Leave, are sent when it is back.
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
from p4reduce.control import report_schedule
from p4reduce.control.channel import (
    DEFAULT_CONTROLLER,
    LEASE,
    Tls,
    check_controller,
    code_of,
    details,
    explain,
    has_been_reset,
    has_gone,
    may_come,
)
from p4reduce.control.connections import Connections
from p4reduce.control.holding import Holder, Holding
from p4reduce.control.jobs_pb2 import Assigned
from p4reduce.control.messages import LONGEST_FAILURE, awaited_text, refusal, take_abort
from p4reduce.control.moving import Mover, Moving
from p4reduce.control.stream import ControllerStream
from p4reduce.errors import CollectiveTimeout, JobAborted, JoinError

# All in seconds, if no unit is given.
JOIN_TIMEOUT = 60.0
HELLO_INTERVAL = 0.1
_HELLO_INTERVAL_HEARD = 0.4  # unless the controller says that the switch has not heard this rank
_HELLOS_A_SECOND = 800.0  # of all ranks of the job together while they wait for others
LEAVE_TIMEOUT = 60.0  # longer than the controller waits for the other ranks
_ANSWER_TIMEOUT = 30.0  # for requests that the controller answers by itself, at once
_ANSWER_TIMEOUT_OF_SEVERAL = 5.0  # the same, if another controller may serve instead
_RETRY_INTERVAL = 0.2
_CERTIFICATE_INTERVAL = 1.0  # between checks of the certificate files, while a rank waits for a controller
_MAX_UNSENT = 4  # messages: if more are unsent, the rank skips reports
_LOG_JOINING_INTERVAL = 2.0
_LOG_LEAVING_AFTER = 5.0
_LOG_AWAY_INTERVAL = 30.0

log = logging.getLogger(__name__)


class Session:
    """One rank's membership of one job.

    Any thread may call `aborted`, `ask`, `fail` and `close`; one thread calls the other methods. The class is long, as
    each state of the table above may follow each message, and one lock guards them all; parts would share that lock.

    The rank is a member for as long as its stream to the controller is open. gRPC's threads keep the stream alive, so a
    busy process stays a member. If the controller is started again and keeps its state, the rank rejoins.
    """

    def __init__(
        self,
        address: str = DEFAULT_CONTROLLER,
        *,
        token: str | None = None,
        tls: Tls | None = None,
        connect_timeout: float = 10.0,
        on_abort: Callable[[JobAborted], None] | None = None,
        on_counted: Callable[[pb.Counted], None] | None = None,
        lease: float = LEASE,
    ) -> None:
        """Check the addresses; `join` connects.

        address: "host:port" of the controller, or of several with commas between them, of which one serves.
        connect_timeout: seconds to wait for a controller that is only just starting.
        on_abort: called once, from a thread of the session, if the job is aborted after it was ready.
        on_counted: called from such a thread with the controller's answer to `ask`. Neither may block.
        lease: seconds after which the session notices that the controller's host has vanished.
        Raises JoinError if an address is none.
        """
        addresses = list(dict.fromkeys(one.strip() for one in address.split(",")))
        for one in addresses:
            check_controller(one)
        self._tls = tls
        self._connect_timeout = connect_timeout
        self._on_abort = on_abort
        self._on_counted = on_counted
        self._figures: Callable[[float], pb.Report] | None = None
        self._changed = threading.Condition()
        # _changed guards the fields below.
        self._connections = Connections(
            addresses, token, tls, lease, self._changed, self._on_message, self._on_stream_end
        )
        self._refusals: dict[str, str] = {}  # by address: why that controller will never take the rank back
        self._assigned: Assigned | None = None
        self._ready: pb.Ready | None = None
        self._waiting: pb.Waiting | None = None  # the latest message that says for what the controller waits
        self._left = False
        self._closed = False
        self._aborted: JobAborted | None = None
        self._leave: pb.Leave | None = None  # once the rank leaves
        self._failed: pb.Failed | None = None  # this rank's report of its failure
        self._stream_ended = False  # the latest serving stream, and the error that ended it:
        self._broken: grpc.RpcError | None = None
        self._away = False
        self._returns = 0  # times that a controller has taken the rank back
        self._last_log_of_switches = -math.inf
        self._holding = Holding(self._changed, self._send_unless_away)
        self._moving = Moving(self._say_rounds)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        """The address of the serving controller if it is known, else all addresses."""
        return self._connections.address

    @property
    def _leaving(self) -> bool:
        return self._leave is not None

    @property
    def aborted(self) -> JobAborted | None:
        """The error that aborted the job, or None."""
        with self._changed:
            return self._aborted

    @property
    def ready(self) -> bool:
        """Whether all ranks are there and the job has not been aborted."""
        with self._changed:
            return self._ready is not None and self._aborted is None

    # Joining.

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
        moves: bool = False,
        spares: bool = False,
    ) -> Assigned:
        """Join a job, and return the controller's assignment, which jobs.proto describes. Keep it secret.

        slots: how many the job wants; 0 for the controller's default.
        timeout: seconds that the controller waits for the other ranks before it gives the job up.
        switch: name of the switch that the rank is at; "" for the first that hears it.
        host: digest that is equal for ranks that can share memory; "" if the rank shares with none.
        shares_stream: whether one rank of this host may send for all of them. None: this rank cannot reduce beside
            ranks that share a stream, so that no rank may share one.
        threads: threads of this rank, which share its slots.
        queue: seconds to wait in the queue if no slots are free; with 0 the controller refuses the job then. The
            position in the queue is logged.
        holds: whether the rank can pause its operations. It then passes its engine to `hold_with`.
        moves: whether the rank can move slots. It then passes its engine to `move_with`.
        spares: whether the rank can have spare aggregators, which `Ready.spares` names.
        Raises JoinError if nobody listens there, TLS or the token are not accepted, or the controller refuses the join.
        """
        if self._connections.serving is not None or self._closed:
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
            moves=moves,
            numbers=True,
            spares=spares,
        )
        self._join_timeout, self._world_size = timeout, world_size
        return self._join_serving_controller(join)

    def _join_serving_controller(self, join: pb.Join) -> Assigned:
        """Ask one controller after the other, until one assigns or refuses, or time is up."""
        addresses = self._connections.addresses
        answer_timeout = _ANSWER_TIMEOUT if len(addresses) == 1 else _ANSWER_TIMEOUT_OF_SEVERAL
        began = time.monotonic()
        soon = deadline = began + self._connect_timeout
        queue = join.queue_s
        was_queued = logged = False
        troubles: dict[str, str] = {}  # by address
        may_return: set[str] = set()  # addresses whose trouble goes away when a controller has started
        were_reset: set[str] = set()  # a controller that ends resets connections; a second attempt shows the cause
        for address in itertools.cycle(addresses):
            self._serve(ControllerStream(address, pb.ClientMessage(join=join)))
            with self._changed:
                queued = self._await_answer(answer_timeout, join.queue_s)
                assigned, aborted, closed = self._assigned, self._aborted, self._closed
                ended, broken = self._stream_ended, self._broken
            if assigned is not None:
                return assigned
            if aborted is not None:
                raise refusal(aborted)
            if closed:
                raise JoinError("the session was closed before the controller answered")
            self._connections.end_streams()
            if queued:  # a controller was reached: any failure from now on is a new trouble
                was_queued, logged = True, False
                troubles, soon = {}, time.monotonic() + self._connect_timeout
                # A restarted controller may need some time; the rank would have waited in the queue as long.
                deadline = max(soon, began + queue)
            if broken is not None:
                troubles[address] = explain(broken, address, self._tls)
            else:
                silent = f"no answer within {answer_timeout:g} s; check address and network"
                troubles[address] = f"controller at {address}: {'it has ended the connection' if ended else silent}"
            # The controller keeps the rank's position in the queue for a while.
            left_queue = was_queued and ended and (broken is None or has_gone(broken))
            was_reset = broken is not None and address not in were_reset and has_been_reset(broken)
            if was_reset:
                were_reset.add(address)
            may_serve_later = left_queue or was_reset or (broken is not None and may_come(broken))
            (may_return.add if may_serve_later else may_return.discard)(address)
            all_failed = len(troubles) == len(addresses)
            left = (deadline if may_return else soon) - time.monotonic()
            if (all_failed and left <= _RETRY_INTERVAL) or (len(addresses) == 1 and not may_serve_later):
                self.close()
                raise JoinError("; ".join(troubles.values()))
            if address == addresses[-1]:
                if not logged:
                    logged = True
                    why = "; ".join(troubles.values())
                    log.warning(
                        "rank %d of job %r waits up to %.0f s for a controller: %s", join.rank, join.job, left, why
                    )
                time.sleep(_RETRY_INTERVAL)
            if was_queued:
                join.queue_s = max(0.0, began + queue - time.monotonic())
        raise AssertionError

    def _await_answer(self, timeout: float, queue: float) -> bool:
        """Wait for the answer to a join, and return whether the rank was queued. Call it under _changed.

        timeout: seconds to wait. queue: seconds to wait besides, if the rank is queued.
        """
        deadline = time.monotonic() + timeout
        logged = ""

        def has_news() -> bool:
            return self._is_answered() or self._queued() != logged

        while not self._is_answered() and time.monotonic() < deadline:
            if self._queued() != logged:
                deadline += queue if not logged else 0.0
                logged = self._queued()
                log.warning("this rank waits for %s", logged)
            self._changed.wait_for(has_news, max(0.0, deadline - time.monotonic()))
        return bool(logged or self._queued())  # the stream may have ended before this thread saw the message

    def _queued(self) -> str:
        """Return the controller's text about the rank's position in the queue; "" if the rank is not queued."""
        waiting = self._waiting
        return awaited_text(waiting) if waiting is not None and waiting.what == pb.Waiting.QUEUE else ""

    def wait_ready(
        self, hello: Callable[[], None], timeout: float | None = None, *, trouble: Callable[[], str] = lambda: ""
    ) -> pb.Ready:
        """Wait until all ranks are there.

        hello: sends a HELLO to the switch. It is called at once, and every 100 ms while the controller says that the
            switch has not heard this rank; otherwise every 400 ms, and in jobs of more than 320 ranks less often.
        timeout: seconds; by default a little more than that of `join`, since the controller gives up by itself and
            knows the cause.
        trouble: returns why HELLOs do not leave this host, as far as is known here, or "".
        Raises JoinError, which names the ranks that are missing.
        """
        limit = self._join_timeout + _ANSWER_TIMEOUT if timeout is None else timeout
        deadline = time.monotonic() + limit
        log_at, logged = time.monotonic() + _LOG_JOINING_INTERVAL, ""
        while True:
            hello()
            with self._changed:
                self._await_next_hello(deadline)
                known = trouble() if self._is_unheard() else ""
                if self._aborted is not None:
                    raise refusal(self._aborted, known)
                if self._ready is not None:
                    return self._ready
                if self._closed:
                    raise JoinError("the session was closed before the job was ready")
                awaited = f"{self._awaited_text()}; {known}" if known else self._awaited_text()
                if time.monotonic() >= deadline:
                    raise JoinError(f"the job is not ready after {limit:g} s: {awaited}")
                if time.monotonic() >= log_at and awaited != logged:
                    log.warning("this rank waits for its job to begin: %s", awaited)
                    log_at, logged = time.monotonic() + _LOG_JOINING_INTERVAL, awaited

    def _await_next_hello(self, deadline: float) -> None:
        """Wait until the next HELLO is due, or the join has succeeded or failed. Call it under _changed."""
        last_hello = time.monotonic()
        heard = max(_HELLO_INTERVAL_HEARD, self._world_size / _HELLOS_A_SECOND)
        while self._ready is None and self._aborted is None and not self._closed:
            due = min(last_hello + (HELLO_INTERVAL if self._is_unheard() else heard), deadline)
            if time.monotonic() >= due:
                break
            self._changed.wait(due - time.monotonic())

    # While the job is ready.

    def ask(self, half: int) -> None:
        """Ask which ranks the switch has counted in a half of the job where this rank's packet has no answer."""
        with self._changed:
            if self._ready is not None:
                self._send_unless_away(pb.ClientMessage(unanswered=pb.Unanswered(half=half)))

    def fail(self, why: str, rank: int | None = None, *, mismatch: bool = False) -> bool:
        """Report that this rank cannot go on, which aborts the job for all ranks. A second call does nothing.

        rank: the rank that is the cause, if it is another one. mismatch: whether ranks called different collectives.
        Returns at once, and False if there is no job to abort. `await_abort` waits until all ranks have been notified.
        """
        text = why[:LONGEST_FAILURE].encode(errors="replace").decode()  # so that any text can be sent
        with self._changed:
            if self._failed is None and self._assigned is not None and not (self._leaving or self._is_over()):
                self._failed = pb.Failed(message=text, rank=rank, mismatch=mismatch)
                if not self._away:  # else it is sent when the rank is back
                    self._connections.send(pb.ClientMessage(failed=self._failed))
                return True
        return False

    def await_abort(self, timeout: float) -> None:
        """Wait until the controller has sent the reason of the abort, at most `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(self._is_over, timeout)

    def hold_with(self, holder: Holder) -> None:
        """Set the holder that pauses this rank's operations when the job's slots change, also if a change has begun."""
        self._holding.begin(holder)

    def move_with(self, mover: Mover) -> None:
        """Set the mover that moves this rank's slots when a switch is lost, also if a move has begun."""
        self._moving.begin(mover)

    def report(self, figures: Callable[[float], pb.Report]) -> None:
        """Send the rank's statistics as often as the controller asks for them, and once more when the rank leaves.

        figures: makes the report for a time (monotonic). A thread that all sessions of the process share calls it.
        """
        self._figures = figures
        with self._changed:
            delay = self._report_interval() or _CERTIFICATE_INTERVAL
        report_schedule.schedule.add(self._report, delay)

    def _report(self) -> float | None:
        """Send a report if one is due, and return the seconds until the next call, or None for no more calls."""
        self._report_once()
        self._connections.cancel_outdated()
        with self._changed:
            if self._leaving or self._is_over():
                return None
            return self._report_interval() or _CERTIFICATE_INTERVAL

    def _report_once(self) -> None:
        with self._changed:
            is_wanted = self._report_interval() > 0 and self._may_send()
            figures = self._figures if is_wanted else None
        if figures is None:
            return
        report = figures(time.monotonic())  # may wait for the engine
        with self._changed:
            if self._may_send() and self._connections.unsent < _MAX_UNSENT:
                self._connections.send(pb.ClientMessage(report=report))

    def _report_interval(self) -> float:
        return self._ready.report_s if self._ready is not None else 0.0

    # Leaving.

    def leave(
        self,
        timeout: float = LEAVE_TIMEOUT,
        *,
        on_heard: Callable[[], None] = lambda: None,
        is_last: bool = True,
        lingers: bool = False,
    ) -> None:
        """Leave the job together with all other ranks, and return when all leave, or soon after if some do not.

        on_heard: called when the controller knows that this rank leaves. From then on the rank may also `close`. It
            must not block.
        is_last: if False, return as soon as the controller knows.
        lingers: whether the engine of `move_with` goes on until this method returns: other ranks may need its packets
            again if a switch is lost.
        If the job is aborted, there is nothing to leave, and the method returns at once.
        Raises CollectiveTimeout after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        self._report_once()
        with self._changed:
            if self._connections.serving is None or self._is_over():
                return
            self._leave = pb.Leave(lingers=lingers)
            if not self._away:  # else it is sent when the rank is back
                self._connections.send(pb.ClientMessage(leave=self._leave))
            if self._changed.wait_for(self._is_leave_heard, timeout):
                on_heard()
                if not is_last:
                    return
            left = deadline - time.monotonic()
            if left > _LOG_LEAVING_AFTER and not self._changed.wait_for(self._is_over, _LOG_LEAVING_AFTER):
                log.warning("this rank is leaving its job: %s", self._awaited_text())
            if not self._changed.wait_for(self._is_over, max(0.0, deadline - time.monotonic())):
                raise CollectiveTimeout(
                    f"the controller at {self.address} did not confirm within {timeout:g} s that this rank may leave: "
                    f"{self._awaited_text()}",
                    awaited=self._waiting.ranks if self._waiting else (),
                )

    def close(self) -> None:
        """End the session. Without `leave` before, the job is aborted for all ranks."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        report_schedule.schedule.remove(self._report)
        self._connections.close()
        self._broken = self._on_abort = self._on_counted = self._figures = None
        self._holding.end()
        self._moving.end()

    # Messages of controllers.

    def _on_message(self, stream: ControllerStream, message: pb.ServerMessage) -> None:
        """Handle a message of a controller, in the stream's thread.

        Of a candidate only two messages count: Ready, by which its controller takes the rank back, and Abort.
        """
        kind = message.WhichOneof("message")
        aborted, replaced = None, None
        with self._changed:
            is_serving = stream is self._connections.serving
            if not is_serving and (self._is_over() or kind not in ("ready", "abort")):
                return
            if kind == "assigned":
                self._assigned = message.assigned
            elif kind == "ready":
                self._ready = message.ready
                if not is_serving:
                    replaced = self._come_back(stream)
            elif kind == "left":
                self._left = True
            elif kind == "waiting" and message.waiting.what == pb.Waiting.AWAY:
                self._log_switches_away(message.waiting.why)
            elif kind == "waiting":
                self._waiting = message.waiting
            elif kind == "hold":
                self._holding.hold(message.hold)
            elif kind == "release":
                self._holding.release(message.release)
            elif kind == "abort":
                aborted = take_abort(message.abort)
            self._changed.notify_all()
        if replaced is not None:
            replaced.cancel()
        elif kind == "ready" and is_serving:
            self._ask_other_controllers()
        if kind == "notice" and is_serving:
            log.warning("%s", message.notice.text)
        if kind in ("suspend", "resume") and is_serving:
            self._moving.on_message(message)
        on_counted = self._on_counted
        if kind == "counted" and on_counted is not None:
            on_counted(message.counted)
        if aborted is not None:
            self._abort(aborted)

    def _log_switches_away(self, why: str) -> None:
        """Log that switches are unavailable. Every answer of the controller says so, the log once an interval."""
        if time.monotonic() >= self._last_log_of_switches + _LOG_AWAY_INTERVAL:
            self._last_log_of_switches = time.monotonic()
            log.warning("this rank gets no answer from a switch: %s", why)

    def _abort(self, aborted: JobAborted) -> None:
        with self._changed:
            if self._aborted is not None:
                return
            self._aborted = aborted
            is_news = self._ready is not None and not self._leaving and self._failed is None
            on_abort = self._on_abort if is_news else None
            self._changed.notify_all()
        if on_abort is not None:
            on_abort(aborted)

    # Streams.

    def _serve(self, stream: ControllerStream) -> None:
        """Open a stream to a controller that may serve, unless the session was closed."""
        with self._changed:
            if not self._closed:
                self._stream_ended, self._broken, self._waiting = False, None, None
                self._connections.serve(stream)

    def _send_unless_away(self, message: pb.ClientMessage) -> None:
        """Send a message that is of use only while the rank takes part in the job. Call it under _changed."""
        if self._may_send():
            self._connections.send(message)

    def _say_rounds(self, message: pb.ClientMessage) -> None:
        with self._changed:
            if not (self._away or self._is_over()):
                self._connections.send(message)

    def _on_stream_end(self, stream: ControllerStream, error: grpc.RpcError | None) -> None:
        """Handle the end of a stream, in the stream's thread, which ends after this."""
        with self._changed:
            is_serving = stream is self._connections.serving
            is_unexpected = False
            if is_serving:
                self._stream_ended, self._broken = True, error
                is_unexpected = not (self._is_over() or self._away or self._assigned is None)
                self._away = self._away or is_unexpected
            elif error is not None and code_of(error) is grpc.StatusCode.UNAUTHENTICATED:
                self._refusals[stream.address] = explain(error, stream.address, self._tls)
            returns = self._returns
            self._changed.notify_all()
        if is_unexpected:
            why = f": {details(error)}" if error is not None else ""
            trouble = f"the connection to the controller at {stream.address} broke{why}"
            self._await_return(stream.address, trouble, returns)
        elif not is_serving:
            self._ask_again(stream)

    # Coming back after the stream broke.

    def _ask_other_controllers(self) -> None:
        """Ask the other controllers to take the rank back when they serve.

        One of them may begin to serve before this session notices that the serving controller has ended.
        """
        serving = self._connections.serving
        for address in self._connections.addresses:
            if serving is not None and address != serving.address and address not in self._connections.candidates:
                self._ask_to_return(address)

    def _ask_to_return(self, address: str) -> None:
        assigned = self._assigned
        if assigned is None or not assigned.rejoin_key:
            return
        rejoin = pb.Rejoin(
            job=assigned.job, generation=assigned.generation, rank=assigned.worker, key=assigned.rejoin_key
        )
        with self._changed:
            if not self._closed:
                self._connections.add_candidate(address, rejoin)

    def _ask_again(self, candidate: ControllerStream) -> None:
        """Open a candidate again after its end: its controller begins to serve or ended, or `cancel` was called."""
        address, candidates = candidate.address, self._connections.candidates
        with self._changed:
            if self._assigned is None or candidates.get(address) not in (candidate, None):
                return
            self._changed.wait_for(self._is_over, _RETRY_INTERVAL)
            if candidates.get(address) not in (candidate, None):
                return
            if self._is_over() or address in self._refusals:
                candidates.pop(address, None)
                return
        self._ask_to_return(address)

    def _await_return(self, broken: str, trouble: str, returns: int) -> None:
        """Wait until a controller takes the rank back, all refuse to, or time is up; then the job is aborted.

        broken: address of the controller whose stream broke. trouble: how. returns: how often the rank was back before.
        """
        assigned = self._assigned
        assert assigned is not None
        limit = assigned.rejoin_s if assigned.rejoin_key else 0.0
        addresses = self._connections.addresses

        def is_settled() -> bool:
            return self._returns > returns or self._is_over() or len(self._refusals) == len(addresses)

        if limit:
            for address in dict.fromkeys([broken, *addresses]):
                if address not in self._connections.candidates:
                    self._ask_to_return(address)
        deadline = time.monotonic() + limit
        settled = False
        while not settled:
            with self._changed:
                left = deadline - time.monotonic()
                settled = self._changed.wait_for(is_settled, max(0.0, min(left, _CERTIFICATE_INTERVAL)))
            if left <= 0:
                break
            self._connections.cancel_outdated()
        with self._changed:
            if self._returns > returns or self._is_over():
                return
        if self._refusals:
            trouble += f"; {'; '.join(self._refusals.values())}"
        if limit and not settled:
            trouble += f", and this rank could not rejoin its job for {limit:g} s"
        self._abort(JobAborted(trouble, reason="CONTROLLER_LOST"))
        for candidate in list(self._connections.candidates.values()):
            candidate.cancel()

    def _come_back(self, candidate: ControllerStream) -> ControllerStream | None:
        """Make the candidate the serving stream, since its controller takes the rank back.

        Sends what was not sent meanwhile. Returns the serving stream before, which may still be open.
        """
        before = self._connections.promote(candidate)
        self._stream_ended, self._broken, self._away = False, None, False
        self._returns += 1
        if self._leave is not None:
            self._connections.send(pb.ClientMessage(leave=self._leave))
        elif self._failed is not None:
            self._connections.send(pb.ClientMessage(failed=self._failed))
        return before

    # Conditions. Call them under _changed.

    def _is_answered(self) -> bool:
        return self._assigned is not None or self._aborted is not None or self._stream_ended or self._closed

    def _is_unheard(self) -> bool:
        """Return whether the controller says that the switch has not heard this rank."""
        waiting, assigned = self._waiting, self._assigned
        if waiting is None or assigned is None or waiting.what != pb.Waiting.HELLO:
            return False
        return waiting.you or assigned.worker in waiting.ranks  # earlier controllers do not say `you`, but name all

    def _is_leave_heard(self) -> bool:
        """Return whether the controller knows that this rank leaves: only then it sends which ranks have not left."""
        return self._is_over() or (self._waiting is not None and self._waiting.what == pb.Waiting.LEAVE)

    def _may_send(self) -> bool:
        return not (self._away or self._leaving or self._is_over())

    def _is_over(self) -> bool:
        return self._left or self._closed or self._aborted is not None

    def _awaited_text(self) -> str:
        if self._away:
            return (
                f"the connection to the controller at {self.address} broke, and this rank has not rejoined its job yet"
            )
        if self._waiting is None:
            return f"no message yet from the controller at {self.address}"
        return awaited_text(self._waiting)


__all__ = ["DEFAULT_CONTROLLER", "Assigned", "Session", "Tls"]
