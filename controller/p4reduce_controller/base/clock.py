# SPDX-License-Identifier: Apache-2.0
"""The clock of jobs: the seconds that this process has been running."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

LONGEST_GAP = 1.0  # seconds between two calls of the clock while the process runs
LONGEST_WAIT = LONGEST_GAP / 2  # longest wait without a call of the clock

T = TypeVar("T")


class Clock:
    """A clock that stops while the process is stopped, so that no rank is blamed for what the controller did not hear.

    It must be called several times a second. If more than `LONGEST_GAP` has passed since the last call, the process was
    stopped or starved in between, and that time does not count.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._asked = monotonic()
        self._stood_still = 0.0

    def __call__(self) -> float:
        now = self._monotonic()
        if now - self._asked > LONGEST_GAP:
            self._stood_still += now - self._asked
        self._asked = now
        return now - self._stood_still


async def with_timeout(work: Coroutine[Any, Any, T], seconds: float) -> T:
    """Await the work and return its result. Cancel it and raise TimeoutError after so many seconds of running time."""
    clock = Clock()
    deadline = clock() + seconds
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            left = deadline - clock()
            if left <= 0:
                raise asyncio.TimeoutError
            await asyncio.wait([task], timeout=min(left, LONGEST_WAIT))
        return task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
