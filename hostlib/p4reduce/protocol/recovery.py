# SPDX-License-Identifier: Apache-2.0
"""When a packet that has no answer is sent again. docs/protocol.md explains why, in section 3.

Each slot's packet is in a `State`, and the job in a `Mode`:

    FLOWING ── what is due was sent when the last round had ended, a time-out ago ──▶ PROBING
    PROBING ── a round ends, answered at once to a packet that asked ──▶ RELEASED
    PROBING ── a round ends otherwise ──▶ FLOWING
    RELEASED ── a round trip later, when all that is due is sent again, or nothing is under way ──▶ FLOWING
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import Enum, auto

from p4reduce.protocol.deadlines import Deadlines
from p4reduce.protocol.pacing import Pace
from p4reduce.protocol.sending import Sending
from p4reduce.protocol.slot import NEVER, Slot, State
from p4reduce.protocol.stats import Stats
from p4reduce.protocol.timing import RetransmissionTimer, Timing

_MAX_CARRIED_DOUBLINGS = 6


class Mode(Enum):
    """Of the job."""

    FLOWING = auto()
    """Rounds end: what is due is sent again."""
    PROBING = auto()
    """No round ends, so a rank is late, likelier than all is lost: few packets ask, others are held back."""
    RELEASED = auto()
    """The answer to one that asked says that the others are lost as well, but for those answered in a round trip."""


class Recovery:
    """Sends the packets of slots, and sends them again until they are answered."""

    def __init__(self, slots: Sequence[Slot], timing: Timing, stats: Stats) -> None:
        self.timer = RetransmissionTimer(timing)
        self.pace = Pace(self.timer, len(slots))
        self.sending = Sending(self.pace, stats)
        self._stats = stats
        self._slots = slots
        self._in_state = [len(slots), *[0] * (len(State) - 1)]  # how many packets
        self._deadlines = Deadlines(slots)
        # When slots are looked at next. Only a look makes it later, so what is answered meanwhile does not.
        self._look_at = NEVER
        self._mode = Mode.FLOWING
        # When the last round ended, and when the packet was sent that is the latest of those known to be answered.
        self._progress_at = self._answered_through = -NEVER
        # In PROBING: how many packets may ask at a time, when the next may, and those that may not yet.
        self._askers = 0
        self._held_until = -NEVER
        self._held: list[Slot] = []
        self._polled: set[Slot] = set()  # those whose rounds wait for stragglers

    # What the worker calls.

    def send(self, slot: Slot, packet: bytes, now: float) -> None:
        """Sends the packet of the slot's next round."""
        slot.packet = packet
        slot.transmissions = 0
        self._line_up(slot, now)

    def answered(self, slot: Slot, completed: bool, now: float) -> None:
        """The RESULT of the slot's packet has come. `completed`: to the one that completed the round, or that asked."""
        self._stats.rounds += 1
        self._progress_at = now
        self.pace.answered()
        lost = completed and self._mode is not Mode.PROBING  # else another rank was late, or the switch
        if self._mode is Mode.PROBING:
            self._end_probing(slot, completed, now)
        if slot.transmissions == 1:
            self._answered_first(slot, completed, now)
        elif slot.seen is None:
            # Not measurable (Karn), so the longer timeout stays until a packet is answered without being sent again.
            slot.doublings = min(slot.doublings + 1, _MAX_CARRIED_DOUBLINGS)
            if lost:
                self._stats.slowdowns += self.pace.lost(slot.first_sent_at, self._flight, now)
        self._forget(slot)
        if self._polled:
            # Stragglers are back: whoever waits for a RESULT now may have lost it.
            self._polled.discard(slot)
            self._hasten((one for one in self._polled if not one.lined_up), now + self.timer.timeout)
            self._polled.clear()

    def counted(self, slot: Slot, seen: int, own: bool, now: float) -> None:
        """A STATUS says that nothing is lost: from now on, the slot only asks gently whether the round has ended.

        seen: the workers counted so far. own: whether it answers this rank's packet: a leaf tells all its workers what
        its parent told of one's.
        """
        self._stats.statuses += 1
        if slot.transmissions == 2 and own:  # only packets that are sent again are answered so
            self.timer.measure(now - slot.sent_at)
        if self._mode is Mode.PROBING and slot.asks:
            self._askers = 1
            self._held_until = now + self.timer.timeout
        slot.seen = seen
        slot.heard_at = now
        self._enter(slot, State.COUNTED)
        self._polled.add(slot)
        self._hasten((slot,), now + self._patience(slot))

    def tick(self, now: float) -> None:
        """Sends again what has waited too long for its answer, and what has its turn."""
        if now >= self._look_at:
            self._look(now)
        while (slot := self.sending.take_turn(now)) is not None:
            if slot.waits_for_turn:
                self._transmit(slot, now)
            else:  # a STATUS came meanwhile, or the end
                self._watch(slot)

    @property
    def next_deadline(self) -> float:
        """When to call `tick` next."""
        return min(self._look_at, self.sending.next_turn)

    def rest(self) -> None:
        """No operation is under way."""
        self._look_at = NEVER
        if self._mode is Mode.RELEASED:
            self._mode = Mode.FLOWING

    def end(self, *, insist: bool) -> None:
        """The job has ended. Packets that wait for answers are still sent, where `insist`."""
        self._polled.clear()
        if not insist:
            self._look_at = NEVER
            for slot in self._slots:
                self._forget(slot)

    # Sending.

    def _line_up(self, slot: Slot, now: float) -> None:
        """Sends the slot's packet, or lets it wait for its turn."""
        if self.sending.may_go(now):
            self._transmit(slot, now)
            return
        slot.deadline = NEVER
        self._enter(slot, State.NEW if slot.transmissions == 0 else State.AGAIN if slot.seen is None else State.POLLING)
        self.sending.line_up(slot)

    def _transmit(self, slot: Slot, now: float) -> None:
        slot.sent_at = now
        if slot.transmissions == 0:
            slot.first_sent_at = slot.heard_at = now
        else:
            self._stats.retransmissions += 1
        slot.transmissions += 1
        if slot.seen is not None:
            self._enter(slot, State.COUNTED)
        else:
            self._enter(slot, State.SENT if slot.transmissions == 1 else State.ASKING)
        slot.deadline = now + self._patience(slot)
        self._watch(slot)
        self.sending.put(slot.packet)

    def _forget(self, slot: Slot) -> None:
        self._enter(slot, State.IDLE)
        slot.deadline = NEVER
        slot.seen = None

    def _enter(self, slot: Slot, state: State) -> None:
        self._in_state[slot.state] -= 1
        self._in_state[state] += 1
        slot.state = state

    # Answers.

    def _answered_first(self, slot: Slot, completed: bool, now: float) -> None:
        self._answered_through = max(self._answered_through, slot.sent_at)
        # Who completes a round is answered at once. The others' time includes waiting for that rank, so it can only
        # show that the path is shorter than was thought.
        elapsed = now - slot.sent_at
        if completed or elapsed < self.timer.estimate:
            self.timer.measure(elapsed)
        if completed or elapsed < self.timer.timeout:
            slot.doublings = 0

    def _end_probing(self, slot: Slot, completed: bool, now: float) -> None:
        # An answer at once to a packet that asked, which the switch had not seen before: others are lost as well, but
        # for those whose answers come with this one.
        self._mode = Mode.FLOWING
        round_trip = self.timer.smoothed
        if slot.asks and completed and round_trip is not None and now < slot.sent_at + 2 * round_trip:
            self._mode = Mode.RELEASED
            self._answered_through = slot.sent_at
            self._held_until = self._look_at = now + round_trip

    # Time.

    def _patience(self, slot: Slot) -> float:
        doublings = slot.doublings + slot.transmissions - 1
        return self.timer.wait(doublings, polling=slot.seen is not None)

    def _watch(self, slot: Slot) -> None:
        """Sees to it that the slot is looked at when it is due."""
        self._deadlines.add(slot)
        self._look_at = min(self._look_at, slot.deadline)

    def _hasten(self, slots: Iterable[Slot], deadline: float) -> None:
        for slot in slots:
            if deadline < slot.deadline:
                slot.deadline = deadline
                self._watch(slot)

    @property
    def _flight(self) -> int:
        return self._in_state[State.SENT] + self._in_state[State.ASKING]

    def _look(self, now: float) -> None:
        """Sends again what has waited too long for its answer."""
        due = self._take_due(now)
        if self._mode is Mode.RELEASED:
            self._mode = Mode.FLOWING
            lost = sum(slot.in_network for slot in due)
            self._stats.slowdowns += self.pace.burst_lost(lost, self._flight, now)
        asking = self._in_state[State.AGAIN] + self._in_state[State.ASKING]
        for slot in due:
            if slot.seen is None and self._in_queue(slot, now):
                slot.deadline = self._progress_at + self.timer.timeout
                self._deadlines.add(slot)
            elif slot.transmissions == 1 and self._has_to_wait(asking, now):
                self._held.append(slot)
            else:
                asking += slot.transmissions == 1
                self._line_up(slot, now)
        self._look_at = min(self._deadlines.first(), self._held_until if self._held else NEVER)

    def _take_due(self, now: float) -> list[Slot]:
        held, self._held = self._held, []
        for slot in held:
            self._deadlines.add(slot)
        return self._deadlines.take_due(now)

    def _in_queue(self, slot: Slot, now: float) -> bool:
        """Whether the packet may still be on its way, behind others: answers come, but none to a later packet."""
        return now < self._progress_at + self.timer.timeout and self._answered_through <= slot.sent_at

    def _has_to_wait(self, asking: int, now: float) -> bool:
        """Whether a packet that was sent once is held back, when `asking` were sent again and have no answer.

        Where no round ends, who is late is likelier than a loss, so a few packets ask first: one, and one more with
        each time-out that nothing answers.
        """
        if self._mode is Mode.FLOWING:
            if now < self._progress_at + self.timer.timeout:
                return False
            self._mode = Mode.PROBING
            self._askers = 1
        if now < self._held_until:
            return True
        if asking < self._askers:
            return False
        self._askers += 1
        self._held_until = now + self.timer.timeout
        return True
