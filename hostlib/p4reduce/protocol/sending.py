# SPDX-License-Identifier: Apache-2.0
"""The way out of a worker: a send queue, from which the pace releases packets into the outbox."""

from __future__ import annotations

from collections import deque

from p4reduce.protocol.pacing import Pace
from p4reduce.protocol.slot import NEVER, Slot
from p4reduce.protocol.stats import Stats


class Sending:
    """The send queue and the outbox. Slots wait in the queue for their turn, packets in the outbox for the caller."""

    def __init__(self, pace: Pace, stats: Stats) -> None:
        self.pace = pace
        self._stats = stats
        self._queue: deque[Slot] = deque()
        self._outbox: list[bytes] = []

    def may_bypass_queue(self, now: float) -> bool:
        """Return whether a packet may leave at once. If so, take its turn."""
        return not self._queue and self.pace.take_turn(now)

    def enqueue(self, slot: Slot) -> None:
        """Put the slot into the queue. A slot that is in the queue already keeps its position."""
        if not slot.in_send_queue:
            slot.in_send_queue = True
            self._queue.append(slot)

    def dequeue(self, now: float) -> Slot | None:
        """Take the first slot out of the queue if its packet has its turn, or no longer needs one."""
        if not self._queue or (self._queue[0].waits_for_turn and not self.pace.take_turn(now)):
            return None
        slot = self._queue.popleft()
        slot.in_send_queue = False
        return slot

    @property
    def next_turn(self) -> float:
        """When to call `dequeue` next."""
        return self.pace.next_turn if self._queue else NEVER

    def put(self, payload: bytes) -> None:
        """Put a packet into the outbox."""
        self._outbox.append(payload)

    def take_packets(self) -> list[bytes]:
        """Return the UDP payloads to send, in order."""
        packets, self._outbox = self._outbox, []
        self._stats.packets_sent += len(packets)
        self._stats.bytes_sent += sum(map(len, packets))
        return packets
