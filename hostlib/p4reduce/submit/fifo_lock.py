# SPDX-License-Identifier: Apache-2.0
"""Who of several threads begins collectives: one after the other, in the order in which they ask."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from types import TracebackType


class FifoLock:
    """A lock that threads get in the order in which they come, and that who has it may take again."""

    def __init__(self, check: Callable[[], None] = lambda: None) -> None:
        """check: called before a thread waits; raises where the wait might never end, as in a forked process."""
        self._check = check
        self._guard = threading.Lock()
        # Guarded by it.
        self._owner: int | None = None
        self._depth = 0
        self._waiting: deque[tuple[int, threading.Lock]] = deque()

    def __enter__(self) -> None:
        own = threading.get_ident()
        before = self._depth if self._owner == own else 0  # which no other thread changes
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
            waiter.acquire()  # released by who has passed the lock on to this thread
        except BaseException:  # of a signal's handler
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
