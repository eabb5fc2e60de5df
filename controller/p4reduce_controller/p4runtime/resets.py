# SPDX-License-Identifier: Apache-2.0
"""Resets slot halves by packets that may be lost, without I/O: what to send when, and whether all is done."""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from p4reduce.protocol.constants import NO_KEY, Op
from p4reduce.protocol.packet import Packet
from p4reduce_controller.switches.pools import SlotRange

WINDOW = 32  # unacknowledged at once at a switch: half of what simple_switch queues for the controller's port
RETRY = 0.25  # seconds until the second attempt; twice as long until the third, and so on
SLOWEST = 200.0  # RESETs a second: no switch acknowledges fewer


def time_for(slots: int) -> float:
    """Seconds that the slowest switch takes for so many."""
    return 2 * slots / SLOWEST


@dataclass
class _Sent:
    attempt: int
    at: float

    @property
    def due(self) -> float:
        """When to try again. A switch that is slower than any fixed pace would else never be seen to be done."""
        return self.at + RETRY * self.attempt


class ResetBatch:
    """The RESETs of one job's slots.

    A half counts as reset when the *latest* attempt is acknowledged: packets to the switch keep their order, so no
    earlier attempt can then still be on its way and wipe out a round. The attempt travels as the fingerprint, counted
    from a number of the batch's own, for slots may have been reset in vain before.
    """

    def __init__(self, job: int, generation: int, slots: SlotRange, first_seq: int, lanes: int) -> None:
        self._job = job
        self._generation = generation
        self._seqs = {
            2 * slot + half: (first_seq - 2 + half) % 2**32 for slot in range(slots.first, slots.end) for half in (0, 1)
        }
        self._keys = (NO_KEY,) * lanes
        self._first = secrets.randbits(32)  # fingerprint
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
        """Sent and not acknowledged yet."""
        return len(self._sent)

    @property
    def count(self) -> int:
        return len(self._seqs)

    @property
    def missing(self) -> tuple[int, ...]:
        return (*self._sent, *self._waiting)

    def to_send(self, now: float, room: int = WINDOW) -> Iterable[Packet]:
        """What is due now, with at most `room` of those that were not sent yet; call again after an acknowledgement,
        and at `next_time`.

        Acknowledgements may come while the caller is still sending what this yields.
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
        """True when the packet is news."""
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
