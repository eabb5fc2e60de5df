# SPDX-License-Identifier: Apache-2.0
"""What carries a communicator's operations: the engine in Python, or the one in C."""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from p4reduce.engine.continuations import Continuations
from p4reduce.errors import P4ReduceError, without_frames
from p4reduce.protocol import Operation, Stats

if TYPE_CHECKING:
    from p4reduce.engine.handle import Handle

log = logging.getLogger("p4reduce.carrier")

REMIND_AFTER_S = 30.0

# Workers ask at least once a second, so a switch that is there is never silent for so long.
SILENCE_S = 3.0

OnEnd: TypeAlias = "Callable[[BaseException | None], None]"

Tell: TypeAlias = "Callable[[int, bool, int], None]"
"""Told of an engine that holds: operations begun, whether all of them have ended, and if so a `first_seq`: even, and of
a round that no slot has come to yet."""

# How long `close` waits for an engine's thread, which only has to finish one turn of its loop, and then for
# continuations that are under way.
CLOSE_TIMEOUT_S = 5.0

# How long `leave` waits for tensors that operations use. A failure ends them within milliseconds; within 30 s where
# others write to a tensor, and the kernel has no memory to take it back.
LEAVE_TIMEOUT_S = 60.0


def in_spite_of_signals(task: Callable[[], object], seconds: float) -> None:
    """Run a task again, for so many seconds at most, until no exception of a signal's handler interrupts it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            task()
            return
        except BaseException:
            log.debug("interrupted, and done again", exc_info=True)


def error_of(finish: Callable[[], None]) -> Exception | None:
    """Run what follows an operation, and return its error, for that must not end the engine's thread."""
    try:
        finish()
    except Exception as error:
        return error
    return None


class Prepared:
    """What an engine has made of an operation, for others like it."""

    name: str
    """Of the operation, for error messages."""


class Engine(ABC):
    """Runs a rank's side of the protocol in a thread of its own.

    An operation's time limit runs from when it is the oldest one under way, so that a long queue of them is no failure.
    When one exceeds it, or anything else fails, no operation can start any more: the ranks no longer agree on which
    round is next. The thread goes on until `close`, for other ranks may still need this one's packets to fail as well.
    """

    _thread: threading.Thread
    """Where `on_end` is called."""

    def __init__(self, name: str) -> None:
        """`name`: of its threads."""
        self._pid = os.getpid()
        self.on_silence: Callable[[int], None] = lambda _: None
        """Told of a half that has had no answer for `SILENCE_S`, as often as that while it is so, from the engine's
        thread: the controller can ask the switch who is counted there."""
        self.on_failure: Callable[[BaseException], None] = lambda _: None
        """Told of the failure, once or more: the other ranks are not to wait for this one. From any thread."""
        self._ask_at = -math.inf
        self._reminded = (math.nan, 0.0)  # since when an operation was the oldest, and its age then
        self.continuations = Continuations(f"{name} continuations")
        """Where what follows an operation's end runs, so that the engine's thread runs no code of users."""
        self.handles: set[Handle[Any]] = set()
        """Of the collectives under way."""

    @property
    @abstractmethod
    def failure(self) -> BaseException | None:
        """Why no operations are taken any more; None while they are."""

    @property
    @abstractmethod
    def stats(self) -> Stats:
        """What was done so far."""

    @property
    @abstractmethod
    def seconds(self) -> float:
        """Time with at least one operation under way."""

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether operations are under way."""

    @abstractmethod
    def submit(self, operation: Operation, *, name: str, timeout: float, on_end: OnEnd) -> int | None:
        """Start `operation`. Returns what `wait` takes; None where there is no such wait.

        name: of the operation, for error messages. timeout: seconds.
        on_end: called once, from a thread of the engine's or one that is in `wait`, with None or the error that ended
            the operation; again where an interrupt has ended the call. What it does for users it leaves to
            `continuations`.
        Raises the engine's failure if there is one.
        """

    def wait(self, number: int, timeout: float | None = None) -> None:
        """Wait for the end of the operation with this number from `submit`, and call its `on_end`. Returns earlier
        after `timeout` seconds (None: none), and where another thread is about to call it."""
        raise NotImplementedError

    def settle(self) -> None:  # noqa: B027
        """Wait until no operation is under way that `run_inline` has begun."""

    def prepare(self, operation: Operation, name: str) -> Prepared | None:  # noqa: ARG002
        """What `start` and `run_inline` take, for this operation and those that are like it but for their data; None
        where they are not to be called."""
        return None

    def start(self, prepared: Prepared, held: object, *, timeout: float, on_end: OnEnd, address: int = 0) -> int | None:
        """As `submit`, of an operation that is prepared. held, address: as of `run_inline`."""
        raise NotImplementedError

    def run_inline(
        self,
        prepared: Prepared,
        held: object,
        timeout: float,
        finish: Callable[[], None] | None = None,
        address: int = 0,
    ) -> BaseException | None:
        """Execute an operation in this thread, and return the error that ended it, None if it ended well. An
        exception of a signal's handler ends the call, and the engine with it where the operation is under way.

        held: owns the memory of the values. timeout: seconds.
        finish: called once the sums are there; called again where an interrupt ended a call. What it raises is the
            operation's error.
        address: of the values; by default those of the operation that was prepared.
        """
        raise NotImplementedError

    @abstractmethod
    def fail(self, error: BaseException) -> None:
        """End all operations with `error`, and let none start. The first failure stays."""

    @abstractmethod
    def carries(self, held: object) -> bool:
        """Whether an operation has begun whose values belong to `held` (which may be the operation itself), and its
        caller has not been told of its end."""

    def leave(self, name: str, by: BaseException | str) -> None:
        """End all operations, since an exception leaves a call that waits for the collective `name`. Returns when none
        of them uses its tensor any more, whatever signals' handlers raise meanwhile. Does nothing in a forked process.

        by: the exception, or what is known of it."""
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
            if threading.current_thread() is not self._thread:  # which alone tells of ends
                self._await_ends(deadline)

        in_spite_of_signals(end, LEAVE_TIMEOUT_S)

    def _await_ends(self, deadline: float) -> None:
        """Wait until no operation uses its tensor."""
        for handle in list(self.handles):
            if not handle.await_end(max(0.0, deadline - time.monotonic())):
                log.error("%s still uses its tensor, %g s after it has failed", handle.name, LEAVE_TIMEOUT_S)

    @abstractmethod
    def counted(self, half: int, seq: int, error: BaseException) -> None:
        """The switch has counted a rank in that round of the half. Fails with `error` if none can be there yet."""

    @abstractmethod
    def hold(self, operations: int, tell: Tell) -> None:
        """Begins so many of the job's operations, or those that have begun, if they are more, and then none, so that
        the job's slots can change. What is submitted meanwhile waits, and its time limit runs.

        tell: called once the engine holds, and whenever what it says has changed, until another call or `go_on`, or
            soon after; from a thread of the engine's. It must not block.
        Returns at once, and does nothing where operations take no slots of this rank's.
        """

    @abstractmethod
    def go_on(self, slots: int, first_seq: int) -> None:
        """End `hold`: goes on with the first `slots` of the slots that the job was assigned, each of which begins with
        round `first_seq`; 0: as before. Does nothing where it does not hold; fails where that cannot be."""

    @abstractmethod
    def take_most_slots(self) -> int:
        """Return the most slots that one of the operations begun since the last call uses; 0 where there are none."""

    @abstractmethod
    def close(self, error: BaseException) -> None:
        """End all operations with `error` and the thread, and close the transport. May be called more than once."""

    @abstractmethod
    def progress(self) -> str:
        """What the operations wait for, in words."""

    @abstractmethod
    def awaited(self) -> tuple[int, ...]:
        """Return the ranks that they wait for, as far as known."""

    def _forget_listeners(self) -> None:
        """For `close`: who is told of silence and of a failure refers to the engine, and would keep it alive."""
        self.on_silence = lambda _: None
        self.on_failure = lambda _: None

    def _remind(self, name: str, since: float, now: float) -> float:
        """Log what the oldest operation waits for, first after `REMIND_AFTER_S`, then whenever it is twice as old.

        since: when it became the oldest. Returns when to call again, by the same clock.
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
        """Tells of a half that has no answer. Returns when to call again, by the same clock."""
        if now >= self._ask_at:
            self._ask_at = now + SILENCE_S
            half = self._unanswered()
            if half is not None:
                self.on_silence(half)
        return self._ask_at

    def _fail_thread(self, caught: Exception) -> None:
        """End all operations, since code in a thread of the engine's has raised an error."""
        failure = P4ReduceError(f"the communicator's thread failed: {type(caught).__name__}: {caught}")
        failure.__cause__ = caught
        self.fail(failure)

    def in_own_process(self) -> bool:
        """Whether this is the process that made the engine, not one forked from it: threads do not survive that."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raise the engine's failure, or P4ReduceError in a process forked from the one that made the engine."""
        if os.getpid() != self._pid:
            self._check_process()
        failure = self.failure
        if failure is not None:
            raise without_frames(failure)

    def check_may_wait(self) -> None:
        """Raise P4ReduceError where waiting for an operation would never end: in a forked process, and in the
        engine's own thread, which runs callbacks where no other can be started: at the interpreter's exit."""
        self._check_process()
        if threading.current_thread() is self._thread:
            raise P4ReduceError("the interpreter is exiting: a done callback can no longer wait for a collective")

    def _check_process(self) -> None:
        if not self.in_own_process():
            raise P4ReduceError(
                f"this communicator belongs to process {self._pid} and cannot be used in process {os.getpid()}, which "
                "was forked from it: make the communicator after forking, or use the 'spawn' start method"
            )
