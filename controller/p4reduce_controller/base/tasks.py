# SPDX-License-Identifier: Apache-2.0
"""Tasks with an owner: each is awaited, and no failure or cancellation goes unnoticed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

log = logging.getLogger(__name__)

_CANCEL_INTERVAL = 15.0  # seconds until a task is cancelled once more; a task that was cancelled ends sooner

T = TypeVar("T")


class Interrupted(Exception):
    """An error: the work was cancelled, but not by the caller that waited for it."""


async def isolate_cancellation(work: Coroutine[Any, Any, T]) -> T:
    """Run the work in a task of its own, which ends before this function does.

    When a channel is closed, gRPC raises CancelledError in everyone who waits for one of its calls. This function
    raises Interrupted instead, which cannot be mistaken for a cancellation of the caller.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:  # the caller was cancelled: `wait` does not raise the task's cancellation
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    if task.cancelled():
        raise Interrupted("it was cancelled")
    return task.result()


async def first_of(*waits: Coroutine[Any, Any, object]) -> set[asyncio.Future[object]]:
    """Return the futures that have ended, as soon as one has. The others are cancelled."""
    tasks: list[asyncio.Future[object]] = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return done
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def cancel_and_wait(task: asyncio.Future[Any]) -> None:
    """Cancel the task, unless it has ended already, and return when it has ended, with whatever result.

    One cancellation may be lost: if it comes just as the inner future of an `asyncio.wait_for` ends, the task goes on
    without it. So a task that has not ended after `_CANCEL_INTERVAL` is cancelled again.
    """
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_CANCEL_INTERVAL)
    if not task.cancelled():
        task.exception()  # otherwise asyncio logs, for a task that failed, that nobody retrieved its exception


class Tasks:
    """The tasks of an owner.

    If a task fails, the error is logged and passed to `failed`. So is the cancellation of a
    task, unless `close` has cancelled it.
    """

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._on_done)
        return task

    async def close(self) -> None:
        """Cancel all tasks, and return when they have ended."""
        self._closed = True
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if task.cancelled() and self._closed:
            return
        error = Interrupted("it was cancelled") if task.cancelled() else task.exception()
        if error is not None:
            log.error("the task %r failed", task.get_name(), exc_info=error)
            self._failed(error)
