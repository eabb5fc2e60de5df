# SPDX-License-Identifier: Apache-2.0
"""One slot of the job: its round, what of the task its streams have sent, and where its packet is."""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Any

import numpy.typing as npt

from p4reduce.protocol.membership import Membership
from p4reduce.protocol.operation import Task
from p4reduce.protocol.packet import NO_VALUES

NEVER = float("inf")


class State(IntEnum):
    """Of a slot's packet."""

    IDLE = 0
    """There is none."""
    NEW = 1
    """Not sent yet: it waits for its turn."""
    SENT = 2
    """Sent once."""
    AGAIN = 3
    """It has no answer, and waits for its turn to be sent again."""
    ASKING = 4
    """Sent again."""
    COUNTED = 5
    """The switch has it, as a STATUS said, and waits for others."""
    POLLING = 6
    """The same, and it waits for its turn to ask whether they have come."""


_IN_TURN = frozenset((State.NEW, State.AGAIN, State.POLLING))
_UNDER_WAY = frozenset(State) - {State.IDLE, State.NEW}
_SENT_AGAIN = _UNDER_WAY - {State.SENT}


class Slot:
    """One slot. What `Rounds` does to it comes first, then what `Recovery` does."""

    __slots__ = (
        "active",
        "agreed",
        "agreed_exponents",
        "announced",
        "fingerprint",
        "first_sent_at",
        "first_stream",
        "heard_at",
        "index",
        "least",
        "level",
        "lined_up",
        "packet",
        "present",
        "queue",
        "seen",
        "sent_at",
        "sent_once",
        "seq",
        "sought",
        "state",
        "task",
        "transmissions",
        "unanswered",
        "unanswered_since",
        "unknown",
        "values",
    )

    def __init__(self, index: int, membership: Membership) -> None:
        self.index = index
        self.first_stream = index * membership.lanes
        self.queue: deque[Task] = deque()
        self.task: Task | None = None
        # The round: its number, the lanes that carry values, what says both operation and lanes, blocks and exponents.
        self.seq = membership.first_seq
        self.active = 0
        self.fingerprint = 0
        self.agreed: list[int] = []
        self.agreed_exponents: list[int] = []
        # What of the blocks this rank has to send.
        self.present = 0
        self.values: npt.NDArray[Any] = NO_VALUES
        # Each lane's next block to send: its key, and where it is looked for, the number of the first that it can be.
        self.announced: list[int] = []
        self.sought: list[int] = []
        self.unknown = 0  # lanes whose next block is still looked for: the round's packet waits for them
        # The least key that a RESULT may have in each lane, as blocks come in order.
        self.least: list[int] = []

        # The packet that waits for its RESULT.
        self.packet = b""
        self.state = State.IDLE
        self.level = 0  # among those that wait for answers
        self.lined_up = False  # in the line, though it may not need its turn any more
        self.sent_at = self.first_sent_at = 0.0
        self.heard_at = 0.0  # the last STATUS, or when it was first sent
        self.transmissions = 0
        self.seen: int | None = None  # the workers that the switch has seen in this round, from STATUS
        # Of the round before, where only this rank was awaited: the copies of its packet that have not been answered,
        # and when the first was sent.
        self.unanswered = 0
        self.unanswered_since = 0.0
        self.sent_once = False  # the packet of the round before

    @property
    def under_way(self) -> bool:
        """Whether the packet was sent and waits for its RESULT."""
        return self.state in _UNDER_WAY

    @property
    def waits_for_turn(self) -> bool:
        return self.state in _IN_TURN

    @property
    def was_sent_again(self) -> bool:
        """Whether the packet was sent again, or is about to be, and waits for its RESULT."""
        return self.state in _SENT_AGAIN

    @property
    def in_network(self) -> bool:
        return self.state is State.SENT or self.state is State.ASKING
