# SPDX-License-Identifier: Apache-2.0
"""The worker's state machine: packets and a clock in, packets and results out. docs/protocol.md explains why.

An operation uses some slots of the job, each of which goes through rounds of its own:

    announce: key of the first non-zero block in every lane, no values
    RESULT names the next block of each lane and its exponent, the same for all workers
    send the values of those that are not zero here, and the key of the block after them
    RESULT carries their sums, and names the next ...
    RESULT names no block: the slot is finished and begins the next operation

One packet a slot is on its way; the same bytes are sent again until its RESULT comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.errors import JobAborted, MismatchError
from p4reduce.protocol.constants import NO_KEY, NOBODY, Op
from p4reduce.protocol.membership import Membership
from p4reduce.protocol.numbers import Float32Numbers, Int32Numbers, Numbers
from p4reduce.protocol.operation import Operation, Task
from p4reduce.protocol.pacing import Pace
from p4reduce.protocol.packet import LANES_OF, NO_VALUES, Codec, Packet, ProtocolError
from p4reduce.protocol.stats import Stats
from p4reduce.protocol.timing import RetransmissionTimer, Timing

__all__ = ["Membership", "Operation", "Stats", "Timing", "Worker"]

_MAX_CARRIED_DOUBLINGS = 6
_NEVER = float("inf")
_NO_LIMIT = 0
_SEQ_MASK = 0xFFFFFFFF


class _Slot:
    """One slot: its round, and what of the task its streams have sent."""

    __slots__ = (
        "active",
        "agreed",
        "agreed_exponents",
        "announced",
        "deadline",
        "doublings",
        "first_sent_at",
        "first_stream",
        "index",
        "least",
        "lined_up",
        "packet",
        "positions",
        "queue",
        "seen",
        "sent_at",
        "seq",
        "task",
        "transmissions",
    )

    def __init__(self, index: int, membership: Membership) -> None:
        self.index = index
        self.first_stream = index * membership.lanes
        self.queue: deque[Task] = deque()
        self.task: Task | None = None
        # The round: its number, the lanes that carry values, their blocks and exponents.
        self.seq = membership.first_seq
        self.active = 0
        self.agreed: list[int] = []
        self.agreed_exponents: list[int] = []
        # Each lane's next non-zero block: its place in the task's list of keys, and its key.
        self.positions: list[int] = []
        self.announced: list[int] = []
        # The least key that a RESULT may have in each lane, as blocks come in order.
        self.least: list[int] = []
        # The packet that waits for its RESULT.
        self.packet: bytes | None = None
        self.lined_up = False  # for its turn
        self.sent_at = self.first_sent_at = 0.0
        self.deadline = 0.0
        self.transmissions = 0
        self.doublings = 0  # of the timeout, carried from round to round
        self.seen: int | None = None  # the workers that the switch has seen in this round, from STATUS

    @property
    def under_way(self) -> bool:
        """Whether the packet was sent and waits for its RESULT."""
        return self.packet is not None and self.transmissions > 0

    @property
    def in_network(self) -> bool:
        return self.under_way and self.seen is None and not self.lined_up

    @property
    def asks(self) -> bool:
        """Whether the packet was sent again, or is about to be, and has no answer."""
        return self.packet is not None and self.seen is None and self.transmissions + self.lined_up > 1


class Worker:
    """One rank's side of the protocol.

    `now` is in seconds of any clock that does not go back. After every call, send what `take_packets` gives, and call
    `tick` no later than at `next_deadline`. Not thread-safe. `Operation.on_done` is called from within these calls,
    as their last act, and may submit.
    """

    def __init__(self, membership: Membership, *, timing: Timing | None = None) -> None:
        self.membership = membership
        self.stats = Stats()
        self.failure: BaseException | None = None
        self._codec = Codec(membership.lanes, membership.block_size)
        self._numbers: dict[Any, Numbers] = {
            np.dtype(np.float32): Float32Numbers(membership.world_size),
            np.dtype(np.int32): Int32Numbers(),
        }
        self._streams = membership.slots * membership.lanes
        self._all_lanes = range(membership.lanes)
        self._here = (1 << len(membership.peers or range(membership.world_size))) - 1
        self._worker = membership.worker
        self._slots = [_Slot(index, membership) for index in range(membership.slots)]
        self._timer = RetransmissionTimer(timing or Timing())
        self._pace = Pace(self._timer, membership.slots)
        self._line: deque[_Slot] = deque()  # those whose packets wait for their turn
        self._counter = 0
        self._tasks: dict[int, Task] = {}  # those not done, by counter
        self._outbox: list[bytes] = []
        self._earliest = _NEVER  # no deadline is before this
        self._polling: set[_Slot] = set()
        # When the last round ended, and when the packet was sent that is the latest of those known to be answered.
        self._progress_at = self._answered_through = -_NEVER
        # While no round ends: how many packets may ask at a time, and when the next may.
        self._askers = _NO_LIMIT
        self._held_until = -_NEVER
        self._released = False  # from that, as many packets seem to be lost

    # What the engine calls.

    def hello(self, nonce: int) -> bytes:
        """The HELLO datagram that shows the controller, through the switch, where this rank is."""
        m = self.membership
        keys = [nonce & 0xFFFFFFFF] + [NO_KEY] * (m.lanes - 1)
        return self._codec.encode(Packet(Op.HELLO, m.job, m.generation, m.rank, fingerprint=nonce >> 32, keys=keys))

    @property
    def idle(self) -> bool:
        """Whether every operation that was submitted is done."""
        return not self._tasks

    def submit(self, operation: Operation, now: float) -> None:
        """Queues an operation; each slot begins it when it has finished the former. Scans the data at once."""
        if self.failure is not None:
            operation.finish(self.failure)
            return
        task = Task(operation, self._counter, self.membership, self._numbers[operation.data.dtype])
        self._counter += 1
        self._tasks[task.counter] = task
        self.stats.blocks_skipped += task.blocks.count - task.dealing.nonzero
        for slot in self._slots[: task.slots]:
            slot.queue.append(task)
            if slot.task is None:
                self._announce(slot, now)

    def receive(self, payload: bytes | bytearray | memoryview, now: float) -> None:
        """Takes one UDP payload. What is malformed, not for this rank or of an earlier round is only counted."""
        self.stats.packets_received += 1
        self.stats.bytes_received += len(payload)
        try:
            packet = self._codec.decode(payload)
        except ProtocolError:
            self.stats.foreign += 1
            return
        if packet.job != self.membership.job:
            self.stats.foreign += 1
        elif packet.generation != self.membership.generation:
            self.stats.stale += 1
        elif packet.op == Op.RESULT or packet.op == Op.STATUS:
            index = packet.slot >> 1
            slot = self._slots[index] if index < len(self._slots) else None
            if slot is None or packet.slot & 1 != packet.seq & 1:
                self.stats.foreign += 1
            elif self.failure is not None or not slot.under_way or packet.seq != slot.seq:
                self.stats.stale += 1
            elif packet.op == Op.STATUS:
                self._status(slot, packet, now)
            else:
                self._result(slot, packet, now)
        elif packet.op == Op.ERROR:
            self._mismatch(packet)
        elif packet.op == Op.ABORT:
            self._aborted(packet)
        else:
            self.stats.foreign += 1

    def tick(self, now: float) -> None:
        """Sends again what has waited too long for its answer, and what has its turn."""
        if now >= self._earliest:
            self._look_for_losses(now)
        while self._line:
            slot = self._line[0]
            goes = slot.packet is not None and slot.deadline == _NEVER  # else a STATUS came meanwhile, or the end
            if goes and not self._pace.turn(now):
                return
            self._line.popleft()
            slot.lined_up = False
            if goes:
                self._transmit(slot, now)
            elif slot.packet is not None:
                self._earliest = min(self._earliest, slot.deadline)

    def _look_for_losses(self, now: float) -> None:
        self._earliest = _NEVER
        asking = sum(slot.asks for slot in self._slots)
        if self._released:
            lost = sum(slot.in_network and slot.deadline <= now for slot in self._slots)
            self.stats.slowdowns += self._pace.burst_lost(lost, self._flight(), now)
        self._released = False
        for slot in self._slots:
            if slot.packet is None or slot.lined_up:
                continue
            if slot.deadline <= now and slot.seen is None and self._in_queue(slot, now):
                slot.deadline = self._progress_at + self._timer.timeout
            elif slot.deadline <= now and slot.transmissions == 1 and self._held(asking, now):
                self._earliest = min(self._earliest, self._held_until)
                continue
            elif slot.deadline <= now:
                asking += slot.transmissions == 1
                self._line_up(slot, now)
            self._earliest = min(self._earliest, slot.deadline)

    def take_packets(self) -> list[bytes]:
        """The UDP payloads to send to the switch, in order."""
        packets, self._outbox = self._outbox, []
        self.stats.packets_sent += len(packets)
        self.stats.bytes_sent += sum(map(len, packets))
        return packets

    def next_deadline(self) -> float | None:
        """When to call `tick` next, or None for not before a packet or an operation comes."""
        deadline = min(self._earliest, self._pace.next) if self._line else self._earliest
        return None if deadline == _NEVER else deadline

    def awaited(self) -> tuple[int, ...]:
        """Ranks that the switch, when last asked, had not heard of in rounds under way; () if it was not asked.

        Where it has heard of all of its own, the ranks of other switches: it cannot tell which of them.
        """
        missing = 0
        elsewhere: tuple[int, ...] = ()
        for slot in self._slots:
            if slot.packet is not None and slot.seen is not None:
                missing |= self._here & ~slot.seen
                elsewhere = self.membership.elsewhere
        return self.membership.ranks(missing) or elsewhere

    def fail(self, error: BaseException) -> None:
        """Ends all operations, and those yet to come, with `error`; the first failure stays."""
        self._end(error)

    # Rounds.

    def _announce(self, slot: _Slot, now: float) -> None:
        """Begins the slot's next task, if there is one."""
        if not slot.queue:
            return
        slot.task = task = slot.queue.popleft()
        starts = task.dealing.starts
        slot.positions = starts[slot.first_stream : slot.first_stream + self.membership.lanes]
        slot.announced = [task.dealing.keys[position] for position in slot.positions]
        slot.least = [0] * self.membership.lanes
        slot.active = 0
        slot.agreed = []
        slot.agreed_exponents = []
        self._send(slot, task, 0, NO_VALUES, now)

    def _result(self, slot: _Slot, packet: Packet, now: float) -> None:
        task = slot.task
        assert task is not None
        if (
            packet.fingerprint != task.fingerprint
            or packet.active != slot.active
            or packet.present != slot.active
            or not self._plausible(slot, task, packet.keys)
        ):
            self.stats.foreign += 1
            return
        self._answered(slot, packet, now)
        if slot.active:
            task.blocks.scatter(slot.agreed, task.numbers.dequantise(packet.values, slot.agreed_exponents))
            self.stats.blocks_received += len(slot.agreed)

        slot.seq = slot.seq + 1 & _SEQ_MASK
        own = self._agree(slot, task, packet.keys)
        if slot.active:
            present, values = self._contribution(slot, task, own)
            self._send(slot, task, present, values, now)
        else:
            self._finished(slot, task, now)

    def _plausible(self, slot: _Slot, task: Task, keys: Sequence[int]) -> bool:
        """Whether these can be minimums over workers of which this is one."""
        for lane, least, key, announced in zip(self._all_lanes, slot.least, keys, slot.announced, strict=True):
            if not least <= key <= announced:
                return False
            if key != NO_KEY and (key >> 8) * self._streams + slot.first_stream + lane >= task.blocks.count:
                return False
        return True

    def _agree(self, slot: _Slot, task: Task, keys: Sequence[int]) -> int:
        """Begins the round of the blocks that the keys name. Returns the lanes whose block is not zero here."""
        active = own = 0
        slot.agreed = []
        slot.agreed_exponents = []
        for lane, key in enumerate(keys):
            slot.least[lane] = min((key | 0xFF) + 1, NO_KEY)
            if key == NO_KEY:
                continue
            active |= 1 << lane
            slot.agreed.append((key >> 8) * self._streams + slot.first_stream + lane)
            slot.agreed_exponents.append(255 - (key & 255))
            if key >> 8 == slot.announced[lane] >> 8 and slot.announced[lane] != NO_KEY:
                own |= 1 << lane
                slot.positions[lane] += 1
                slot.announced[lane] = task.dealing.keys[slot.positions[lane]]
        slot.active = active
        return own

    def _contribution(self, slot: _Slot, task: Task, own: int) -> tuple[int, npt.NDArray[Any]]:
        """The lanes to send in this round, and their values."""
        absent = LANES_OF[slot.active & ~own]
        present = own
        for lane in absent[: max(0, len(absent) - self.membership.max_absent_lanes)]:
            present |= 1 << lane  # zeros, so that the switch has room for the sums
        self.stats.blocks_sent += own.bit_count()
        self.stats.blocks_filled += present.bit_count() - own.bit_count()
        if not present:
            return 0, NO_VALUES
        blocks, exponents = slot.agreed, slot.agreed_exponents
        if present != slot.active:
            places = [place for place, lane in enumerate(LANES_OF[slot.active]) if present >> lane & 1]
            blocks = [blocks[place] for place in places]
            exponents = [exponents[place] for place in places]
        return present, task.numbers.quantise(task.blocks.gather(blocks), exponents)

    def _finished(self, slot: _Slot, task: Task, now: float) -> None:
        slot.task = None
        self._announce(slot, now)
        task.slots_left -= 1
        if task.slots_left == 0:
            del self._tasks[task.counter]
            if not self._tasks:
                self._earliest = _NEVER
                self._released = False
            self.stats.operations += 1
            task.operation.finish()

    def _send(self, slot: _Slot, task: Task, present: int, values: npt.NDArray[Any], now: float) -> None:
        m = self.membership
        half = slot.index << 1 | slot.seq & 1
        slot.packet = self._codec.encode(
            Packet(
                Op.DATA,
                m.job,
                m.generation,
                self._worker,
                half,
                slot.seq,
                task.fingerprint,
                slot.active,
                present,
                slot.announced,
                values,
            )
        )
        slot.transmissions = 0
        self._line_up(slot, now)

    def _line_up(self, slot: _Slot, now: float) -> None:
        """Sends the slot's packet, or lets it wait for its turn."""
        if not self._line and self._pace.turn(now):
            self._transmit(slot, now)
            return
        slot.deadline = _NEVER
        if not slot.lined_up:  # else its newer packet takes the place of the older
            slot.lined_up = True
            self._line.append(slot)

    def _transmit(self, slot: _Slot, now: float) -> None:
        assert slot.packet is not None
        slot.sent_at = now
        if slot.transmissions == 0:
            slot.first_sent_at = now
        else:
            self.stats.retransmissions += 1
        slot.transmissions += 1
        slot.deadline = now + self._patience(slot)
        self._earliest = min(self._earliest, slot.deadline)
        self._outbox.append(slot.packet)

    # Timers.

    def _patience(self, slot: _Slot) -> float:
        doublings = slot.doublings + slot.transmissions - 1
        return self._timer.wait(doublings, polling=slot.seen is not None)

    def _in_queue(self, slot: _Slot, now: float) -> bool:
        """Whether the packet may still be on its way, behind others: answers come, but none to a later packet."""
        return now < self._progress_at + self._timer.timeout and self._answered_through <= slot.sent_at

    def _held(self, asking: int, now: float) -> bool:
        """Whether a packet that was sent once is to wait, when `asking` were sent again and have no answer.

        Where no round ends, who is late is likelier than a loss, so a few packets ask first: one, and one more with
        each time-out that nothing answers.
        """
        if self._askers == _NO_LIMIT:
            if now < self._progress_at + self._timer.timeout:
                return False
            self._askers = 1
        if now < self._held_until:
            return True
        if asking < self._askers:
            return False
        self._askers += 1
        self._held_until = now + self._timer.timeout
        return True

    def _release(self, slot: _Slot, completed: bool, now: float) -> None:
        # An answer at once to a packet that asked, which the switch had not seen before: others are lost as well, but
        # for those whose answers come with this one.
        round_trip = self._timer.smoothed
        asked = self._askers != _NO_LIMIT and slot.asks
        if asked and completed and round_trip is not None and now < slot.sent_at + 2 * round_trip:
            self._answered_through = slot.sent_at
            self._held_until = self._earliest = now + round_trip
            self._released = True
        self._askers = _NO_LIMIT

    def _flight(self) -> int:
        return sum(slot.in_network for slot in self._slots)

    def _answered(self, slot: _Slot, packet: Packet, now: float) -> None:
        self.stats.rounds += 1
        self._progress_at = now
        self._pace.answered()
        completed = packet.worker == self._worker  # or it answers this rank alone
        lost = completed and self._askers == _NO_LIMIT  # else another rank was late, or the switch
        self._release(slot, completed, now)
        if slot.transmissions == 1:
            self._answered_through = max(self._answered_through, slot.sent_at)
            # Who completes a round is answered at once. The others' time includes waiting for that rank, so it can only
            # show that the path is shorter than was thought.
            elapsed = now - slot.sent_at
            if completed or elapsed < self._timer.estimate:
                self._timer.measure(elapsed)
            if completed or elapsed < self._timer.timeout:
                slot.doublings = 0
        elif slot.seen is None:
            # Not measurable (Karn), so the longer timeout stays until a packet is answered without being sent again.
            slot.doublings = min(slot.doublings + 1, _MAX_CARRIED_DOUBLINGS)
            if lost:
                self.stats.slowdowns += self._pace.lost(slot.first_sent_at, self._flight(), now)
        slot.packet = None
        slot.seen = None
        if self._polling:
            # Stragglers are back: whoever waits for a RESULT now may have lost it.
            self._polling.discard(slot)
            self._hasten((one for one in self._polling if not one.lined_up), now + self._timer.timeout)
            self._polling.clear()

    def _status(self, slot: _Slot, packet: Packet, now: float) -> None:
        """The packet was counted, so nothing is lost: from now on, only ask gently whether the round has ended."""
        self.stats.statuses += 1
        # Only packets that are sent again are answered so. A leaf tells all its workers what its parent told of one's.
        if slot.transmissions == 2 and packet.worker == self._worker:
            self._timer.measure(now - slot.sent_at)
        if self._askers != _NO_LIMIT and slot.asks:
            self._askers = 1
            self._held_until = now + self._timer.timeout
        slot.seen = packet.keys[0]
        self._polling.add(slot)
        self._hasten((slot,), now + self._patience(slot))

    def _hasten(self, slots: Iterable[_Slot], deadline: float) -> None:
        for slot in slots:
            if deadline < slot.deadline:
                slot.deadline = deadline
                self._earliest = min(self._earliest, deadline)

    # Ends of the job.

    def _mismatch(self, packet: Packet) -> None:
        if self.failure is not None:
            return
        index = packet.slot >> 1
        held, other = packet.fingerprint, packet.keys[0]
        tasks = list(self._tasks.values())
        involved = [task for task in tasks if task.fingerprint in (held, other)] or tasks[:1]
        here = ", ".join(f"operation {t.counter}, {t.operation!r}, has {t.fingerprint:08x}" for t in involved)
        named = self.membership.ranks(1 << packet.worker)
        who = f"rank {named[0]}" if named else "a rank at another switch"
        error = MismatchError(
            f"ranks call different operations: {who} came with fingerprint {other:08x}, those before it "
            f"with {held:08x} (slot {index}, round {packet.seq}). On this rank, {self.membership.rank}, "
            f"{here or 'no operation is under way'}. Check that all ranks call the same collectives in the same "
            "order, with the same number of elements, dtype and reduction"
        )
        # Only packets that differ make the switch say so, and whose do is not known here. All go on, lest another rank
        # whose ERROR was lost waits for ever.
        self._end(error, insist=True)

    def _aborted(self, packet: Packet) -> None:
        m = self.membership
        if packet.worker == NOBODY:
            why = "the controller has ended it, and no rank is to blame"
        else:
            why = f"{f'rank {packet.worker}' if packet.worker != m.rank else f'this rank, {m.rank},'} has left it"
        message = f"job {m.job} was aborted: {why} (reason {packet.keys[0]})"
        self._end(JobAborted(message, rank=None if packet.worker == NOBODY else packet.worker))

    def _end(self, error: BaseException, *, insist: bool = False) -> None:
        """Fails everything. Packets that wait for answers are still sent, where `insist`."""
        if self.failure is not None:
            return
        self.failure = error
        tasks, self._tasks = self._tasks, {}
        for slot in self._slots:
            slot.queue.clear()
            slot.task = None
            if not insist:
                slot.packet = None
        self._polling.clear()
        if not insist:
            self._earliest = _NEVER
        for task in tasks.values():
            task.operation.finish(error)
