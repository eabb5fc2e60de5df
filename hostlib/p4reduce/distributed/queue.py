# SPDX-License-Identifier: Apache-2.0
"""Where a group's collectives wait while its ranks join a job, so that who calls need not."""

from __future__ import annotations

import threading
from collections import deque

from p4reduce.continuations import Continuations, Task


class Queue:
    """Runs tasks one after the other, in the order in which they came, in a thread that is there while they are."""

    def __init__(self, threads: Continuations) -> None:
        self._threads = threads
        self._lock = threading.RLock()  # which a signal's handler may find taken by what it interrupts
        self._tasks: deque[Task] = deque()
        self._under_way = False

    def empty(self) -> bool:
        """Whether all tasks have run."""
        return not self._under_way

    def add(self, task: Task) -> None:
        """For any thread: returns at once. The task raises nothing."""
        with self._lock:
            self._tasks.append(task)
            if self._under_way:
                return
            self._under_way = True
        self._threads.run(self._work)

    def _work(self) -> None:
        while True:
            with self._lock:
                self._under_way = bool(self._tasks)
                if not self._under_way:
                    return
                task = self._tasks.popleft()
            task()
            del task  # which may hold a tensor
