# SPDX-License-Identifier: Apache-2.0
"""A pool of threads for done-callbacks, which no collective needs, and an executor that runs tasks in order."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

Task = Callable[[], object]


class Continuations:
    """Runs each task at once, in a thread that waits for one, or in a new one.

    So a task may wait for others that come after it, to any depth. Threads are made when they are needed, and end when
    they have had nothing to do for `IDLE_S`.
    """

    IDLE_S = 1.0

    def __init__(self, name: str) -> None:
        """`name`: of the threads."""
        self._name = name
        self._changed = threading.Condition()
        # All guarded by _changed.
        self._tasks: deque[Task] = deque()
        self._idle = 0
        self._threads: set[threading.Thread] = set()
        self._closed = False

    def run(self, task: Task) -> None:
        """For any thread: returns at once. What the task raises is logged."""
        with self._changed:
            # First, as an exception of a signal's handler may end this call while the thread starts.
            self._tasks.append(task)
            self._changed.notify()
            if len(self._tasks) <= self._idle or self._started():
                return
            self._tasks.remove(task)
        guarded(task)  # at the interpreter's exit: no thread can start, and every collective has ended

    def close(self, timeout: float) -> None:
        """End the threads when no task is left, and wait so many seconds for that."""
        deadline = time.monotonic() + timeout
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            threads = self._threads - {threading.current_thread()}
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _started(self) -> bool:
        thread = threading.Thread(target=self._work, name=f"{self._name} {len(self._threads)}", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._threads.add(thread)
        return True

    def _work(self) -> None:
        while (task := self._next()) is not None:
            guarded(task)
            del task  # which may hold a tensor

    def _next(self) -> Task | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._tasks or self._closed, self.IDLE_S)
            self._idle -= 1
            if self._tasks:
                return self._tasks.popleft()
            self._threads.discard(threading.current_thread())
            return None


class SerialExecutor:
    """Runs tasks one after the other, in the order in which they were submitted, so that callers need not wait.

    It occupies one thread of `threads` while there are tasks, and none otherwise.
    """

    def __init__(self, threads: Continuations) -> None:
        self._threads = threads
        self._lock = threading.RLock()  # a signal handler may submit a task while the thread it interrupts does
        self._tasks: deque[Task] = deque()
        self.is_idle = True
        """Whether all tasks have run."""

    def submit(self, task: Task) -> None:
        """Add a task, which must not raise. Returns at once; any thread may call it."""
        with self._lock:
            self._tasks.append(task)
            if not self.is_idle:
                return
            self.is_idle = False
        self._threads.run(self._work)

    def _work(self) -> None:
        while True:
            with self._lock:
                self.is_idle = not self._tasks
                if self.is_idle:
                    return
                task = self._tasks.popleft()
            task()
            del task  # it may hold a tensor


def guarded(task: Task) -> None:
    """Run a task of the user's; an error there, SystemExit as any other, is logged, and ends nothing of ours."""
    try:
        task()
    except BaseException:
        logging.getLogger("p4reduce").exception("a continuation of a collective failed")
