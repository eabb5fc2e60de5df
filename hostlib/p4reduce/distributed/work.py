# SPDX-License-Identifier: Apache-2.0
"""What an asynchronous collective of the backend gives to its caller."""

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
    """A group's works that Python has let go of without waiting for them.

    C++ may still have such a work, as DDP's reducer has the one of `DDP.join(divide_by_initial_world_size=False)`. What
    C++ has is not enough to keep the Python half of a work alive, without which its `wait` never returns. So the latest
    of them stay, with what is small of their results.
    """

    MOST = 64
    LARGEST_BYTES = 4096

    def __init__(self) -> None:
        self._works: deque[PythonWork] = deque(maxlen=self.MOST)

    def add(self, work: PythonWork) -> None:
        self._works.append(work)

    def clear(self) -> None:
        self._works.clear()


@called_by_cpp
class BaseWork(Work):
    """What the works of this package have in common, of which each has `wait`, `is_completed` and `exception`."""

    _subject = "the collective has"

    def __init__(self, outputs: Tensors) -> None:
        """outputs: hold the results in the end."""
        super().__init__()
        self._outputs = outputs

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self.is_completed() and self.exception() is None

    def result(self) -> Tensors:
        """Return the tensors that hold the results. Raises RuntimeError while they do not."""
        if not self.is_success():
            raise RuntimeError(f"{self._subject} not completed successfully: call wait() first")
        return self._outputs

    def synchronize(self) -> None:
        """As `wait`."""
        self.wait()

    def _settle(self) -> Tensors:
        self.wait()
        return self._outputs


class PythonWork(BaseWork):
    """A `torch.distributed.Work` that stays while C++ may be the last to have it, see `Unwaited`."""

    def __init__(self, outputs: Tensors) -> None:
        super().__init__(outputs)
        self._unwaited: Callable[[], Unwaited | None] = lambda: None
        self._is_waited_for = False

    def kept_by(self, unwaited: Unwaited) -> PythonWork:
        """Return itself. A reference that does not keep the group's: which has works, and would never be gone."""
        self._unwaited = weakref.ref(unwaited)
        return self

    def __del__(self) -> None:
        unwaited = None if self._is_waited_for else self._unwaited()
        if unwaited is not None:
            if sum(map(bytes_of, self._outputs)) > Unwaited.LARGEST_BYTES:
                self.drop_outputs()
            unwaited.add(self)

    def drop_outputs(self) -> None:
        """Keep its results no longer: it can be waited for, but gives none."""
        self._outputs = []


@called_by_cpp
class CompletedWork(PythonWork):
    """A collective that has ended well."""

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:  # noqa: ARG002
        """Return at once."""
        self._is_waited_for = True
        return True

    def is_completed(self) -> bool:
        """Whether it has ended."""
        return True

    def exception(self) -> None:
        """Why it ended badly: it did not."""

    def get_future(self) -> Any:
        """Return a torch.futures.Future of `result()`."""
        self._is_waited_for = True
        future: torch.futures.Future[Tensors] = torch.futures.Future()
        future.set_result(self._outputs)
        return future


@called_by_cpp
class SwitchWork(PythonWork):
    """A collective of the switch under way as a `torch.distributed.Work`."""

    def __init__(self, handle: Handle[Any], outputs: Tensors, name: str = "collective") -> None:
        """name: of the collective, for profiles."""
        super().__init__(outputs)
        self._name = name
        self._handle = handle

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Wait until the results are there; raise DistBackendError if they will not come, or not within `timeout`.

        Those on a CUDA device may still be on their way there: the current stream waits for them. Where another
        exception leaves it, as one of a signal's handler, the collective fails.
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
        """As of a `Handle`."""
        self._handle.leave(error)

    def is_completed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._handle.done()

    def exception(self) -> DistBackendError | None:
        """Why it ended badly; None if it did not."""
        error = self._handle.exception() if self.is_completed() else None
        return None if error is None else as_backend_error(error)

    def get_future(self) -> Any:
        """Return a torch.futures.Future of `result()`, or of the error. What follows it may wait for other
        collectives."""
        self._is_waited_for = True
        return future_of(self._handle, self._settle, self._outputs)


@called_by_cpp
class QueuedWork(PythonWork):
    """A collective that begins, as a work of its own, when its group's ranks have joined a job."""

    def __init__(
        self, name: str, outputs: Tensors, threads: Continuations, abort: Callable[[P4ReduceError], None]
    ) -> None:
        """name: of the collective, for error messages. threads: for what follows its end. abort: ends the group."""
        super().__init__(outputs)
        self._name = name
        self._threads = threads
        self._abort = abort
        self._left = False
        self._pid = os.getpid()
        self._begun: concurrent.futures.Future[Any] = concurrent.futures.Future()
        BlockingCall.note(self)

    def begin(self, start: Callable[[], Any]) -> None:
        """For the group's queue: it is the work that `start` returns. Raises nothing."""
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
        """As of a `Handle`. Where it has not begun, it never does, and its group ends for all ranks."""
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
        """As a `SwitchWork`'s, or Gloo's."""
        self._is_waited_for = True
        if timeout <= NO_TIMEOUT:
            return bool(self._work(None).wait())
        deadline = time.monotonic() + timeout.total_seconds()
        work = self._work(timeout.total_seconds())
        left = max(0.001, deadline - time.monotonic())
        return bool(work.wait(timedelta(seconds=left)))

    def _work(self, timeout: float | None) -> Any:
        """What it has become. Raises why it has not begun."""
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
        """Whether it has ended, well or not."""
        return self._begun.done() and (self._begun.exception() is not None or self._begun.result().is_completed())

    def exception(self) -> Any:
        """Why it ended badly; None if it did not."""
        if not self.is_completed():
            return None
        error = self._begun.exception()
        return self._begun.result().exception() if error is None else without_frames(error)

    def get_future(self) -> Any:
        """Return a torch.futures.Future of `result()`, or of the error. What follows it may wait for other
        collectives."""
        self._is_waited_for = True
        devices: Any = list({output.device for output in self._outputs if output.is_cuda})
        trigger: torch.futures.Future[None] = torch.futures.Future(devices=devices)
        future = trigger.then(lambda _: self._settle())
        self._threads.run(lambda: self._follow(trigger))
        return future

    def _follow(self, trigger: torch.futures.Future[None]) -> None:
        with contextlib.suppress(Exception):  # which the future has from `_settle`
            self.wait()
        trigger.set_result(None)


@called_by_cpp
class Works(PythonWork):
    """Several works as one."""

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
            del first  # which has this frame
        return True

    def leave(self, error: BaseException) -> None:
        """As of a `Handle`."""
        leave_all(self._works, error)

    def is_completed(self) -> bool:
        """Whether all have ended, well or not."""
        return all(work.is_completed() for work in self._works)

    def is_success(self) -> bool:
        """Whether all have ended well."""
        return all(work.is_completed() and work.is_success() for work in self._works)

    def exception(self) -> Any:
        """Why the first that did ended badly; None if none did."""
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
    """`error` leaves a call that was to return when the works have ended. Those of the switch fail where they are under
    way; for Gloo's, which cannot, it waits."""
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
    """What torch.distributed documents as an error of a backend; its cause says more to programs."""
    timed_out = isinstance(error, TimeoutError) or (isinstance(error, JoinError) and error.timed_out)
    word = "the timeout has passed: " if timed_out else ""  # for which programs look
    told = DistBackendError(f"{type(error).__name__}: {word}{error}")
    told.__cause__ = error
    return told
