# SPDX-License-Identifier: Apache-2.0
"""The base class of engines, which run a communicator's operations: one engine is in Python, the other in C."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from p4reduce.engine.continuations import Continuations
from p4reduce.errors import P4ReduceError, without_frames
from p4reduce.protocol import Operation, Stats

if TYPE_CHECKING:
    from p4reduce.engine.handle import Handle
    from p4reduce.transport import SharedTransport, Transport

log = logging.getLogger("p4reduce.engine")

REMIND_AFTER_S = 30.0

# Workers probe at least once a second, so a switch that can be reached is never silent for so long.
SILENCE_S = 3.0
LOOK_S = SILENCE_S / 4  # between two looks whether a half has had no answer for so long

OnEnd: TypeAlias = "Callable[[BaseException | None], None]"

Tell: TypeAlias = "Callable[[int, bool, int], None]"
"""Called by a paused engine with the number of operations that have begun, whether all of them have ended, and if so a
`first_seq`: the even number of a round that no slot has reached yet."""

# Seconds that `close` waits for an engine's thread, which only has to finish one turn of its loop, and then for
# continuations that are running.
CLOSE_TIMEOUT_S = 5.0

# Seconds that `leave` waits until operations no longer use their tensors. A failure ends them within milliseconds. It
# takes up to 30 s where other ranks write to a tensor and the kernel lacks the memory to revoke it.
LEAVE_TIMEOUT_S = 60.0


def in_spite_of_signals(task: Callable[[], object], seconds: float) -> None:
    """Run a task, and again while exceptions of signal handlers interrupt it, for up to `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            task()
            return
        except BaseException:
            log.debug("interrupted, and done again", exc_info=True)


def wrong_move(why: str) -> P4ReduceError:
    """Return the error of an engine whose slots cannot go on as the controller wants."""
    return P4ReduceError(f"the controller moved slots of the job in a way that cannot be: {why}")


def error_of(finish: Callable[[], None]) -> Exception | None:
    """Run `finish` after an operation, and return its error, which must not end the engine's thread."""
    try:
        finish()
    except Exception as error:
        return error
    return None


class Prepared:
    """An operation that an engine has prepared, to start it and others that differ only in their data."""

    name: str
    """The operation's name, for error messages."""


class Engine(ABC):
    """The base class of engines, which run a rank's side of the protocol in a thread of their own.

    An operation's time limit runs from when it is the oldest one in flight, so that a long queue is no failure. When an
    operation exceeds its limit, or anything else fails, no operation can start any more: the ranks no longer agree on
    which round is next. The thread goes on until `close`, since other ranks may need this rank's packets to fail, too.
    """

    _transport: Transport | SharedTransport
    _thread: threading.Thread
    """The thread that calls `on_end`."""

    def __init__(self, name: str) -> None:
        """Set up the fields that both engines have. `name`: the name of the threads."""
        self._pid = os.getpid()
        self.on_silence: Callable[[int], None] = lambda _: None
        """Called from the engine's thread with a half that has had no answer for `SILENCE_S`, and again each time that
        this long has passed: the controller can ask the switch which ranks it has counted there."""
        self.on_failure: Callable[[BaseException], None] = lambda _: None
        """Called with the failure, once or more, from any thread, so that the other ranks do not wait for this one."""
        self._refusal: BaseException | None = None
        self._ask_at = -math.inf
        self._reminded = (math.nan, 0.0)  # since when an operation was the oldest, and its age then
        self.continuations = Continuations(f"{name} continuations")
        """The pool that runs callbacks after an operation, so that the engine's thread runs no code of users."""
        self.handles: set[Handle[Any]] = set()
        """Handles of the collectives in flight."""

    @property
    @abstractmethod
    def failure(self) -> BaseException | None:
        """The error because of which the engine accepts no operations any more; None while it accepts them."""

    @property
    @abstractmethod
    def stats(self) -> Stats:
        """The worker's statistics so far."""

    @property
    @abstractmethod
    def seconds(self) -> float:
        """Time with at least one operation in flight."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether operations are in flight."""

    @abstractmethod
    def submit(self, operation: Operation, *, name: str, timeout: float, on_end: OnEnd) -> int | None:
        """Start `operation` and return its number for `wait`, or None if the engine has no such wait.

        name: the operation's name, for error messages. timeout: seconds.
        on_end: called once, from a thread of the engine's or one that is in `wait`, with None or the error that ended
            the operation; again if an interrupt has ended the call. It leaves callbacks of users to `continuations`.
        Raises the engine's failure if there is one.
        """

    def wait(self, number: int, timeout: float | None = None) -> None:
        """Wait for the end of the operation that `submit` gave this number, and call its `on_end`.

        Returns earlier after `timeout` seconds (None: no limit), or if another thread is about to call `on_end`.
        """
        raise NotImplementedError

    def settle(self) -> None:  # noqa: B027
        """Wait until no operation that `run_inline` has begun is in flight."""

    def prepare(self, operation: Operation, name: str) -> Prepared | None:  # noqa: ARG002
        """Prepare this operation, and others that differ only in their data, for `start` and `run_inline`.

        Returns None if the engine has neither.
        """
        return None

    def start(self, prepared: Prepared, held: object, *, timeout: float, on_end: OnEnd, address: int = 0) -> int | None:
        """Start a prepared operation, like `submit`. `held` and `address` are those of `run_inline`."""
        raise NotImplementedError

    def run_inline(
        self,
        prepared: Prepared,
        held: object,
        timeout: float,
        finish: Callable[[], None] | None = None,
        address: int = 0,
    ) -> BaseException | None:
        """Execute an operation in this thread, and return the error that ended it, None if it ended well.

        If a signal handler raises while the operation is in flight, the call ends with that exception, and the engine
        fails.

        held: the object that owns the memory of the values. timeout: seconds.
        finish: called once the sums are there, and again if an interrupt ended the call. An exception of it is the
            operation's error.
        address: address of the values; by default that of the prepared operation's values.
        """
        raise NotImplementedError

    def refuse(self, error: BaseException) -> None:
        """Let no operation start from now on, with this error. The others, and packets to other ranks, go on."""
        self._refusal = without_frames(error)

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """End all operations with `error`, and let none start. The first failure stays."""

    @abstractmethod
    def carries(self, held: object) -> bool:
        """Return whether an operation on the values of `held` has begun, and its caller does not yet know of its end.

        held: the owner of the values; it may be the operation itself.
        """

    def leave(self, name: str, by: BaseException | str) -> None:
        """Fail all operations, since an exception has interrupted the wait for the collective `name`.

        Returns when no operation uses its tensor any more, whatever signal handlers raise meanwhile. Does nothing in a
        forked process.

        by: the exception, or a description of it.
        """
        if not self.in_own_process():
            return
        what = by if isinstance(by, str) else type(by).__name__
        failure = P4ReduceError(
            f"{name} was interrupted while it was under way, by {what}: the ranks no longer agree on the next "
            "collective, and all need a new communicator"
        )
        deadline = time.monotonic() + LEAVE_TIMEOUT_S

        def end() -> None:
            self.fail(failure)
            if threading.current_thread() is not self._thread:  # that thread itself ends the operations
                self._await_ends(deadline)

        in_spite_of_signals(end, LEAVE_TIMEOUT_S)

    def _await_ends(self, deadline: float) -> None:
        """Wait until no operation uses its tensor, or the deadline has passed."""
        for handle in list(self.handles):
            if not handle.await_end(max(0.0, deadline - time.monotonic())):
                log.error("%s still uses its tensor, %g s after it has failed", handle.name, LEAVE_TIMEOUT_S)

    @abstractmethod
    def counted(self, half: int, seq: int, error: BaseException) -> None:
        """Fail with `error` if the switch has counted a rank in round `seq` of the half, and none can be there yet."""

    @abstractmethod
    def hold(self, operations: int, tell: Tell) -> None:
        """Pause after the job's first `operations` operations, so that the job's slots can change, and return at once.

        If more have begun already, the engine pauses after these. Operations that are submitted meanwhile wait, and
        their time limits run. Does nothing if operations take no slots of this rank.

        tell: called once the engine has paused, and whenever one of its arguments has changed, until another call or
            `go_on`, or shortly after that; from a thread of the engine's. It must not block.
        """

    @abstractmethod
    def go_on(self, slots: int, first_seq: int) -> None:
        """Resume after `hold`, with the first `slots` of the slots that the job was assigned (0: as before).

        Each slot begins with round `first_seq`. Does nothing if the engine is not paused; fails if the job cannot have
        these slots.
        """

    @abstractmethod
    def suspend(self, aggregator: int) -> list[int] | None:
        """Suspend the slots of one of several aggregators, which is lost, and return the round of each of them.

        Nothing is sent there until `move`. Returns None if the engine cannot do this: it has only one aggregator, sends
        no packets of its own, or has ended. The call waits for the engine's threads.
        """

    @abstractmethod
    def move(self, aggregator: int, via: int, jobs: Sequence[int], rounds: Sequence[int]) -> None:
        """Resume the slots of an aggregator at the switch of another one, `via`, each from its round.

        jobs: for each thread, number << 16 | generation of the job in packets of these slots. rounds: the least of all
        ranks'. Fails if that cannot be. The call waits for the engine's threads.
        """

    @abstractmethod
    def take_most_slots(self) -> int:
        """Return the most slots that an operation begun since the last call uses; 0 if none has begun."""

    @abstractmethod
    def close(self, error: BaseException) -> None:
        """End all operations with `error`, end the thread and close the transport. May be called more than once."""

    @abstractmethod
    def progress(self) -> str:
        """Return a description of what the operations wait for."""

    @abstractmethod
    def awaited(self) -> tuple[int, ...]:
        """Return the ranks that the operations wait for, as far as known."""

    def _forget_listeners(self) -> None:
        """Drop the listeners, which refer to the engine and would keep it alive. For `close`."""
        self.on_silence = lambda _: None
        self.on_failure = lambda _: None

    def _remind(self, name: str, since: float, now: float) -> float:
        """Log what the oldest operation waits for, first after `REMIND_AFTER_S`, then whenever it is twice as old.

        since: when it became the oldest. Returns the time of the next call, by the same clock.
        """
        known, age = self._reminded
        due = since + (2 * age if known == since else REMIND_AFTER_S)
        if now < due:
            return due
        self._reminded = (since, now - since)
        log.warning("%s has not ended for %.0f s: %s", name, now - since, self.progress())
        return now + (now - since)

    @abstractmethod
    def _unanswered(self) -> int | None:
        """Return the half that has had no answer for `SILENCE_S`, if there is one."""

    def _ask(self, now: float) -> float:
        """Look for a half without an answer. If there is one, report it, and try another path to the switch.

        Returns the time of the next call, by the same clock.
        """
        if now >= self._ask_at:
            half = self._unanswered()
            self._ask_at = now + (LOOK_S if half is None else SILENCE_S)
            if half is not None:
                self._transport.look_up_route()
                self.on_silence(half)
        return self._ask_at

    def _fail_thread(self, caught: Exception) -> None:
        """Fail all operations, since code in a thread of the engine's has raised an error."""
        failure = P4ReduceError(f"the communicator's thread failed: {type(caught).__name__}: {caught}")
        failure.__cause__ = caught
        self.fail(failure)

    def in_own_process(self) -> bool:
        """Return whether this is the process that made the engine; a process forked from it has none of its threads."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raise the engine's failure, or P4ReduceError in a process forked from the one that made the engine."""
        if os.getpid() != self._pid:
            self._check_process()
        failure = self.failure or self._refusal
        if failure is not None:
            raise without_frames(failure)

    def check_may_wait(self) -> None:
        """Raise P4ReduceError where a wait for an operation would never end.

        That is in a forked process, and in the engine's own thread. This thread runs callbacks at the interpreter's
        exit, when no other thread can start.
        """
        self._check_process()
        if threading.current_thread() is self._thread:
            raise P4ReduceError("the interpreter is exiting: a done callback can no longer wait for a collective")

    def _check_process(self) -> None:
        if not self.in_own_process():
            raise P4ReduceError(
                f"this communicator belongs to process {self._pid} and cannot be used in process {os.getpid()}, which "
                "was forked from it: make the communicator after forking, or use the 'spawn' start method"
            )
