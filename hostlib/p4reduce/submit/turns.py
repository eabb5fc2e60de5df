# SPDX-License-Identifier: Apache-2.0
"""Who of several threads begins collectives: one after the other, in the order in which they ask."""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType


class Turns:
    """A lock that threads get in the order in which they come, and that who has it may take again."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        # Guarded by it.
        self._owner: int | None = None
        self._depth = 0
        self._waiting: deque[tuple[int, threading.Lock]] = deque()

    def __enter__(self) -> None:
        own = threading.get_ident()
        with self._guard:
            if self._owner in (None, own):
                self._owner = own
                self._depth += 1
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append((own, turn))
        try:
            turn.acquire()  # released by who has passed the lock on to this thread
        except BaseException:
            with self._guard:
                given = (own, turn) not in self._waiting
                if not given:
                    self._waiting.remove((own, turn))
            if given:
                self._leave()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        with self._guard:
            self._depth -= 1
            if self._depth:
                return
            self._owner = None
            if self._waiting:
                self._owner, turn = self._waiting.popleft()
                self._depth = 1
                turn.release()
