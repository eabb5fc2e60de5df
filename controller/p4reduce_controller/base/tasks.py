# SPDX-License-Identifier: Apache-2.0
"""Tasks that have an owner: each is awaited, and none fails or is cancelled without somebody hearing of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

log = logging.getLogger(__name__)

_AGAIN = 15.0  # seconds, longer than what a task does when it is cancelled

T = TypeVar("T")


class Interrupted(Exception):
    """The work was cancelled, and not by whoever waited for it."""


async def isolate_cancellation(work: Coroutine[Any, Any, T]) -> T:
    """Run the work in a task of its own, which ends before this does.

    gRPC raises CancelledError in those who wait for a call when its channel is closed. Here that is Interrupted, so
    that it does not pass for a cancellation of the caller, at which nobody looks.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:  # of the caller: `wait` does not raise the task's
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    if task.cancelled():
        raise Interrupted("it was cancelled")
    return task.result()


async def first_of(*waits: Coroutine[Any, Any, object]) -> set[asyncio.Future[object]]:
    """Return those that have ended, when one has. The others are cancelled."""
    tasks: list[asyncio.Future[object]] = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return done
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def ended(task: asyncio.Future[Any]) -> None:
    """Cancel it, and return when it has ended, however it does. Where a cancellation meets the end of what the task
    waits for, `asyncio.wait_for` forgets it; so it is cancelled until it ends."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_AGAIN)
    if not task.cancelled():
        task.exception()


class Tasks:
    """What its owner has begun. A failure is logged, and told to `failed`; so is a cancellation but by `close`."""

    def __init__(self, failed: Callable[[BaseException], None]) -> None:
        self._failed = failed
        self._running: set[asyncio.Task[Any]] = set()
        self._closed = False

    def start(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return task

    async def close(self) -> None:
        """Cancel what still runs, and return when all has ended."""
        self._closed = True
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if task.cancelled() and self._closed:
            return
        error = Interrupted("it was cancelled") if task.cancelled() else task.exception()
        if error is not None:
            log.error("the task %r failed", task.get_name(), exc_info=error)
            self._failed(error)
