# SPDX-License-Identifier: Apache-2.0
"""Repair of losses: when a packet without a RESULT is sent again. It is TCP's RACK-TLP (RFC 8985), slot by slot.

Theory of operation
-------------------

Each slot has at most one packet without a RESULT, and the same bytes are sent until the RESULT comes. Two things make
a worker send a packet again:

- **Overtaken** (RACK): a packet that was sent later to the same aggregator, and only once, has its RESULT. Then this
  packet was lost, or its RESULT, or the packet of another rank. It is sent again `rtt + 4 rttvar` after it was sent,
  where `rtt` is the time that the later packet took.
- **Probe** (TLP): nothing was sent and no round has ended for a time-out. The two oldest packets are sent again. Their
  answers tell a loss from a late rank: the switch answers a packet that it has already added with a STATUS, or with
  the RESULT if the round is complete. Each probe doubles the next time-out (RFC 6298, 5.5).

States of a slot's packet (`State`; "queued": it waits in the send queue for the pace):

| state | event | next state |
|---|---|---|
| IDLE | the round's packet is complete | QUEUED |
| QUEUED | its turn | SENT |
| SENT, RETRANSMITTED | overtaken or probed | RETRANSMIT_QUEUED |
| RETRANSMIT_QUEUED | its turn | RETRANSMITTED |
| all but IDLE and QUEUED | STATUS | PARTIAL_ACK: the switch has the packet, and waits for other ranks |
| PARTIAL_ACK | overtaken or probed | POLL_QUEUED |
| POLL_QUEUED | its turn | PARTIAL_ACK |
| all but IDLE and QUEUED | RESULT | IDLE |

A packet that has its turn at once skips the queued state.

Three rules keep a worker from sending too much:

- **Retransmit budget.** Ranks that begin their slots in different orders overtake each other's packets without a loss.
  So each overtaken packet that is sent again costs a share of a budget, which rounds refill slowly, and real losses at
  once.
- **Back-off of PARTIAL_ACK.** Such a packet only asks for others, so each transmission doubles the time to the next.
- **Karn's rule.** The RESULT of a packet that was sent twice does not say which copy it answers. It is no sample of
  the round trip, and it leaves the time-out doubled, unless it came within the time-out of the last transmission. If a
  STATUS has said that the round waited for a late rank, the time-out is cut to `Timing.poll`, so that this wait does
  not delay the next repair as long.

Samples of the round trip are answers that did not wait for other ranks: the RESULT of a round that this worker
completed, and the STATUS to a second transmission. Another RESULT is a sample only if it is shorter than the estimate.

A loss is reported to the pace only when it is proved, as by D-SACK (RFC 3708): the switch answers each copy that
arrives, and paths keep order. So when the slot's next RESULT comes and fewer answers came than copies were sent, a
packet or an answer was lost.

The C library has the same in protocol/recovery.c. docs/protocol.md, 3.5, is the specification, and
docs/decisions/49-what-repair-of-losses-needs.md has measurements of each rule.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from heapq import merge
from itertools import chain, islice

from p4reduce.protocol.pacing import Pace
from p4reduce.protocol.sending import Sending
from p4reduce.protocol.slot import NEVER, Slot, State
from p4reduce.protocol.stats import Stats
from p4reduce.protocol.timing import RetransmissionTimer

_PROBES = 2  # packets that are probed at each time-out
_BACKOFF_LEVELS = 8  # for packets in PARTIAL_ACK
_RETRANSMIT_COST = 64  # retransmit budget that an overtaken packet costs; a round that ends earns one


class _Path:
    """The packets to one aggregator. Those of other aggregators take other paths, so they overtake none of these."""

    def __init__(self) -> None:
        # Slots whose packet is in the network, by back-off level. Each level is in the order of transmission.
        self.unacked: list[OrderedDict[Slot, None]] = [OrderedDict() for _ in range(_BACKOFF_LEVELS)]
        # RACK: transmission time and round trip of the packet sent last, among those sent once that have a RESULT.
        self.rack_sent_at = -NEVER
        self.rack_rtt = 0.0


class Recovery:
    """The retransmission of slots' packets: each is sent, and sent again until it is answered."""

    def __init__(
        self, slots: Sequence[Slot], streams: int, aggregators: int, timer: RetransmissionTimer, stats: Stats
    ) -> None:
        """Start with all slots idle.

        streams: the job's number of streams, one for each rank or host. aggregators: over how many slots are striped.
        """
        self.timer = timer
        self.pace = Pace(self.timer, len(slots))
        self.sending = Sending(self.pace, stats)
        self._stats = stats
        self._slots = slots
        self._in_state = [len(slots), *[0] * (len(State) - 1)]  # number of packets
        self._paths = [_Path() for _ in range(aggregators)]
        self._last_activity = -NEVER  # when a round last ended, or a packet was last sent
        self._backoff = 0  # doublings of the probe time-out
        self._budget = len(slots) * _RETRANSMIT_COST
        # A loss makes all ranks send the slot's packet again. So a proven loss earns two packets for each stream.
        self._budget_of_loss = 2 * streams * _RETRANSMIT_COST
        self._max_budget = self._budget + self._budget_of_loss

    # Calls of the worker.

    def send(self, slot: Slot, now: float) -> None:
        """Send the slot's packet for the first time on its path."""
        slot.transmissions = 0
        slot.began_at = now
        self._send_or_queue(slot, now)

    def on_result(self, slot: Slot, completed: bool, marked: bool, now: float) -> None:
        """Take the RESULT of the slot's packet.

        completed: whether it names this worker, which completed the round or sent its packet again. marked: whether a
        router has marked it, or a packet of its round.
        """
        self._stats.rounds += 1
        self._last_activity = now
        if slot.counted is not None:  # The round waited for a late rank. Otherwise the path may have become longer.
            self._backoff = self.timer.kept(self._backoff)
        if marked:
            self._take_mark(slot, now)
        else:
            self.pace.on_answer()
        lossy = completed and slot.transmissions > 1 and slot.counted is None
        self._budget = min(self._budget + (self._budget_of_loss if lossy else 1), self._max_budget)
        if slot.unacked_copies > 0:  # Paths keep order, so answers to these copies would have come before this RESULT.
            self._stats.slowdowns += self.pace.on_loss(slot.unacked_since, self._in_flight, now)
        slot.unacked_copies = slot.transmissions - 1 if lossy else 0
        slot.unacked_since = slot.first_sent_at
        self._measure(slot, completed, now)
        self._forget(slot)

    def _take_mark(self, slot: Slot, now: float) -> None:
        """Slow down: a router had a long queue for the slot's packet, for another rank's, or for the answer."""
        self._stats.marks += 1
        self._stats.slowdowns += self.pace.on_mark(slot.began_at, self._in_flight, now)

    def withdraw(self, slot: Slot) -> None:
        """Send the slot's packet no more, and expect no answer to it."""
        self._forget(slot)
        slot.unacked_copies = 0

    def begin_path(self, now: float) -> None:
        """Forget the measurements of a path that has changed: the round trip, the window and the back-off."""
        self._backoff = 0
        self.timer.restart()
        self.pace.restart(now - 2 * self.timer.estimate)  # an initial window may leave at once

    def on_late_answer(self, slot: Slot, seq: int) -> None:
        """Take an answer to an earlier round of the slot, which has its RESULT already."""
        if seq == slot.seq - 1 & 0xFFFFFFFF and slot.unacked_copies > 0:
            slot.unacked_copies -= 1

    def on_status(self, slot: Slot, counted: int, own: bool, marked: bool, now: float) -> None:
        """Take a STATUS: the switch has the slot's packet, and waits for other ranks.

        counted: bitmap of the workers that the switch has counted. own: whether it answers this worker's packet; a leaf
        tells all its workers what its parent told one of them.
        """
        self._stats.statuses += 1
        if marked:
            self._take_mark(slot, now)
        if slot.transmissions == 2 and own:  # The first transmission gets no STATUS, so this answers the second.
            self.timer.sample(now - slot.sent_at)
        slot.counted = counted
        slot.last_answer = now
        self._enter(slot, State.PARTIAL_ACK)
        if not slot.in_send_queue:
            self._await_answer(slot)

    def tick(self, now: float) -> None:
        """Send again what is due, and send what has its turn."""
        if now >= self._due_at:
            for due in list(self._take_overtaken(now)) or self._take_probes():
                self._send_or_queue(due, now)
        while (slot := self.sending.dequeue(now)) is not None:
            if slot.waits_for_turn:
                self._transmit(slot, now)
            elif slot.in_network:  # A STATUS came while it was queued.
                self._await_answer(slot)

    @property
    def next_deadline(self) -> float:
        """When to call `tick` next."""
        return min(self._due_at, self.sending.next_turn)

    def end(self, *, insist: bool) -> None:
        """End the job. insist: whether packets without a RESULT are still sent again."""
        if not insist:
            for slot in self._slots:
                self._forget(slot)

    # Sending.

    def _send_or_queue(self, slot: Slot, now: float) -> None:
        if self.sending.may_bypass_queue(now):
            self._transmit(slot, now)
            return
        self._unlink(slot)
        if slot.transmissions == 0:
            self._enter(slot, State.QUEUED)
        else:
            self._enter(slot, State.RETRANSMIT_QUEUED if slot.counted is None else State.POLL_QUEUED)
        self.sending.enqueue(slot)

    def _transmit(self, slot: Slot, now: float) -> None:
        slot.sent_at = self._last_activity = now
        if slot.transmissions == 0:
            slot.first_sent_at = slot.last_answer = now
        else:
            self._stats.retransmissions += 1
        slot.transmissions += 1
        if slot.counted is not None:
            self._enter(slot, State.PARTIAL_ACK)
        else:
            self._enter(slot, State.SENT if slot.transmissions == 1 else State.RETRANSMITTED)
        self._await_answer(slot)
        self.sending.put(slot.outgoing)

    def _await_answer(self, slot: Slot) -> None:
        """Move the slot behind all others whose packet is in the network."""
        self._unlink(slot)
        slot.backoff_level = 0 if slot.counted is None else min(slot.transmissions, _BACKOFF_LEVELS) - 1
        self._path(slot).unacked[slot.backoff_level][slot] = None

    def _unlink(self, slot: Slot) -> None:
        self._path(slot).unacked[slot.backoff_level].pop(slot, None)

    def _path(self, slot: Slot) -> _Path:
        return self._paths[slot.index % len(self._paths)]

    def _forget(self, slot: Slot) -> None:
        self._enter(slot, State.IDLE)
        self._unlink(slot)
        slot.counted = None

    def _enter(self, slot: Slot, state: State) -> None:
        self._in_state[slot.state] -= 1
        self._in_state[state] += 1
        slot.state = state

    # Measuring.

    def _measure(self, slot: Slot, completed: bool, now: float) -> None:
        """Update the round trip, RACK's latest packet and the back-off."""
        timer, elapsed = self.timer, now - slot.sent_at
        once = slot.transmissions == 1
        if once and (completed or elapsed < timer.estimate):
            timer.sample(elapsed)
        path = self._path(slot)
        if once and slot.sent_at > path.rack_sent_at:
            path.rack_sent_at = slot.sent_at
            path.rack_rtt = elapsed
        # From the last transmission to the first answer after it: a STATUS, or this RESULT.
        first = (slot.last_answer if slot.last_answer > slot.sent_at else now) - slot.sent_at
        if (once and completed) or timer.min_rtt <= first < timer.timeout:
            self._backoff = 0

    # Time.

    @property
    def _in_flight(self) -> int:
        return self._in_state[State.SENT] + self._in_state[State.RETRANSMITTED]

    @property
    def _due_at(self) -> float:
        """When the next packet is to be sent again."""
        oldest = [next(iter(unacked)) for path in self._paths for unacked in path.unacked if unacked]
        if not oldest:
            return NEVER
        polling = self._in_state[State.PARTIAL_ACK] + self._in_state[State.POLL_QUEUED] > 0
        probe_at = self._last_activity + self.timer.backed_off(self._backoff, polling=polling)
        return min(probe_at, *map(self._overtaken_at, oldest))

    def _overtaken_at(self, slot: Slot) -> float:
        """Return when the slot's packet is sent again because it was overtaken.

        NEVER if it was not overtaken, or if the retransmit budget is used up.
        """
        path = self._path(slot)
        if slot.sent_at >= path.rack_sent_at or self._budget < _RETRANSMIT_COST:
            return NEVER
        return slot.sent_at + (path.rack_rtt + 4 * self.timer.rttvar) * (1 << slot.backoff_level)

    def _take_overtaken(self, now: float) -> Iterator[Slot]:
        """Yield overtaken packets that are due, and deduct their cost from the budget."""
        for unacked in chain.from_iterable(path.unacked for path in self._paths):
            for slot in unacked:
                if self._overtaken_at(slot) > now:
                    break
                self._budget -= _RETRANSMIT_COST
                yield slot

    def _take_probes(self) -> list[Slot]:
        """Return the oldest packets, and double the next time-out."""
        self._backoff += 1
        levels = zip(*(path.unacked for path in self._paths), strict=True)
        slots = chain.from_iterable(merge(*level, key=lambda slot: slot.sent_at) for level in levels)
        return list(islice(slots, _PROBES))
