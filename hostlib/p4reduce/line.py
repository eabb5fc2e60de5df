# SPDX-License-Identifier: Apache-2.0
"""Where collectives wait for their tensors, so that who calls need not."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from p4reduce.carrier import Carrier
from p4reduce.continuations import Task
from p4reduce.errors import CollectiveTimeout

_SHORTEST_S, _LONGEST_S = 2e-5, 1e-3  # between two looks at a device


class Line:
    """Runs tasks one after the other, in the order in which they came: for operations, which all ranks begin alike."""

    def __init__(self, engine: Carrier) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._tasks: deque[Task] = deque()
        self._under_way = False
        self._awaited = ""  # the collective whose tensor a device has yet to compute

    def empty(self) -> bool:
        """Whether all tasks have run."""
        return not self._under_way

    def progress(self) -> str:
        """What collectives wait for, in words: those that the engine has come first."""
        awaited = self._awaited
        if awaited and not self._engine.busy:
            return f"this rank's device has yet to compute the tensor of {awaited}"
        return self._engine.progress()

    def add(self, task: Task) -> None:
        """For any thread: returns at once. The task runs in a thread of the engine's `continuations`, and raises
        nothing."""
        with self._lock:
            self._tasks.append(task)
            if self._under_way:
                return
            self._under_way = True
        self._engine.continuations.run(self._work)

    def wait(self, name: str, limit: float, ready: Callable[[], bool]) -> None:
        """Waits for what a device computes; raises the engine's failure.

        name: of the collective, for error messages.
        limit: seconds from when no earlier collective is under way any more, then CollectiveTimeout.
        """
        begun = since = time.monotonic()
        self._awaited = name
        try:
            while not ready():
                self._engine.check()
                now = time.monotonic()
                if self._engine.busy:
                    since = now
                if now - since >= limit:
                    raise CollectiveTimeout(
                        f"{name} did not begin within {limit:g} s: this rank's device has yet to compute its tensor"
                    )
                time.sleep(min(max((now - begun) / 8, _SHORTEST_S), _LONGEST_S))
        finally:
            self._awaited = ""

    def _work(self) -> None:
        while True:
            with self._lock:
                self._under_way = bool(self._tasks)
                if not self._under_way:
                    return
                task = self._tasks.popleft()
            task()
            del task  # which may hold a tensor
