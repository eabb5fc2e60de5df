# SPDX-License-Identifier: Apache-2.0
"""The clock of jobs: seconds that this process has run."""

from __future__ import annotations

import time
from collections.abc import Callable

LONGEST_GAP = 1.0


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
