# SPDX-License-Identifier: Apache-2.0
"""When a packet that has no answer is sent again. docs/protocol.md explains why, in section 3."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from itertools import chain, islice

from p4reduce.protocol.pacing import Pace
from p4reduce.protocol.sending import Sending
from p4reduce.protocol.slot import NEVER, Slot, State
from p4reduce.protocol.stats import Stats
from p4reduce.protocol.timing import RetransmissionTimer

_PROBES = 2  # packets that ask what is the matter, the first time
_MAX_CARRIED_DOUBLINGS = 6
_REORDERING = 0.25  # of a round trip: packets may overtake others that were sent so long before
_LEVELS = 8
_SHARES = 64  # rounds that pay for a packet that is sent again in vain


class Recovery:
    """Sends the packets of slots, and sends them again until they are answered.

    A packet is *passed* when one that was sent later is answered: it is lost, or another rank's of its round is. Where
    nothing is answered for a time-out, a few packets ask: *probes*.
    """

    def __init__(self, slots: Sequence[Slot], streams: int, timer: RetransmissionTimer, stats: Stats) -> None:
        """streams: of the job, one a rank or a host."""
        self.timer = timer
        self.pace = Pace(self.timer, len(slots))
        self.sending = Sending(self.pace, stats)
        self._stats = stats
        self._slots = slots
        self._in_state = [len(slots), *[0] * (len(State) - 1)]  # how many packets
        # Those that wait for answers and are not in the line, as they were sent. By levels: each waits twice as long as
        # the one before until it is sent again, when it was passed.
        self._waiting: list[OrderedDict[Slot, None]] = [OrderedDict() for _ in range(_LEVELS)]
        # When a packet was sent that was answered, the latest of all those, and how long its answer took.
        self._answered_through = -NEVER
        self._took = 0.0
        self._heard_at = -NEVER  # when the last round ended, or the last packet was sent
        # How many packets may ask next, after a time-out that was doubled so often; and whether any has since the last
        # round ended.
        self._probes = _PROBES
        self._doublings = 0
        self._probing = False
        # The slot and seq of the packet that was proved lost when there was no limit.
        self._limited_by: tuple[Slot, int] | None = None
        self._duplicates = False  # the network duplicates packets, so answers to all copies prove nothing
        self._resumed_at = -NEVER  # when a round ended after probes
        # What packets that were passed may yet cost, in shares of one: each that is sent again costs a whole one.
        self._credit = len(slots) * _SHARES
        self._pays = 2 * streams * _SHARES  # what one that was lost pays for
        self._most_credit = self._credit + self._pays

    # What the worker calls.

    def send(self, slot: Slot, packet: bytes, now: float) -> None:
        """Sends the packet of the slot's next round."""
        slot.packet = packet
        slot.transmissions = 0
        self._line_up(slot, now)

    def answered(self, slot: Slot, completed: bool, now: float) -> None:
        """The RESULT of the slot's packet has come. `completed`: to the one that completed the round, or that asked."""
        self._stats.rounds += 1
        self._heard_at = now
        self.pace.answered()
        self._earn(self._pays if completed and slot.transmissions > 1 and slot.seen is None else 1)
        if slot.unanswered > 0:  # its copies came before this one, if they came
            limited = self.pace.limited
            if self._slow_down(slot, now) and not limited:
                self._limited_by = slot, slot.seq - 1 & 0xFFFFFFFF
        # Else another rank was late, or the switch.
        own = completed and not self._probing and slot.seen is None
        slot.unanswered = slot.transmissions - 1 if own else 0
        slot.unanswered_since = slot.first_sent_at
        slot.sent_once = slot.transmissions == 1
        if slot.unanswered > 0 and self.pace.limited and now - slot.sent_at >= self.timer.least:
            self._slow_down(slot, now)
        if self._probing:
            self._probing = False
            self._probes = _PROBES
            self._doublings = min(self._doublings, _MAX_CARRIED_DOUBLINGS)
            self._resumed_at = now
        self._measure(slot, completed, now)
        self._forget(slot)

    def answered_again(self, slot: Slot, seq: int, *, result: bool) -> None:
        """An answer, a RESULT or not, came for a round of the slot that has its RESULT."""
        if seq == slot.seq - 1 & 0xFFFFFFFF:
            self._duplicates |= result and slot.sent_once
            if slot.unanswered > 0:
                slot.unanswered -= 1
                if slot.unanswered == 0 and not self._duplicates:  # so none was lost
                    self._credit = max(self._credit - self._pays, 0)
        elif (slot, seq) == self._limited_by and not self._duplicates:
            self.pace.lift()
            self._limited_by = None

    def counted(self, slot: Slot, seen: int, own: bool, now: float) -> None:
        """A STATUS says that nothing is lost: another rank is awaited.

        seen: the workers counted so far. own: whether it answers this rank's packet: a leaf tells all its workers what
        its parent told of one's.
        """
        self._stats.statuses += 1
        if slot.transmissions == 2 and own:  # only packets that are sent again are answered so
            self.timer.measure(now - slot.sent_at)
        self._probes = _PROBES
        slot.seen = seen
        slot.heard_at = now
        self._enter(slot, State.COUNTED)
        if not slot.lined_up:
            self._wait(slot)

    def tick(self, now: float) -> None:
        """Sends again what has waited too long for its answer, and what has its turn."""
        if now >= self._due_at:
            self._look(now)
        while (slot := self.sending.take_turn(now)) is not None:
            if slot.waits_for_turn:
                self._transmit(slot, now)
            elif slot.under_way:  # a STATUS came meanwhile
                self._wait(slot)

    @property
    def next_deadline(self) -> float:
        """When to call `tick` next."""
        return min(self._due_at, self.sending.next_turn)

    def end(self, *, insist: bool) -> None:
        """The job has ended. Packets that wait for answers are still sent, where `insist`."""
        if not insist:
            for slot in self._slots:
                self._forget(slot)

    # Sending.

    def _line_up(self, slot: Slot, now: float) -> None:
        """Sends the slot's packet, or lets it wait for its turn."""
        if self.sending.may_go(now):
            self._transmit(slot, now)
            return
        self._stop_waiting(slot)
        self._enter(slot, State.NEW if slot.transmissions == 0 else State.AGAIN if slot.seen is None else State.POLLING)
        self.sending.line_up(slot)

    def _transmit(self, slot: Slot, now: float) -> None:
        slot.sent_at = self._heard_at = now
        if slot.transmissions == 0:
            slot.first_sent_at = slot.heard_at = now
        else:
            self._stats.retransmissions += 1
        slot.transmissions += 1
        if slot.seen is not None:
            self._enter(slot, State.COUNTED)
        else:
            self._enter(slot, State.SENT if slot.transmissions == 1 else State.ASKING)
        self._wait(slot)
        self.sending.put(slot.packet)

    def _forget(self, slot: Slot) -> None:
        self._enter(slot, State.IDLE)
        self._stop_waiting(slot)
        slot.seen = None

    def _enter(self, slot: Slot, state: State) -> None:
        self._in_state[slot.state] -= 1
        self._in_state[state] += 1
        slot.state = state

    def _wait(self, slot: Slot) -> None:
        """Whose packet is counted waits for others, so it asks less and less often."""
        self._stop_waiting(slot)
        slot.level = 0 if slot.seen is None else min(slot.transmissions, _LEVELS) - 1
        self._waiting[slot.level][slot] = None

    def _stop_waiting(self, slot: Slot) -> None:
        self._waiting[slot.level].pop(slot, None)

    # Answers.

    def _slow_down(self, slot: Slot, now: float) -> bool:
        slower = self.pace.lost(slot.unanswered_since, self._flight, now)
        self._stats.slowdowns += slower
        return slower

    def _earn(self, shares: int) -> None:
        """A rank that was late is taken for a loss as often as packets overtake each other. So those that were passed
        are sent again as long as that pays: each that was lost pays for as many in vain as other ranks' losses make."""
        self._credit = min(self._credit + shares, self._most_credit)

    def _measure(self, slot: Slot, completed: bool, now: float) -> None:
        """Takes in how long the slot's packet has waited, and what its answer says of those that were sent before."""
        timer, elapsed = self.timer, now - slot.sent_at
        once = slot.transmissions == 1
        # Who completes a round is answered at once. The others' time includes waiting for that rank, so it can only
        # show that the path is shorter than was thought.
        if once and (completed or elapsed < timer.estimate):
            timer.measure(elapsed)
        if once:
            timer.answered_after(elapsed)
        # A rank that was late does not send in the order in which the others have waited for it.
        if once and slot.sent_at > self._answered_through and (completed or slot.sent_at >= self._resumed_at):
            self._answered_through = slot.sent_at
            self._took = elapsed
        # The first answer to the last packet, which was a STATUS where one has come since.
        first = (slot.heard_at if slot.heard_at > slot.sent_at else now) - slot.sent_at
        if (once and completed) or timer.least <= first < timer.timeout:
            self._doublings = 0

    # Time.

    @property
    def _flight(self) -> int:
        return self._in_state[State.SENT] + self._in_state[State.ASKING]

    @property
    def _due_at(self) -> float:
        """When packets are to be sent again."""
        oldest = [next(iter(waiting)) for waiting in self._waiting if waiting]
        if not oldest:
            return NEVER
        return min(self._probe_at, *map(self._lost_at, oldest))

    def _lost_at(self, slot: Slot) -> float:
        """When the slot's packet is taken for lost, if it was passed."""
        if slot.sent_at >= self._answered_through or self._credit < _SHARES:
            return NEVER
        return slot.sent_at + (self._took + max(_REORDERING * self._took, 4 * self.timer.variation)) * (1 << slot.level)

    @property
    def _probe_at(self) -> float:
        polling = self._in_state[State.COUNTED] + self._in_state[State.POLLING] > 0
        return self._heard_at + self.timer.wait(self._doublings, polling=polling)

    def _look(self, now: float) -> None:
        due = list(self._take_lost(now))
        if due:
            lost = sum(slot.in_network for slot in due)
            self._stats.slowdowns += self.pace.burst_lost(lost, self._flight, now)
        else:
            due = list(islice(chain.from_iterable(self._waiting), self._probes))
            self._probing = True
            if self._probes < len(self._slots):
                self._probes *= 2
            self._doublings += 1
        for slot in due:
            self._line_up(slot, now)

    def _take_lost(self, now: float) -> Iterator[Slot]:
        for waiting in self._waiting:
            for slot in waiting:
                if self._lost_at(slot) > now:
                    break
                self._credit -= _SHARES
                yield slot
