# SPDX-License-Identifier: Apache-2.0
"""The handle of an asynchronous collective."""

from __future__ import annotations

import concurrent.futures
import functools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from p4reduce.engine.continuations import guarded
from p4reduce.engine.engine import LEAVE_TIMEOUT_S, in_spite_of_signals
from p4reduce.engine.waiting import ends_within
from p4reduce.errors import without_frames

if TYPE_CHECKING:
    from p4reduce.engine.engine import Engine

T = TypeVar("T")
Method = TypeVar("Method", bound=Callable[..., Any])


class Arrival(Protocol):
    """A copy of a result to a CUDA device."""

    def done(self) -> bool:
        """Return whether the result is on the device, for every stream."""

    def wait(self) -> None:
        """Make the current stream wait for the result."""


_threads = threading.local()
"""Its `call` is the innermost `BlockingCall` of the thread."""


class BlockingCall:
    """The context of a call that returns when the collectives that it began have ended.

    An exception may end the call earlier, such as one from a signal handler, and give the tensors back to the caller.
    Then the collectives in flight fail, and with them their communicator on all ranks. The exception propagates when no
    collective of that communicator uses a tensor any more.
    """

    def __init__(self) -> None:
        self._begun: weakref.WeakSet[Any] = weakref.WeakSet()

    @staticmethod
    def note(collective: Any) -> None:
        """Add a collective, which has a method `leave`, to the thread's innermost call, if there is one."""
        call = getattr(_threads, "call", None)
        if call is not None:
            call._begun.add(collective)

    def __enter__(self) -> None:
        self._outer = getattr(_threads, "call", None)
        _threads.call = self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            in_spite_of_signals(partial(self._leave, error), LEAVE_TIMEOUT_S)
        elif self._outer is not None:
            self._outer._begun |= self._begun
        _threads.call = self._outer

    def _leave(self, error: BaseException) -> None:
        for collective in list(self._begun):
            collective.leave(error)


class Handle(Generic[T]):
    """A collective in flight. Its tensor must not be touched before `done()` is true or `wait` has returned."""

    def __init__(
        self,
        tensor: T,
        name: str,
        engine: Engine,
        arrivals: Sequence[Arrival] = (),
        progress: Callable[[], str] | None = None,
    ) -> None:
        """Make the handle of a collective that is about to begin.

        name: the collective's name, for error messages. engine: the engine that runs it.
        arrivals: the copies of its result to CUDA devices.
        progress: describes what it waits for; by default the engine's.
        """
        self.number: int | None = None
        """The operation's number for the engine's `wait`; for the communicator."""
        self._tensor = tensor
        self._arrivals = arrivals
        self._name = name
        self._engine = engine
        self._progress = progress or engine.progress
        self._future: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._lock = threading.Lock()  # guards the two fields below
        self._callbacks: deque[Callable[[Handle[T]], object]] = deque()
        self._told = False  # whether the collective has ended and the queue is empty: new callbacks then run at once
        BlockingCall.note(self)

    @property
    def name(self) -> str:
        """The collective's name."""
        return self._name

    def done(self) -> bool:
        """Return whether the collective has ended. Then a result on a CUDA device is there for every stream."""
        return self._future.done() and all(arrival.done() for arrival in self._arrivals)

    def wait(self, timeout: float | None = None) -> None:
        """Wait until the collective has ended, and raise its error if it failed.

        A result may still be on its way to a CUDA device: the current stream waits for it.
        timeout: seconds; after them it raises TimeoutError, and the collective goes on and can be waited for again.
            None: no limit but the collective's own.
        """
        error = self._outcome(timeout)
        if error is not None:
            raise without_frames(error)
        self.wait_for_arrivals()

    def wait_for_arrivals(self) -> None:
        """Make the current stream wait for a result that is on its way to a CUDA device. For this library."""
        for arrival in self._arrivals:
            arrival.wait()

    def result(self, timeout: float | None = None) -> T:
        """Wait like `wait` and return the tensor, which holds the result."""
        self.wait(timeout)
        return self._tensor

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait like `wait` and return the collective's error, None if it went well."""
        error = self._outcome(timeout)
        return None if error is None else without_frames(error)

    def _outcome(self, timeout: float | None) -> BaseException | None:
        """Return the error like `exception`, but the stored one itself, which must not be raised."""
        if not self._future.done() and not self.ends_within(timeout):
            raise self.not_ended(timeout)
        return self._future.exception()

    def ends_within(self, timeout: float | None) -> bool:
        """Wait like `wait`, and return whether the collective has ended, well or not. For this library."""
        left = timeout
        if not self._future.done():
            self._engine.check_may_wait()
            if self.number is not None:
                deadline = None if timeout is None else time.monotonic() + timeout
                self._engine.wait(self.number, timeout)
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
        return self._future.done() or self.await_end(left)

    def await_end(self, timeout: float | None) -> bool:
        """Wait like `ends_within`, but leave the progress to another thread. For this library."""
        return ends_within(self._future, timeout)

    def not_ended(self, timeout: float | None) -> TimeoutError:
        """Return the error of a wait that ended after `timeout` seconds. For this library."""
        return TimeoutError(f"{self._name} has not ended after waiting {timeout:g} s: {self._progress()}")

    def leave(self, by: BaseException | str) -> None:
        """Fail the communicator if the collective is in flight, since an exception ends the call that waits for it.

        Returns when no collective of the communicator uses a tensor any more. For this library.
        """
        if self in self._engine.handles and not self._has_ended():
            self._engine.leave(self._name, by)

    def _has_ended(self) -> bool:
        if not self._future.done() and self.number is not None:
            self._engine.wait(self.number, 0.0)
        return self._future.done()

    def drop_result(self) -> None:
        """Drop the result, which no caller will ask for; `result` then returns None. For the communicator."""
        self._tensor = cast("T", None)

    def add_done_callback(self, callback: Callable[[Handle[T]], object]) -> None:
        """Call `callback(handle)` when the collective has ended: from another thread, or at once if it already has.

        A result may still be on its way to a CUDA device then: call `wait`, which returns at once, before using it.
        A handle's callbacks are called one after the other, in the order in which they were added. They may wait, also
        for other collectives, which go on meanwhile. Their exceptions are logged.
        """
        with self._lock:
            if not self._told:
                self._callbacks.append(callback)
                return
        callback(self)

    def complete(self, error: BaseException | None = None) -> None:
        """End the collective: the tensor holds the result, or the collective failed with `error`.

        For the communicator. May be called again after an interrupt.
        """
        if not self._future.done():
            if error is None:
                self._future.set_result(None)
            else:
                self._future.set_exception(without_frames(error))
        self._engine.handles.discard(self)
        with self._lock:
            self._told = not self._callbacks
        if not self._told:
            self._engine.continuations.run(self._tell)

    def _tell(self) -> None:
        while True:
            with self._lock:
                self._told = not self._callbacks
                if self._told:
                    return
                callback = self._callbacks.popleft()
            guarded(lambda: callback(self))  # noqa: B023 # it is called before the next

    def __repr__(self) -> str:
        return f"<Handle of {self._name}: {'ended' if self.done() else 'under way'}>"


def synchronous(declared: Method) -> Method:
    """Return a method that calls the one of the same name with `_async` added, and waits for its handle.

    `declared` gives the signature, which both have, and the docstring. The method returns the handle's result.
    """

    @functools.wraps(declared)
    def wait(self: object, *args: Any, **kwargs: Any) -> Any:
        with BlockingCall():
            return getattr(self, start)(*args, **kwargs).result()

    start = f"{declared.__name__}_async"
    return cast("Method", wait)
