# SPDX-License-Identifier: Apache-2.0
"""How plans come to the engine, in the order in which a communicator's collectives are called."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from p4reduce.collectives.plan import Plan, nothing
from p4reduce.collectives.sparse import Alike, Reduction
from p4reduce.engine.carrier import Carrier
from p4reduce.engine.continuations import SerialExecutor
from p4reduce.engine.handle import BlockingCall, Handle
from p4reduce.errors import P4ReduceError, without_frames
from p4reduce.protocol import Operation, float_mode
from p4reduce.submit.device_wait import DeviceWait
from p4reduce.submit.turns import Turns

T = TypeVar("T")


class Submission:
    """Of all collectives of one communicator, that are under way and to come."""

    def __init__(self, engine: Carrier) -> None:
        self._engine = engine
        self._executor = SerialExecutor(engine.continuations)
        self._device = DeviceWait(engine)
        self.turns = Turns()
        """Whose it is to begin collectives, so that one which takes several operations has no other's in between."""

    @property
    def in_order(self) -> bool:
        """Whether what is given to the engine now comes after all that was submitted."""
        return self._executor.is_idle

    def drain(self) -> None:
        """Waits until no collective is under way. Then raises the error of one that failed meanwhile."""
        handles = list(self._engine.handles)
        self._engine.settle()
        for handle in handles:
            handle.exception()
        for handle in handles:
            handle.wait()

    def submit(self, plan: Plan[T], limit: float, *, awaited: bool = False) -> Handle[T]:
        """Hands the plan's operation to the engine. The plan is finished by who waits for its end, or by the engine's
        thread; by that alone where it may not be finished twice.

        Where the tensor is still to come from a device, and behind such, that happens later, in another thread.
        awaited: the caller waits for the handle at once, and nobody else does before.
        """
        handle = Handle(plan.result, plan.name, self._engine, plan.crossings, self._device.progress)

        def end(error: BaseException | None) -> None:
            handle.complete(error or _error_of(plan.finish))

        def begin(operation: Operation) -> None:
            plan.fetch(partial(self._device.wait, plan.name, limit))
            if plan.finished_once or plan.crossings:
                self._engine.submit(operation, name=plan.name, timeout=limit, on_end=end)
            elif awaited:
                self._engine.carry(operation, name=plan.name, timeout=limit, on_end=end)
            else:
                handle.number = self._engine.submit(operation, name=plan.name, timeout=limit, on_end=end)

        def begin_later(operation: Operation) -> None:
            try:
                begin(operation)
            except BaseException as error:
                # The other ranks may have begun: they and this one no longer agree on which operation is next.
                self._engine.fail(as_failure(plan.name, "begin", error))
                end(self._engine.failure)

        if plan.operation is None:
            with float_mode.default():
                end(None)
            return handle
        self._engine.handles.add(handle)
        later = False
        try:
            with self.turns:
                later = bool(plan.crossings) or not self._executor.is_idle
                if later:
                    self._executor.submit(partial(begin_later, plan.operation))
                else:
                    begin(plan.operation)
        except BaseException:
            if not later and not self._engine.carries(plan.operation):
                self._engine.handles.discard(handle)
            raise
        return handle

    def rows(
        self,
        reduction: Reduction,
        result: T,
        limit: float,
        by_blocks: Callable[[], Plan[T]] | None = None,
        *,
        agreed: Callable[[], None] = nothing,
        leave: Callable[[], None],
    ) -> Handle[T]:
        """Begins the last of the operations that the reduction takes, after all before.

        by_blocks: as of `Reduction.plan`. agreed: called when the ranks have told each other of their rows, before the
        last operation begins. leave: called where the ranks no longer agree on which operation is next.
        """
        begun: Handle[Any] | None = None
        refused: Exception

        def run(plan: Plan[Any]) -> Any:
            nonlocal begun
            begun = self.submit(plan, limit)
            try:
                return begun.result()
            except ValueError as error:
                if begun.done():  # it is what the job cannot carry, and not of a signal's handler
                    raise Alike(error) from None
                raise

        try:
            with BlockingCall(), self.turns:
                plan = reduction.plan(result, run, by_blocks)
                agreed()
                return self.submit(plan, limit)
        except Alike as alike:
            refused = without_frames(alike.error)
        except BaseException as error:
            if begun is not None and self._engine.failure is None:
                self._engine.fail(as_failure(begun.name, "go on", error))
                leave()
            raise
        try:
            raise refused
        finally:
            del refused  # which has this frame


def as_failure(name: str, what: str, error: BaseException) -> BaseException:
    """Of a communicator whose collective cannot begin, or go on."""
    if isinstance(error, P4ReduceError):
        return without_frames(error)
    failure = P4ReduceError(f"{name} cannot {what}: {type(error).__name__}: {error}")
    failure.__cause__ = without_frames(error)
    return failure


def _error_of(finish: Callable[[], None]) -> Exception | None:
    """Runs in the carrier's thread, which an error in the user's tensor must not end."""
    try:
        finish()
    except Exception as error:
        return error
    return None
