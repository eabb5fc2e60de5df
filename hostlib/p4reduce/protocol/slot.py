# SPDX-License-Identifier: Apache-2.0
"""One slot of the job: its task, its round, and the state of its packet."""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import Any

import numpy.typing as npt

from p4reduce.protocol.header import byte_range
from p4reduce.protocol.membership import Membership
from p4reduce.protocol.operation import Task
from p4reduce.protocol.packet import NO_VALUES

NEVER = float("inf")

_FINGERPRINT = byte_range("fingerprint")


class State(IntEnum):
    """The state of a slot's packet. `recovery` has the table of transitions."""

    IDLE = 0
    """There is no packet."""
    QUEUED = 1
    """The packet waits for its turn to be sent for the first time."""
    SENT = 2
    """The packet was sent once."""
    RETRANSMIT_QUEUED = 3
    """The packet waits for its turn to be sent again."""
    RETRANSMITTED = 4
    """The packet was sent again."""
    PARTIAL_ACK = 5
    """The switch has the packet, as a STATUS said, and waits for other ranks."""
    POLL_QUEUED = 6
    """The same as PARTIAL_ACK, and the packet waits for its turn to be sent again."""


_IN_SEND_QUEUE = frozenset((State.QUEUED, State.RETRANSMIT_QUEUED, State.POLL_QUEUED))
_IN_NETWORK = frozenset(State) - {State.IDLE, State.QUEUED}
_SENT_AGAIN = _IN_NETWORK - {State.SENT}


class Slot:
    """One slot. The fields that `Rounds` owns come first, then those of `Recovery`."""

    def __init__(self, index: int, membership: Membership) -> None:
        self.index = index
        self.first_stream = index * membership.lanes
        self.queue: deque[Task] = deque()
        self.task: Task | None = None
        # The round: its number, the lanes that carry values, its fingerprint, and its blocks with their exponents.
        self.seq = membership.first_seq
        self.active = 0
        self.fingerprint = 0
        self.agreed: list[int] = []
        self.agreed_exponents: list[int] = []
        # The lanes whose values this rank sends, and the values.
        self.present = 0
        self.values: npt.NDArray[Any] = NO_VALUES
        # Each lane's next block to send: its key, and the number of the first block from which it is searched.
        self.announced: list[int] = []
        self.sought: list[int] = []
        self.unknown = 0  # lanes whose next block is not found yet: the round's packet waits for them
        # The least key that a RESULT may have in each lane, because blocks come in order.
        self.least: list[int] = []

        # The packets of this round (empty until it is complete) and of the round before, as they were sent.
        self.packet = b""
        self.previous = b""
        self.suspended = False  # nothing is sent, and answers are ignored
        self.repeating = False  # the packet of the round before is sent again, and the round's packet waits

        # The packet that waits for its RESULT.
        self.state = State.IDLE
        self.transmissions = 0
        self.began_at = 0.0  # when it was ready to be sent
        self.sent_at = self.first_sent_at = 0.0
        self.last_answer = 0.0  # the last STATUS, or when the packet was first sent
        self.counted: int | None = None  # bitmap of the workers that the switch has counted, from the last STATUS
        self.backoff_level = 0  # for PARTIAL_ACK: doublings of the time until the packet is sent again
        self.in_send_queue = False  # stays true until the slot's turn, even if the packet no longer needs it
        # If the packet of the round before seems to be lost: its copies without an answer, and when the first was sent.
        self.unacked_copies = 0
        self.unacked_since = 0.0

    @property
    def outgoing(self) -> bytes:
        """The packet to send: this round's, or that of the round before while it is repeated."""
        return self.previous if self.repeating else self.packet

    @property
    def outgoing_seq(self) -> int:
        """The round of the packet to send."""
        return self.seq - self.repeating & 0xFFFFFFFF

    @property
    def outgoing_fingerprint(self) -> int:
        """The fingerprint in the packet to send."""
        return int.from_bytes(self.previous[_FINGERPRINT], "big") if self.repeating else self.fingerprint

    @property
    def in_network(self) -> bool:
        """Whether the packet was sent and waits for its RESULT."""
        return self.state in _IN_NETWORK

    @property
    def waits_for_turn(self) -> bool:
        return self.state in _IN_SEND_QUEUE

    @property
    def was_sent_again(self) -> bool:
        """Whether the packet was sent again, or is about to be, and waits for its RESULT."""
        return self.state in _SENT_AGAIN
