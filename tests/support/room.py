# SPDX-License-Identifier: Apache-2.0
"""A lock that lets one test run alone among pytest-xdist's workers, and the order in which tests begin."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

Item = TypeVar("Item")


class Room:
    """A readers-writer lock of files in `folder`, for all processes that run tests of this checkout.

    Most tests hold it shared; a test that must run alone holds it exclusively.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._door = (folder / "door").open("w")
        self._room = (folder / "room").open("w")

    @contextlib.contextmanager
    def entered(self, alone: bool) -> Iterator[None]:
        """Hold the lock during the block: exclusively if `alone`, or else shared.

        A process takes the lock `door` before it waits for `room`, so no later process overtakes a waiting one.
        """
        fcntl.flock(self._door, fcntl.LOCK_EX)
        try:
            fcntl.flock(self._room, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        finally:
            fcntl.flock(self._door, fcntl.LOCK_UN)
        try:
            yield
        finally:
            fcntl.flock(self._room, fcntl.LOCK_UN)


def long_first(items: list[Item], workers: int, is_long: Callable[[Item], bool]) -> list[Item]:
    """Return the items in an order in which each worker of `--dist worksteal` begins with its share of the long tests.

    Otherwise a long test might begin when the others are about to end. `worksteal` first gives every worker the same
    number of items, in order.
    """
    long, others = [item for item in items if is_long(item)], [item for item in items if not is_long(item)]
    found: list[Item] = []
    for worker in range(workers):
        share = (len(items) - len(found)) // (workers - worker)
        own = long[worker::workers]
        found += own + others[: max(0, share - len(own))]
        del others[: max(0, share - len(own))]
    return found + others
