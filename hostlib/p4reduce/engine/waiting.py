# SPDX-License-Identifier: Apache-2.0
"""A wait for a future that exceptions of signal handlers do not break.

CPython runs signal handlers in the main thread, between two instructions of any Python code. This has two consequences
for `concurrent.futures.wait`, which is written in Python:

- A handler's exception inside `Condition.__exit__` leaves the lock held. The thread that ends the future then waits
  for ever.
- A signal that arrives between the last check and the system call that waits is noticed only when the wait ends.
"""

from __future__ import annotations

import concurrent.futures
import math
import threading
import time
from typing import Any

_SLICE_S = 1.0


def ends_within(future: concurrent.futures.Future[Any], timeout: float | None) -> bool:
    """Wait until the future is done, for `timeout` seconds at most (None: no limit), and return whether it is."""
    _release_lock(future)
    if future.done() or timeout == 0:
        return future.done()
    ended = threading.Lock()  # C code, unlike Event and Condition
    ended.acquire()
    future.add_done_callback(lambda _: ended.release())
    deadline = math.inf if timeout is None else time.monotonic() + timeout
    while not future.done() and (left := deadline - time.monotonic()) > 0:
        ended.acquire(timeout=min(left, _SLICE_S))
    return future.done()


def _release_lock(future: concurrent.futures.Future[Any]) -> None:
    """Release the future's lock if this thread holds it, which happens only after a handler's exception."""
    condition: Any = future._condition
    while condition._is_owned():
        condition.release()
