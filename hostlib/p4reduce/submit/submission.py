# SPDX-License-Identifier: Apache-2.0
"""The submission of plans to the engine, in the order in which a communicator's collectives are called."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from p4reduce.collectives.plan import Plan, nothing
from p4reduce.collectives.sparse import AgreedError, Reduction
from p4reduce.engine.continuations import SerialExecutor
from p4reduce.engine.engine import Engine, Prepared, error_of
from p4reduce.engine.handle import BlockingCall, Handle
from p4reduce.errors import OperationRefused, P4ReduceError, without_frames
from p4reduce.protocol import Operation, float_mode
from p4reduce.submit.device_wait import DeviceWait
from p4reduce.submit.fifo_lock import FifoLock

T = TypeVar("T")


class Submission:
    """A communicator's submitter: it hands collectives to the engine in call order, and tracks those in flight."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.executor = SerialExecutor(engine.continuations)
        """Begins collectives that wait for a device. While it is idle, the engine may be given operations directly."""
        self._device = DeviceWait(engine)
        self.lock = FifoLock(engine.check)
        """Held while a collective begins and, for a blocking call on the host, until it ends.

        So no other operation comes between those of one collective.
        """

    def drain(self) -> None:
        """Wait until no collective is under way. Then raise the error of one that failed meanwhile."""
        handles = list(self._engine.handles)
        self._engine.settle()
        for handle in handles:
            handle.exception()
        for handle in handles:
            handle.wait()

    def run(self, plan: Plan[T], limit: float) -> T:
        """Execute a plan, and return its result when it has ended."""
        with BlockingCall():
            with self.lock:
                outcome = self._execute(plan, limit)
            error = _end(outcome)
        if error is not None:
            raise without_frames(error)
        return plan.result

    def _execute(self, plan: Plan[Any], limit: float) -> Handle[Any] | BaseException | None:
        """Execute a plan in this thread and return the error that ended it, or submit it and return its handle.

        This thread does the engine's work if the plan needs no device and no earlier collective still has to begin.
        Otherwise the plan is only submitted. The caller holds the lock.
        """
        operation = plan.operation
        if operation is not None and not plan.transfers and self.executor.is_idle:
            plan.prepared = self._engine.prepare(operation, plan.name)
        if plan.prepared is None:
            return self.submit(plan, limit)
        if plan.fetch is not nothing:
            plan.fetch(_never)
        finish = None if plan.finish is nothing else plan.finish
        return self._engine.run_inline(plan.prepared, operation, limit, finish)

    def submit(self, plan: Plan[T], limit: float) -> Handle[T]:
        """Hand the plan's operation to the engine, and return the handle.

        A thread that waits for the handle finishes the plan, or else the engine's thread. If the plan has transfers
        from or to a device, only the engine's thread does.

        If the tensor is still to come from a device, another thread hands the operation over later. The same holds for
        plans behind such a one.
        """
        handle = Handle(plan.result, plan.name, self._engine, plan.transfers, self._device.progress)

        def end(error: BaseException | None) -> None:
            handle.complete(error or error_of(plan.finish))

        def begin(operation: Operation) -> None:
            plan.fetch(partial(self._device.wait, plan.name, limit))
            plan.prepared = None if plan.transfers else self._engine.prepare(operation, plan.name)
            if plan.prepared is not None:
                handle.number = self._engine.start(plan.prepared, operation, timeout=limit, on_end=end)
            else:
                self._engine.submit(operation, name=plan.name, timeout=limit, on_end=end)

        def begin_later(operation: Operation) -> None:
            try:
                begin(operation)
            except BaseException as error:
                # The other ranks may have begun: they and this one no longer agree on which operation is next.
                self._engine.fail(as_failure(plan.name, "begin", error))
                end(self._engine.failure)

        if plan.operation is None:
            with float_mode.DefaultMode():
                end(None)
            return handle
        self._engine.handles.add(handle)
        later = False
        try:
            with self.lock:
                later = bool(plan.transfers) or not self.executor.is_idle
                if later:
                    self.executor.submit(partial(begin_later, plan.operation))
                else:
                    begin(plan.operation)
        except BaseException:
            if not later and not self._engine.carries(plan.operation):
                self._engine.handles.discard(handle)
            raise
        return handle

    def start(self, prepared: Prepared, tensor: T, limit: float, address: int, finish: Callable[[], None]) -> Handle[T]:
        """Start an operation like the prepared one, on a tensor whose values begin at `address`.

        The caller holds the lock, and no earlier collective still has to begin. finish: as in a plan.
        """
        handle = Handle(tensor, prepared.name, self._engine, (), self._device.progress)
        held = (tensor,)  # identifies this call: the tensor may be the same as in an earlier one

        def end(error: BaseException | None) -> None:
            handle.complete(error or error_of(finish))

        self._engine.handles.add(handle)
        try:
            handle.number = self._engine.start(prepared, held, timeout=limit, on_end=end, address=address)
        except BaseException:
            if not self._engine.carries(held):
                self._engine.handles.discard(handle)
            raise
        return handle

    def agree(
        self,
        reduction: Reduction,
        result: T,
        limit: float,
        by_blocks: Callable[[], Plan[T]] | None = None,
        *,
        agreed: Callable[[], None] = nothing,
        leave: Callable[[], None],
        blocking: bool,
    ) -> Handle[T] | None:
        """Execute all operations of a reduction except the last, submit the last one, and return its handle.

        blocking: execute the last one, too, and return None. by_blocks: as in `Reduction.plan`. agreed: called when the
        ranks have exchanged their rows' numbers, before the last operation begins. leave: called if the ranks no longer
        agree on which operation is next.
        """
        begun = ""
        has_ended = False
        failure: BaseException | None = None

        def run(plan: Plan[Any]) -> None:
            nonlocal begun
            begun = plan.name
            error = _end(self._execute(plan, limit))
            if isinstance(error, OperationRefused):  # on all ranks alike
                raise AgreedError(error)
            if error is not None:
                raise without_frames(error)

        def finish_last(finish: Callable[[], None]) -> None:
            nonlocal has_ended
            finish()
            has_ended = True

        try:
            with BlockingCall(), self.lock:
                plan = reduction.plan(result, run, by_blocks)
                if agreed is not nothing:
                    agreed()
                if not blocking:
                    return self.submit(plan, limit)
                plan.finish = partial(finish_last, plan.finish)
                failure = _end(self._execute(plan, limit))
        except AgreedError as agreed_error:
            failure = agreed_error.error
        except BaseException as error:
            if begun and not has_ended and self._engine.failure is None:
                self._engine.fail(as_failure(begun, "go on", error))
                leave()
            raise
        try:
            if failure is not None:
                raise without_frames(failure)
        finally:
            del failure  # otherwise it and this frame would refer to each other
        return None


def as_failure(name: str, what: str, error: BaseException) -> BaseException:
    """Return the failure of a communicator whose collective cannot begin or go on."""
    if isinstance(error, P4ReduceError):
        return without_frames(error)
    failure = P4ReduceError(f"{name} cannot {what}: {type(error).__name__}: {error}")
    failure.__cause__ = without_frames(error)
    return failure


def _end(outcome: Handle[Any] | BaseException | None) -> BaseException | None:
    """Return the error of a plan that was executed. If it was only submitted, wait for its end first."""
    if not isinstance(outcome, Handle):
        return outcome
    error = outcome.exception()
    if error is None:
        outcome.wait_for_arrivals()
    return error


def _never(_: Callable[[], bool]) -> None:
    """Wait for no device, as the plan has none."""
