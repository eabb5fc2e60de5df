# SPDX-License-Identifier: Apache-2.0
"""The way out: packets wait in a line for their turn, and then for whoever sends them."""

from __future__ import annotations

from collections import deque

from p4reduce.protocol.pacing import Pace
from p4reduce.protocol.slot import NEVER, Slot
from p4reduce.protocol.stats import Stats


class Sending:
    """The line, in front of which `pace` says when the next may go, and the outbox behind it."""

    def __init__(self, pace: Pace, stats: Stats) -> None:
        self.pace = pace
        self._stats = stats
        self._line: deque[Slot] = deque()
        self._outbox: list[bytes] = []

    def may_go(self, now: float) -> bool:
        """Whether a packet may leave at once, which then has had its turn."""
        return not self._line and self.pace.turn(now)

    def line_up(self, slot: Slot) -> None:
        """Lets the slot's packet wait for its turn."""
        if not slot.lined_up:  # else its newer packet takes the place of the older
            slot.lined_up = True
            self._line.append(slot)

    def take_turn(self, now: float) -> Slot | None:
        """Takes the first out of the line, once it has its turn or needs none any more."""
        if not self._line or (self._line[0].waits_for_turn and not self.pace.turn(now)):
            return None
        slot = self._line.popleft()
        slot.lined_up = False
        return slot

    @property
    def next_turn(self) -> float:
        return self.pace.next if self._line else NEVER

    def put(self, payload: bytes) -> None:
        self._outbox.append(payload)

    def take_packets(self) -> list[bytes]:
        """The UDP payloads to send, in order."""
        packets, self._outbox = self._outbox, []
        self._stats.packets_sent += len(packets)
        self._stats.bytes_sent += sum(map(len, packets))
        return packets
