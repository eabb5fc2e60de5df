# SPDX-License-Identifier: Apache-2.0
"""The move of an aggregator's slots, when a switch of it is lost: Suspend, Rounds and Resume.

The controller sends Suspend, the rank reports in Rounds how far its slots there are, and with Resume they go on at the
switch of another aggregator.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from p4reduce.control import jobs_pb2 as pb


class Mover(Protocol):
    """An engine, which can suspend the slots of an aggregator and move them. `Engine` describes both calls."""

    def suspend(self, aggregator: int) -> list[int] | None: ...

    def move(self, aggregator: int, via: int, jobs: Sequence[int], rounds: Sequence[int]) -> None: ...


class Moving:
    """The state of a session's moves.

    Lock order: this object's lock before the session's, because the engine's thread may wait for that of the session.
    So `on_message` and `begin` must not be called under the session's lock.
    """

    def __init__(self, say: Callable[[pb.ClientMessage], None]) -> None:
        """Begin without a move. `say`: sends a message to the serving controller."""
        self._lock = threading.Lock()
        self._say = say
        self._mover: Mover | None = None
        self._waiting: list[pb.ServerMessage] = []  # messages that came before the mover
        self._numbers: dict[int, int] = {}  # of the latest Suspend for each aggregator that is suspended

    def begin(self, mover: Mover) -> None:
        """Set the mover, which also gets messages that have arrived before."""
        with self._lock:
            self._mover = mover
            for message in self._waiting:
                self._handle(mover, message)
            self._waiting.clear()

    def end(self) -> None:
        """Drop the references to the mover and the session."""
        with self._lock:
            self._mover = None
            self._say = lambda _: None

    def on_message(self, message: pb.ServerMessage) -> None:
        """Handle a Suspend or a Resume."""
        with self._lock:
            if self._mover is None:
                self._waiting.append(message)
            else:
                self._handle(self._mover, message)

    def _handle(self, mover: Mover, message: pb.ServerMessage) -> None:
        if message.HasField("suspend"):
            suspend = message.suspend
            rounds = mover.suspend(suspend.aggregator)
            if rounds is not None:
                self._numbers[suspend.aggregator] = suspend.number
            # If the engine cannot do this, no rounds let the controller end the job.
            self._say(pb.ClientMessage(rounds=pb.Rounds(number=suspend.number, rounds=rounds or [])))
        elif self._numbers.get(message.resume.aggregator) == message.resume.number:
            resume = message.resume
            del self._numbers[resume.aggregator]
            mover.move(resume.aggregator, resume.via, [resume.job, *resume.more_jobs], list(resume.rounds))
