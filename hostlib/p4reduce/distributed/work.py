# SPDX-License-Identifier: Apache-2.0
"""The works of the backend, which callers of asynchronous collectives get."""

from __future__ import annotations

import concurrent.futures
import contextlib
import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import Work
from torch.distributed import DistBackendError

from p4reduce.api.futures import future_of
from p4reduce.api.profiles import span
from p4reduce.distributed.compiled import called_by_cpp
from p4reduce.distributed.traffic import bytes_of
from p4reduce.engine.continuations import Continuations
from p4reduce.engine.engine import LEAVE_TIMEOUT_S, in_spite_of_signals
from p4reduce.engine.handle import BlockingCall, Handle
from p4reduce.engine.waiting import ends_within
from p4reduce.errors import JoinError, P4ReduceError, without_frames

NO_TIMEOUT = timedelta(0)

Tensors = list[torch.Tensor]


class Unwaited:
    """A group's works that Python has dropped without waiting for them.

    C++ may still refer to such a work, as DDP's reducer does with the one of
    `DDP.join(divide_by_initial_world_size=False)`. That reference does not keep the Python half of the work alive,
    without which its `wait` never returns. So the latest of them are kept, with their results if these are small.
    """

    MOST_KEPT = 64
    LARGEST_BYTES = 4096

    def __init__(self) -> None:
        self._works: deque[PythonWork] = deque(maxlen=self.MOST_KEPT)

    def add(self, work: PythonWork) -> None:
        self._works.append(work)

    def clear(self) -> None:
        self._works.clear()


@called_by_cpp
class BaseWork(Work):
    """The base class of works here; subclasses define `wait`, `is_completed` and `exception`."""

    _subject = "the collective has"

    def __init__(self, outputs: Tensors) -> None:
        """Make a work in flight. `outputs`: the tensors that hold the results in the end."""
        super().__init__()
        self._outputs = outputs

    def is_success(self) -> bool:
        """Return whether it has ended well."""
        return self.is_completed() and self.exception() is None

    def result(self) -> Tensors:
        """Return the tensors that hold the results. Raises RuntimeError until it has ended well."""
        if not self.is_success():
            raise RuntimeError(f"{self._subject} not completed successfully: call wait() first")
        return self._outputs

    def synchronize(self) -> None:
        """Wait like `wait`."""
        self.wait()

    def _settle(self) -> Tensors:
        self.wait()
        return self._outputs


class PythonWork(BaseWork):
    """A `torch.distributed.Work` that stays alive if only C++ may still refer to it, see `Unwaited`."""

    def __init__(self, outputs: Tensors) -> None:
        super().__init__(outputs)
        self._unwaited: Callable[[], Unwaited | None] = lambda: None
        self._is_waited_for = False

    def kept_by(self, unwaited: Unwaited) -> PythonWork:
        """Hand this work to `unwaited` when Python drops it, and return this work.

        The reference is weak: the group's `Unwaited` has works, and a cycle would keep all of them alive.
        """
        self._unwaited = weakref.ref(unwaited)
        return self

    def __del__(self) -> None:
        unwaited = None if self._is_waited_for else self._unwaited()
        if unwaited is not None:
            if sum(map(bytes_of, self._outputs)) > Unwaited.LARGEST_BYTES:
                self.drop_outputs()
            unwaited.add(self)

    def drop_outputs(self) -> None:
        """Drop the results. A caller can still wait for the work, but gets no results."""
        self._outputs = []


@called_by_cpp
class CompletedWork(PythonWork):
    """A collective that has ended well."""

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:  # noqa: ARG002
        """Return at once."""
        self._is_waited_for = True
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def exception(self) -> None:
        """Return None, since it has ended well."""

    def get_future(self) -> Any:
        """Return a torch.futures.Future of `result()`."""
        self._is_waited_for = True
        future: torch.futures.Future[Tensors] = torch.futures.Future()
        future.set_result(self._outputs)
        return future


@called_by_cpp
class SwitchWork(PythonWork):
    """A collective in flight on the switch, as a `torch.distributed.Work`."""

    def __init__(self, handle: Handle[Any], outputs: Tensors, name: str = "collective") -> None:
        """Make the work of a handle. `name`: the collective's name in profiles."""
        super().__init__(outputs)
        self._name = name
        self._handle = handle

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait until the results are there; raise DistBackendError if they will not come, or not within `timeout`.

        Results may still be on their way to a CUDA device: the current stream waits for them. If another exception
        ends the wait, such as one from a signal handler, the collective fails.
        """
        limit = timeout.total_seconds() if timeout > NO_TIMEOUT else None
        self._is_waited_for = True
        try:
            with span(f"{self._name} wait"):
                ended = self._handle.ends_within(limit)
        except BaseException as error:
            self.leave(error)
            if isinstance(error, P4ReduceError):
                raise as_backend_error(error) from error
            raise
        failure = self._handle.exception() if ended else self._handle.not_ended(limit)
        if failure is not None:
            raise as_backend_error(failure) from failure
        self._handle.wait_for_arrivals()
        return True

    def drop_outputs(self) -> None:
        super().drop_outputs()
        self._handle.drop_result()

    def leave(self, error: BaseException) -> None:
        """Fail the collective if it is in flight, like `Handle.leave`."""
        self._handle.leave(error)

    def is_completed(self) -> bool:
        """Return whether it has ended, well or not."""
        return self._handle.done()

    def exception(self) -> DistBackendError | None:
        """Return the collective's error, None if it has none."""
        error = self._handle.exception() if self.is_completed() else None
        return None if error is None else as_backend_error(error)

    def get_future(self) -> Any:
        """Return a torch.futures.Future of `result()`, or of the error. Callbacks may wait for other collectives."""
        self._is_waited_for = True
        return future_of(self._handle, self._settle, self._outputs)


@called_by_cpp
class QueuedWork(PythonWork):
    """A queued collective: when its turn comes, it begins as another work, to which this one delegates."""

    def __init__(
        self, name: str, outputs: Tensors, threads: Continuations, abort: Callable[[P4ReduceError], None]
    ) -> None:
        """Make the work of a collective that has not begun.

        name: the collective's name in errors. threads: runs the callbacks of its future. abort: ends the group.
        """
        super().__init__(outputs)
        self._name = name
        self._threads = threads
        self._abort = abort
        self._left = False
        self._pid = os.getpid()
        self._begun: concurrent.futures.Future[Any] = concurrent.futures.Future()
        BlockingCall.note(self)

    def begin(self, start: Callable[[], Any]) -> None:
        """Begin the collective: `start` returns its work. For the group's queue; raises nothing."""
        try:
            if self._left:
                raise as_backend_error(self._failure())
            self._begun.set_result(start())
        except BaseException as error:
            self._begun.set_exception(without_frames(error))

    def drop_outputs(self) -> None:
        super().drop_outputs()

        def drop(begun: concurrent.futures.Future[Any]) -> None:
            if begun.exception() is None:
                _drop([begun.result()])

        self._begun.add_done_callback(drop)

    def _failure(self) -> P4ReduceError:
        return P4ReduceError(f"{self._name} was abandoned before it began: all ranks need a new group")

    def leave(self, error: BaseException) -> None:
        """Fail the collective, like `Handle.leave`; if it has not begun, it never does, and the group ends."""
        if os.getpid() != self._pid:
            return
        self._left = True

        def end() -> None:
            if not self._begun.done():
                self._abort(self._failure())
            if ends_within(self._begun, LEAVE_TIMEOUT_S) and self._begun.exception() is None:
                leave_all([self._begun.result()], error)

        in_spite_of_signals(end, LEAVE_TIMEOUT_S)

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait until the collective has begun and ended, like the wait of a `SwitchWork` or of Gloo."""
        self._is_waited_for = True
        if timeout <= NO_TIMEOUT:
            return bool(self._work(None).wait())
        deadline = time.monotonic() + timeout.total_seconds()
        work = self._work(timeout.total_seconds())
        left = max(0.001, deadline - time.monotonic())
        return bool(work.wait(timedelta(seconds=left)))

    def _work(self, timeout: float | None) -> Any:
        """Wait until the collective has begun, and return its work. Raises the error if it cannot begin."""
        if not self._begun.done() and os.getpid() != self._pid:
            raise as_backend_error(
                P4ReduceError(f"{self._name} belongs to another process, from which this one was forked")
            )
        try:
            has_begun = ends_within(self._begun, timeout)
        except BaseException as error:
            self.leave(error)
            raise
        if not has_begun:
            why = "the ranks are still joining, or another thread's call has not ended"
            said = f"{self._name} has not begun after {timeout:g} s: {why}"
            raise as_backend_error(TimeoutError(said))
        failure = self._begun.exception()
        if failure is not None:
            raise without_frames(failure)
        return self._begun.result()

    def is_completed(self) -> bool:
        """Return whether it has ended, well or not."""
        return self._begun.done() and (self._begun.exception() is not None or self._begun.result().is_completed())

    def exception(self) -> Any:
        """Return the collective's error, None if it has none."""
        if not self.is_completed():
            return None
        error = self._begun.exception()
        return self._begun.result().exception() if error is None else without_frames(error)

    def get_future(self) -> Any:
        """Return a torch.futures.Future of `result()`, or of the error. Callbacks may wait for other collectives."""
        self._is_waited_for = True
        devices: Any = list({output.device for output in self._outputs if output.is_cuda})
        trigger: torch.futures.Future[None] = torch.futures.Future(devices=devices)
        future = trigger.then(lambda _: self._settle())
        self._threads.run(lambda: self._follow(trigger))
        return future

    def _follow(self, trigger: torch.futures.Future[None]) -> None:
        with contextlib.suppress(Exception):  # the future gets the error from `_settle`
            self.wait()
        trigger.set_result(None)


@called_by_cpp
class Works(PythonWork):
    """A work that consists of several works."""

    _subject = "the collectives have"

    def __init__(self, works: Sequence[Any], outputs: Tensors) -> None:
        super().__init__(outputs)
        self._works = works

    def drop_outputs(self) -> None:
        super().drop_outputs()
        _drop(self._works)

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait until all have ended, each within `timeout`, and raise the first one's error."""
        self._is_waited_for = True
        first: Exception | None = None
        try:
            for work in self._works:
                try:
                    work.wait(timeout)
                except Exception as error:
                    first = first or error
        except BaseException as error:
            self.leave(error)
            raise
        try:
            if first is not None:
                raise first
        finally:
            del first  # its traceback refers to this frame
        return True

    def leave(self, error: BaseException) -> None:
        """Fail the works that are in flight: see `leave_all`."""
        leave_all(self._works, error)

    def is_completed(self) -> bool:
        """Return whether all have ended, well or not."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Return whether all have ended well."""
        return all(work.is_completed() and work.is_success() for work in self._works)

    def exception(self) -> Any:
        """Return the error of the first work that has one; None if none has."""
        return next((error for work in self._works if (error := work.exception()) is not None), None)

    def get_future(self) -> Any:
        """Return a torch.futures.Future of `result()`, or of the first error."""
        self._is_waited_for = True

        def settle(ended: torch.futures.Future[list[torch.futures.Future[Tensors]]]) -> Tensors:
            for future in ended.value():
                future.wait()
            return self._outputs

        return torch.futures.collect_all([work.get_future() for work in self._works]).then(settle)


def leave_all(works: Sequence[Any], error: BaseException) -> None:
    """Fail the works, since `error` ends the call that waits for them.

    Works of the switch that are in flight fail. Gloo's works cannot, so this waits until they have ended.
    """
    for work in works:
        if hasattr(work, "leave"):
            work.leave(error)
        else:
            with contextlib.suppress(Exception):
                work.wait()


def _drop(works: Sequence[Any]) -> None:
    for work in works:
        if isinstance(work, PythonWork):
            work.drop_outputs()


def as_backend_error(error: BaseException) -> DistBackendError:
    """Return the error as torch.distributed's error of a backend; its cause is the original error."""
    timed_out = isinstance(error, TimeoutError) or (isinstance(error, JoinError) and error.timed_out)
    word = "the timeout has passed: " if timed_out else ""  # programs search for this text
    told = DistBackendError(f"{type(error).__name__}: {word}{error}")
    told.__cause__ = error
    return told
