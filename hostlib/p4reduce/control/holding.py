# SPDX-License-Identifier: Apache-2.0
"""The pause of a rank's operations while the controller changes the job's slots: Hold, Held and Release.

The controller sends Hold, the engine pauses and reports in Held how far it is, and Release ends the pause.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Protocol

from p4reduce.control import jobs_pb2 as pb


class Holder(Protocol):
    """An engine, which can pause its operations. Neither call blocks."""

    def hold(self, operations: int, tell: Callable[[int, bool, int], None]) -> None:
        """Pause after the job's first `operations` operations, or after those that have begun, if they are more.

        tell: called from any thread with the number of operations that have begun, whether all have ended, and if so a
            first round; and again whenever one of these has changed.
        """

    def go_on(self, slots: int, first_seq: int) -> None:
        """Resume with the first `slots` slots (0: as before), each of which begins with round `first_seq`."""


class Holding:
    """The state of a session's pauses. The session's lock, which is reentrant, guards it.

    Lock order: the session's lock before the engine's, since `hold` and `go_on` of the holder are called under the
    session's lock. So an engine must not hold its own lock when it calls `tell`.
    """

    def __init__(self, lock: threading.Condition, say: Callable[[pb.ClientMessage], None]) -> None:
        """Begin without a pause. `say`: sends a message to the serving controller; called under the lock."""
        self._lock = lock
        self._say = say
        self._holder: Holder | None = None
        self._hold: pb.Hold | None = None
        self._held: pb.Held | None = None
        self._count = 0  # messages of the controller; identifies the latest

    def begin(self, holder: Holder) -> None:
        """Set the holder, which also gets a Hold that has arrived before."""
        with self._lock:
            self._holder = holder
            if self._hold is not None:
                self.hold(self._hold)

    def end(self) -> None:
        """Drop the references to the holder and the session, which refer to this object."""
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
            # A new controller does not know whether this rank has received the Release of an earlier change, so it
            # repeats the last one. That is a change for this rank only if it begins with the round that the rank has
            # reported.
            held = self._held or pb.Held()
            changed = held.quiet and held.first_seq == message.first_seq
            self._count += 1
            self._hold = self._held = None
            if self._holder is not None:
                self._holder.go_on(message.slots if changed else 0, message.first_seq)

    def _tell(self, count: int, operations: int, quiet: bool, first_seq: int) -> None:
        with self._lock:
            if count == self._count and self._hold is not None:  # else this report is late, and another will follow
                number = self._hold.number
                self._held = pb.Held(operations=operations, quiet=quiet, first_seq=first_seq, number=number)
                self._say(pb.ClientMessage(held=self._held))
