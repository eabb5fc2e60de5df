# SPDX-License-Identifier: Apache-2.0
"""What passes between the controller and who carries a rank's operations, when the job's slots are to change."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

from p4reduce.control import jobs_pb2 as pb


class Holder(Protocol):
    """Who carries operations. Neither call blocks."""

    def hold(self, operations: int, tell: Callable[[int, bool, int], None]) -> None:
        """Begins so many operations, or those that have begun, if they are more. `tell` is called with those that have,
        whether all have ended, and if so a first round, from any thread, and whenever that has changed."""

    def go_on(self, slots: int, first_seq: int) -> None:
        """End `hold`, in the first `slots` slots, each of which begins with `first_seq`; 0: as before."""


class Holding:
    """Of one session. Guarded by its lock, which is reentrant."""

    def __init__(self, lock: threading.Condition, say: Callable[[pb.ClientMessage], None]) -> None:
        """say: to the controller that serves; called under the lock."""
        self._lock = lock
        self._say = say
        self._holder: Holder | None = None
        self._hold: pb.Hold | None = None
        self._held: pb.Held | None = None
        self._count = 0  # of what the controller has said

    def begin(self, holder: Holder) -> None:
        """There is one now. A Hold that has come before is for it."""
        with self._lock:
            self._holder = holder
            if self._hold is not None:
                self.hold(self._hold)

    def end(self) -> None:
        """Knows neither the holder nor the session any more, which know this object."""
        with self._lock:
            self._holder = None
            self._say = lambda _: None

    def hold(self, message: pb.Hold) -> None:
        with self._lock:
            self._count += 1
            self._hold, self._held = message, None
            if self._holder is not None:
                self._holder.hold(message.operations, partial(self._tell, self._count))

    def release(self, message: pb.Release) -> None:
        with self._lock:
            if self._hold is None:
                return
            # A later controller cannot know whether this rank has heard the end of an earlier one's change, and tells
            # of the last one: it is this rank's if it begins where the rank stands.
            held = self._held or pb.Held()
            changed = held.quiet and held.first_seq == message.first_seq
            self._count += 1
            self._hold = self._held = None
            if self._holder is not None:
                self._holder.go_on(message.slots if changed else 0, message.first_seq)

    def _tell(self, count: int, operations: int, quiet: bool, first_seq: int) -> None:
        with self._lock:
            if count == self._count and self._hold is not None:  # else it is late, and another answer is to come
                number = self._hold.number
                self._held = pb.Held(operations=operations, quiet=quiet, first_seq=first_seq, number=number)
                self._say(pb.ClientMessage(held=self._held))
