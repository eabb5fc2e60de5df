# SPDX-License-Identifier: Apache-2.0
"""A thread pool for done-callbacks, apart from the engine's thread, and an executor that runs tasks in order."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable

Task = Callable[[], object]


class Continuations:
    """A thread pool that starts every task at once, in an idle thread or a new one.

    So a task may wait for tasks that are submitted later, to any depth. A thread that is idle for `IDLE_S` ends.
    """

    IDLE_S = 1.0

    def __init__(self, name: str) -> None:
        """Begin without threads. `name`: the prefix of their names."""
        self._name = name
        self._changed = threading.Condition()
        # _changed guards the fields below.
        self._tasks: deque[Task] = deque()
        self._idle = 0
        self._threads: set[threading.Thread] = set()
        self._closed = False

    def run(self, task: Task) -> None:
        """Start the task and return at once; any thread may call this. An exception of the task is logged."""
        with self._changed:
            # Queued before the thread starts, since a signal handler's exception may end this call meanwhile.
            self._tasks.append(task)
            self._changed.notify()
            if len(self._tasks) <= self._idle or self._started():
                return
            self._tasks.remove(task)
        guarded(task)  # at the interpreter's exit: no thread can start, and every collective has ended

    def close(self, timeout: float) -> None:
        """Let the threads end when no task is left, and wait up to `timeout` seconds for that."""
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
            del task  # it may hold a tensor

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
    """An executor that runs tasks one after the other, in the order of submission, without making callers wait.

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
    """Run a task of the user's and log its exception, also SystemExit, so that it does not end our thread."""
    try:
        task()
    except BaseException:
        logging.getLogger("p4reduce").exception("a continuation of a collective failed")
