# SPDX-License-Identifier: Apache-2.0
"""A fair lock, by which threads begin collectives one after the other, in the order in which they ask.

`_guard` protects all fields and is held for a few instructions only. A thread that must wait appends a locked lock of
its own to `_waiting` and acquires it again. The thread that leaves makes the first waiter the owner, and then releases
that waiter's lock: ownership passes on without a moment in which another thread could take the lock.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType


class FifoLock:
    """A reentrant lock that threads get in the order in which they ask for it."""

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        """Create the lock, which nobody owns.

        check: called before a thread waits. It raises if the wait might never end, for example in a forked process.
        """
        self._check = check
        self._guard = threading.Lock()
        # Guarded by `_guard`.
        self._owner: int | None = None
        self._depth = 0
        self._waiting: deque[tuple[int, threading.Lock]] = deque()

    def __enter__(self) -> None:
        own = threading.get_ident()
        before = self._depth if self._owner == own else 0  # no other thread changes the depth of an owner
        waiter = None
        try:
            with self._guard:
                if self._owner in (None, own):
                    self._owner = own
                    self._depth += 1
                    return
                waiter = threading.Lock()
                waiter.acquire()
                self._waiting.append((own, waiter))
            self._check()
            waiter.acquire()  # released by the thread that passes the lock on to this one
        except BaseException:  # from `check`, or from a signal's handler at any point, also after ownership came
            with self._guard:
                if waiter is not None and (own, waiter) in self._waiting:
                    self._waiting.remove((own, waiter))
                acquired = self._owner == own and self._depth > before
                if self._owner == own and self._depth == 0:
                    self._owner = None
            if acquired:
                self.__exit__(None, None, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._guard:
            self._depth -= 1
            if self._depth:
                return
            self._owner = None
            if self._waiting:
                self._owner, waiter = self._waiting.popleft()
                self._depth = 1
                waiter.release()
