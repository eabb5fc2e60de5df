# SPDX-License-Identifier: Apache-2.0
"""The clock of jobs: seconds that this process has run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

LONGEST_GAP = 1.0
LONGEST_WAIT = LONGEST_GAP / 2  # without asking the clock

T = TypeVar("T")


class Clock:
    """Stands still while the process does, so that no rank is blamed for what the controller did not hear of meanwhile.

    It has to be asked several times a second: longer than `LONGEST_GAP` after the last time, the process was stopped,
    or starved, in between.
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
    """What the work returns. Cancels it, and raises TimeoutError, when this process has run for so long."""
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
