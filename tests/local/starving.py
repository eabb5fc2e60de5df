# SPDX-License-Identifier: Apache-2.0
"""Ranks that get next to no time, and what a caller does whose operation was too slow."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tests.support.hostlib.local_engines import PendingOperation


def thread_of(name: str) -> int:
    """Return the id of the engine's thread of that name."""
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if (task / "comm").read_text().strip() == name:
                return int(task.name)
    raise AssertionError(f"no thread is called {name}")


@contextlib.contextmanager
def starved(thread: int) -> Iterator[None]:
    """Let the thread share a processor with a busy process, so that it gets next to no time."""
    processor = min(os.sched_getaffinity(0))
    os.sched_setaffinity(thread, {processor})
    os.sched_setscheduler(thread, os.SCHED_IDLE, os.sched_param(0))
    spin = f"import os; os.sched_setaffinity(0, {{{processor}}})\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", spin]) as busy:
        try:
            yield
        finally:
            busy.kill()


class Reuses(PendingOperation):
    """The ending of a caller that reuses its tensor once its operation has failed."""

    def __init__(self, tensor: npt.NDArray[np.float32]) -> None:
        super().__init__()
        self._tensor = tensor

    def __call__(self, error: BaseException | None) -> None:
        if error is not None:
            self._tensor.fill(777)
        super().__call__(error)
