# SPDX-License-Identifier: Apache-2.0
"""The engine in Python: one thread that gives a `Worker` its packets, its clock and its operations.

Other threads put operations into an inbox, orders (`hold`, `go_on`, `counted`) into a second queue, and wake the thread
with an eventfd. The worker and the transport belong to the thread alone.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from p4reduce.engine import engine as base
from p4reduce.engine.engine import CLOSE_TIMEOUT_S, Engine, OnEnd, Tell, wrong_move
from p4reduce.errors import CollectiveTimeout, OperationRefused, P4ReduceError, list_ranks, without_frames
from p4reduce.protocol import Operation, Stats, Worker, float_mode
from p4reduce.transport import StripedTransport, Transport
from p4reduce.transport.ecn import MarkedPayload

_CALL_SLICE_S = 0.1  # seconds between two looks whether the engine's thread has ended


@dataclass(slots=True)
class _Pending:
    operation: Operation
    name: str
    timeout: float
    on_end: OnEnd


@dataclass(slots=True)
class _Hold:
    """A pause: operations of the job from number `limit` on are held back."""

    limit: int
    tell: Tell
    since: float
    told: tuple[int, bool] | None = None


class PythonEngine(Engine):
    """The engine that runs a `Worker` over a `Transport` in one daemon thread, which owns both."""

    def __init__(
        self,
        transport: Transport,
        worker: Worker,
        *,
        switch: str,
        name: str = "p4reduce",
    ) -> None:
        """Start the thread.

        switch: the switch's address, for error messages if there is one switch. name: the threads' name.
        """
        super().__init__(name)
        self._seconds = 0.0
        self._transport: Transport = transport
        self._worker = worker
        self._switch = switch
        if isinstance(transport, StripedTransport):
            worker.set_aggregators(transport.aggregators)

        self._lock = threading.Lock()  # guards the six fields below, which other threads use
        self._inbox: deque[_Pending] = deque()
        self._orders: deque[Callable[[float], None]] = deque()
        self._most_slots = 0
        self._failure: BaseException | None = None
        self._closing = False
        self._wake_fd: int | None = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)

        self._pending: dict[int, _Pending] = {}  # by id of the operation, oldest first
        self._hold: _Hold | None = None
        self._held_back: deque[_Pending] = deque()  # of those pending, the last ones
        self._oldest_since = 0.0
        self._busy_since = 0.0
        self._heard_at = float("-inf")
        self._unsent: Sequence[bytes] = ()

        self._thread = threading.Thread(target=self._run, args=(self._wake_fd,), name=name, daemon=True)
        self._thread.start()

    # Any thread may call these.

    @property
    def failure(self) -> BaseException | None:
        return self._failure

    @property
    def stats(self) -> Stats:
        return self._worker.stats

    @property
    def seconds(self) -> float:
        return self._seconds + (max(0.0, time.monotonic() - self._busy_since) if self._pending else 0.0)

    @property
    def busy(self) -> bool:
        with self._lock:
            return bool(self._inbox or self._pending)

    def submit(self, operation: Operation, *, name: str, timeout: float, on_end: OnEnd) -> int | None:
        self._check_process()  # before the lock, which may be locked for ever in a forked process
        pending = _Pending(operation, name, timeout, on_end)
        with self._lock:
            self.check()
            self._inbox.append(pending)
            self._wake()
        return None

    def fail(self, error: BaseException) -> None:
        if self._end_with(error):
            self.on_failure(error)

    def carries(self, held: object) -> bool:
        with self._lock:
            return any(pending.operation is held for pending in [*self._inbox, *self._pending.values()])

    def _end_with(self, error: BaseException) -> bool:
        """Store the failure if it is the first, and return whether it is."""
        with self._lock:
            if self._failure is not None:
                return False
            self._failure = without_frames(error)
            self._wake()
            return True

    def counted(self, half: int, seq: int, error: BaseException) -> None:
        self._order(lambda _: self.fail(error) if self._worker.is_impossible(half, seq) else None)

    def hold(self, operations: int, tell: Tell) -> None:
        self._order(partial(self._begin_to_hold, operations, tell))

    def go_on(self, slots: int, first_seq: int) -> None:
        self._order(partial(self._go_on, slots, first_seq))

    def suspend(self, aggregator: int) -> list[int] | None:
        transport, rounds = self._transport, list[int]()
        if not isinstance(transport, StripedTransport) or aggregator >= transport.aggregators:
            return None
        done = self._call(lambda _: rounds.extend(self._worker.suspend(aggregator)))
        return rounds if done else None

    def move(self, aggregator: int, via: int, jobs: Sequence[int], rounds: Sequence[int]) -> None:
        self._call(partial(self._move, aggregator, via, jobs, rounds))

    def _call(self, order: Callable[[float], None]) -> bool:
        """Let the engine's thread execute an order, and wait for that. Return False if the engine has ended."""
        done = threading.Event()

        def execute(now: float) -> None:
            order(now)
            done.set()

        self._order(execute)
        while not done.wait(_CALL_SLICE_S):
            if not self._thread.is_alive():
                return False
        return True

    def _order(self, order: Callable[[float], None]) -> None:
        with self._lock:
            self._orders.append(order)
            self._wake()

    def take_most_slots(self) -> int:
        with self._lock:
            most, self._most_slots = self._most_slots, 0
        return most

    def close(self, error: BaseException) -> None:
        if not self.in_own_process():
            return  # this process has neither the thread nor a right to wake its parent's
        self._end_with(error)
        with self._lock:
            self._closing = True
            self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_TIMEOUT_S)
        self.continuations.close(CLOSE_TIMEOUT_S)
        self._forget_listeners()

    def progress(self) -> str:
        return self._describe_wait(time.monotonic())

    def awaited(self) -> tuple[int, ...]:
        return self._worker.awaited()

    def _wake(self) -> None:
        if self._wake_fd is not None:
            os.eventfd_write(self._wake_fd, 1)

    # Only the engine's thread calls these.

    def _run(self, wake_fd: int) -> None:
        float_mode.set_default()
        try:
            with select.epoll() as poll:
                poll.register(wake_fd, select.EPOLLIN)
                poll.register(self._transport, select.EPOLLIN)
                while not self._closing:
                    self._turn(poll, wake_fd)
        except P4ReduceError as error:
            self.fail(error)
        except Exception as error:
            self._fail_thread(error)
        finally:
            self._end(wake_fd)

    def _turn(self, poll: select.epoll, wake_fd: int) -> None:
        events = poll.poll(self._patience())
        now = time.monotonic()
        for descriptor, _ in events:
            if descriptor == wake_fd:
                os.eventfd_read(wake_fd)
                self._take_orders(now)
                self._take_operations(now)
            else:
                self._receive(now)
        due = self._worker.next_deadline()
        if due is not None and due <= now:
            self._worker.tick(now)
        self._check_time_limit(now)
        if self._worker.failure is not None:
            self.fail(self._worker.failure)
        elif self._failure is not None:
            self._worker.fail(self._failure)
        if self._hold is not None:
            self._look_after_hold(now)
        self._send(poll)

    def _patience(self) -> float | None:
        """Return the seconds until the next deadline, None if there is none."""
        deadlines = [self._worker.next_deadline()]
        oldest = self._oldest()
        if oldest is not None:
            deadlines.append(self._oldest_since + oldest.timeout)
            deadlines.append(self._remind(oldest.name, self._oldest_since, time.monotonic()))
            deadlines.append(self._ask(time.monotonic()))
        times = [deadline for deadline in deadlines if deadline is not None]
        return max(0.0, min(times) - time.monotonic()) if times else None

    def _unanswered(self) -> int | None:
        return self._worker.unanswered(time.monotonic(), base.SILENCE_S)

    def _oldest(self) -> _Pending | None:
        return next(iter(self._pending.values()), None)

    def _take_operations(self, now: float) -> None:
        while True:
            with self._lock:
                if not self._inbox:
                    return
                pending = self._inbox.popleft()
                if not self._pending:
                    self._oldest_since = self._busy_since = now
                self._pending[id(pending.operation)] = pending
            if self._hold is not None and self._worker.submitted >= self._hold.limit:
                self._held_back.append(pending)
            else:
                self._begin(pending, now)

    def _begin(self, pending: _Pending, now: float) -> None:
        pending.operation.on_done = self._ended
        try:
            slots = self._worker.submit(pending.operation, now)
        except ValueError as error:  # on all ranks alike: no failure of the job
            del self._pending[id(pending.operation)]
            pending.on_end(OperationRefused(str(error)))
        else:
            with self._lock:
                self._most_slots = max(self._most_slots, slots)

    def _ended(self, operation: Operation) -> None:
        """End an operation, which has its result or an error that fails the worker, too. The worker calls this."""
        if operation.error is not None:
            self.fail(operation.error)  # before its caller learns of the error, and may call again at once
        pending = self._pending[id(operation)]
        was_oldest = self._oldest() is pending
        del self._pending[id(operation)]
        now = time.monotonic()
        if was_oldest:
            self._oldest_since = now
        if not self._pending:
            self._seconds += now - self._busy_since
        pending.on_end(operation.error)

    # Pauses.

    def _take_orders(self, now: float) -> None:
        while True:
            with self._lock:
                if not self._orders:
                    return
                order = self._orders.popleft()
            order(now)

    def _begin_to_hold(self, operations: int, tell: Tell, now: float) -> None:
        since = now if self._hold is None else self._hold.since
        self._hold = _Hold(max(operations, self._worker.submitted), tell, since)
        while self._held_back and self._worker.submitted < self._hold.limit:
            self._begin(self._held_back.popleft(), now)

    def _go_on(self, slots: int, first_seq: int, now: float) -> None:
        if self._hold is None:
            return
        try:
            if slots:
                self._worker.begin_anew(slots, first_seq)
        except ValueError as error:
            failure = P4ReduceError(f"the controller sent slots that the job cannot have: {error}")
            self.fail(failure)
            self._worker.fail(failure)
        self._end_hold(now)

    def _move(self, aggregator: int, via: int, jobs: Sequence[int], rounds: Sequence[int], now: float) -> None:
        transport = self._transport
        if not isinstance(transport, StripedTransport):
            return
        member = self._worker.membership
        try:
            if len(jobs) != 1:
                raise ValueError(f"jobs are {len(jobs)}: accepted are 1, one for each thread")
            transport.redirect(aggregator, via, jobs[0], member.job << 16 | member.generation)
            self._worker.rewind(aggregator, rounds, now)
        except ValueError as error:
            failure = wrong_move(str(error))
            self.fail(failure)
            self._worker.fail(failure)

    def _end_hold(self, now: float) -> None:
        self._hold = None
        while self._held_back:
            self._begin(self._held_back.popleft(), now)

    def _look_after_hold(self, now: float) -> None:
        hold, state = self._hold, (self._worker.submitted, self._worker.idle)
        assert hold is not None
        if self._failure is not None:
            self._worker.fail(self._failure)
            self._end_hold(now)  # so that operations held back fail, too
        elif state != hold.told:
            hold.told = state
            hold.tell(*state, self._worker.next_first_seq() if self._worker.idle else 0)

    def _receive(self, now: float) -> None:
        for payload in self._transport.receive():
            self._heard_at = now
            self._worker.receive(payload, now, isinstance(payload, MarkedPayload))

    def _send(self, poll: select.epoll) -> None:
        payloads = self._worker.take_packets()
        if self._unsent:
            payloads = [*self._unsent, *payloads]
        if not payloads:
            return
        was_full = bool(self._unsent)
        self._unsent = payloads[self._transport.send(payloads) :]
        if bool(self._unsent) != was_full:
            poll.modify(self._transport, select.EPOLLIN | (select.EPOLLOUT if self._unsent else 0))

    def _check_time_limit(self, now: float) -> None:
        oldest = self._oldest()
        if oldest is not None and now - self._oldest_since >= oldest.timeout:
            message = f"{oldest.name} did not end within {oldest.timeout:g} s: {self._describe_wait(now)}"
            self.fail(CollectiveTimeout(message, awaited=self._worker.awaited()))

    def _describe_wait(self, now: float) -> str:
        hold = self._hold
        if hold is not None and self._held_back and self._worker.idle:
            return f"the controller has paused operations for {now - hold.since:.1f} s to change the job's slots"
        switch, heard_at = self._transport.quietest() or (self._switch, self._heard_at)
        silence = now - max(heard_at, self._oldest_since)
        if heard_at < self._oldest_since or silence > base.SILENCE_S:
            trouble = self._transport.trouble
            hint = f" ({trouble.strerror})" if trouble is not None else ""
            return (
                f"the switch at {switch} has not answered for {silence:.1f} s{hint}. Check that it runs, that this "
                f"host ({self._transport.local_address[0]}) can reach it, that it still has the job, and that no rank "
                "is ahead of the others"
            )
        awaited = self._worker.awaited()
        ranks = list_ranks(awaited) if awaited else "results"
        return f"waiting for {ranks}; last answer from the switch at {switch}: {silence:.1f} s ago"

    def _end(self, wake_fd: int) -> None:
        self._transport.close()
        with self._lock:
            self._wake_fd = None
            os.close(wake_fd)
        # The failure is set, so no thread adds operations any more.
        assert self._failure is not None
        for pending in [*self._pending.values(), *self._inbox]:
            pending.on_end(self._failure)
        self._pending.clear()
        self._inbox.clear()
