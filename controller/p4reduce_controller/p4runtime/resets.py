# SPDX-License-Identifier: Apache-2.0
"""Resets of slot halves by packets that may be lost, without I/O: what to send when, and whether all are done."""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from p4reduce.protocol.constants import NO_KEY, Op
from p4reduce.protocol.packet import Packet
from p4reduce_controller.switches.pools import SlotRange

WINDOW = 32  # unacknowledged RESETs at a switch: half of what simple_switch queues for its CPU port
RETRY_INTERVAL = 0.25  # seconds until the second attempt, twice as long until the third, and so on
MIN_ACK_RATE = 200.0  # RESETs per second that every switch can acknowledge


def time_for(slots: int) -> float:
    """Return the seconds that the slowest switch takes for so many slots."""
    return 2 * slots / MIN_ACK_RATE


@dataclass
class _Sent:
    attempt: int
    at: float

    @property
    def due(self) -> float:
        """The time of the next attempt.

        With a fixed interval, a slow switch might never acknowledge the latest attempt.
        """
        return self.at + RETRY_INTERVAL * self.attempt


class ResetBatch:
    """The RESETs of one job's slots.

    A half is reset when its *latest* attempt is acknowledged. Packets to the switch keep their order, so no earlier
    attempt can still be in flight and erase a round. The fingerprint contains the number of the attempt, counted from a
    random number, because earlier batches may have reset the same slots.
    """

    def __init__(
        self, job: int, generation: int, slots: SlotRange, first_seq: int, lanes: int, rounds: Sequence[int] = ()
    ) -> None:
        """Prepare the resets. `rounds`: the first round of each slot, if it is not `first_seq` for all."""
        self._job = job
        self._generation = generation
        firsts = rounds or [first_seq] * slots.count
        self._seqs = {
            2 * (slots.first + slot) + (seq & 1): seq % 2**32
            for slot, first in enumerate(firsts)
            for seq in (first - 2, first - 1)
        }
        self._keys = (NO_KEY,) * lanes
        self._first = secrets.randbits(32)  # fingerprint of attempt 0
        self._waiting = deque(self._seqs)
        self._sent: dict[int, _Sent] = {}

    @property
    def done(self) -> bool:
        return not self._waiting and not self._sent

    @property
    def all_sent(self) -> bool:
        return not self._waiting

    @property
    def under_way(self) -> int:
        """The number of halves whose RESET has been sent and not acknowledged."""
        return len(self._sent)

    @property
    def count(self) -> int:
        return len(self._seqs)

    @property
    def missing(self) -> tuple[int, ...]:
        return (*self._sent, *self._waiting)

    def to_send(self, now: float, room: int = WINDOW) -> Iterable[Packet]:
        """Yield the packets that are due now, and at most `room` first attempts.

        Call it again after an acknowledgement, and at `next_time`. Acknowledgements may arrive while the caller is
        still sending packets.
        """
        for half, sent in list(self._sent.items()):
            if half in self._sent and now >= sent.due:
                sent.attempt += 1
                sent.at = now
                yield self._packet(half, sent.attempt)
        for _ in range(min(room, WINDOW - len(self._sent), len(self._waiting))):
            half = self._waiting.popleft()
            self._sent[half] = _Sent(1, now)
            yield self._packet(half, 1)

    def next_time(self) -> float:
        return min((sent.due for sent in self._sent.values()), default=math.inf)

    def acknowledged(self, packet: Packet) -> bool:
        """Handle an acknowledgement. Return whether it was awaited."""
        if (packet.op, packet.job, packet.generation) != (Op.RESET, self._job, self._generation):
            return False
        sent = self._sent.get(packet.slot)
        if sent is None or self._fingerprint(sent.attempt) != packet.fingerprint:
            return False
        del self._sent[packet.slot]
        return True

    def _fingerprint(self, attempt: int) -> int:
        return (self._first + attempt) % 2**32

    def _packet(self, half: int, attempt: int) -> Packet:
        return Packet(
            Op.RESET,
            job=self._job,
            generation=self._generation,
            slot=half,
            seq=self._seqs[half],
            fingerprint=self._fingerprint(attempt),
            keys=self._keys,
        )
