# SPDX-License-Identifier: Apache-2.0
"""The worker's state machine: packets and a clock in, packets and results out. docs/protocol.md explains why.

An operation uses some slots of the job, each of which goes through rounds of its own:

    1. The worker announces the key of the first non-zero block in every lane, without values.
    2. The RESULT names the next block of each lane and its exponent, the same for all workers.
    3. The worker sends the values of those blocks that are not zero here, and the key of the block after them.
    4. The RESULT carries their sums and names the next blocks. Steps 3 and 4 repeat.
    5. If a RESULT names no block, the slot has finished, and begins the next operation.

If the blocks are integers and fit into one packet, there is nothing to agree on: the first round carries them, and is
the only one. A few floats are sent as such integers, too: see `gather`.

Each slot has one packet on its way, and the same bytes are sent again until its RESULT comes. `rounds` defines the
contents of packets, `recovery` when they are sent.

Between two operations the controller may give the job fewer slots, or as many again, elsewhere in the switch.

If an aggregator is lost, its slots go on at another one, which has empty registers. Ranks are at most one round apart,
since a round's RESULT needs a packet of every rank. So each slot keeps two packets: this round's, and that of the round
before. All ranks suspend these slots, learn the least round of each slot, and send their packet of that round again. A
rank that had this round's RESULT does not take the sums twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from p4reduce.protocol.constants import MAX_AGGREGATORS, Op
from p4reduce.protocol.job_errors import aborted, altered, implausible, mismatch
from p4reduce.protocol.membership import Membership
from p4reduce.protocol.numbers import Numbers, Wire, numbers_for
from p4reduce.protocol.operation import Operation, Task
from p4reduce.protocol.packet import Codec, Packet, ProtocolError, hello_of
from p4reduce.protocol.recovery import Recovery
from p4reduce.protocol.rounds import Rounds
from p4reduce.protocol.scanning import SCAN_BLOCKS
from p4reduce.protocol.slot import NEVER, Slot
from p4reduce.protocol.stats import Stats
from p4reduce.protocol.timing import RetransmissionTimer, Timing

__all__ = ["Membership", "Operation", "Stats", "Timing", "Worker"]


class Worker:
    """One rank's side of the protocol.

    `now` is in seconds of any clock that does not go back. After every call, send the packets of `take_packets`, and
    call `tick` no later than at `next_deadline`. Not thread-safe. These calls call `Operation.on_done` as their last
    act, and it may submit operations.
    """

    def __init__(self, membership: Membership, *, timing: Timing | None = None) -> None:
        self.membership = membership
        """The membership, with the number of slots that are used now."""
        self.stats = Stats()
        self.failure: BaseException | None = None
        self._codec = Codec(membership.lanes, membership.block_size)
        self._numbers: dict[tuple[Any, Wire], Numbers] = {}
        self._worker = membership.worker
        self._here = (1 << len(membership.peers or membership.leaders)) - 1
        self._assigned = membership.slots
        self._timer = RetransmissionTimer(timing or Timing())
        self._aggregators = 1
        self._counter = 0
        self._tasks: dict[int, Task] = {}  # tasks that are not done, by counter
        self._waiting: list[tuple[int, int]] = []  # counter and slot of each packet that waits for the scan
        self._scan_at = NEVER
        self._set_out()

    def _set_out(self) -> None:
        """Put all slots at the job's first round. The estimate of the round trip is kept."""
        self._slots = [Slot(index, self.membership) for index in range(self.membership.slots)]
        self._rounds = Rounds(self.membership, self._codec, self.stats)
        self._recovery = Recovery(self._slots, len(self.membership.leaders), self._aggregators, self._timer, self.stats)

    # Calls of the engine.

    def hello(self, nonce: int) -> bytes:
        """Return the HELLO datagram that shows the controller, through the switch, where this rank is."""
        return hello_of(self.membership, nonce)

    @property
    def idle(self) -> bool:
        """Whether every operation that was submitted is done."""
        return not self._tasks

    @property
    def submitted(self) -> int:
        """The number of operations submitted so far."""
        return self._counter

    def next_first_seq(self) -> int:
        """Return an even round number that no slot has reached. The worker must be idle.

        Ranks that have executed the same operations get the same number.
        """
        first = self._slots[0].seq
        furthest = max((slot.seq - first + 2**31) % 2**32 - 2**31 for slot in self._slots)
        return (first + furthest + 1 & ~1) % 2**32

    def begin_anew(self, slots: int, first_seq: int) -> None:
        """Continue with the first `slots` of the slots that the job was assigned, each from round `first_seq`.

        Every rank calls this after the same operation, when the switch's slots have been reset. Raises ValueError if an
        operation is under way or an argument is out of range.
        """
        if not self.idle:
            raise ValueError("slots can change only between two operations, and one is under way")
        least = self.next_first_seq()
        if not 0 < slots <= self._assigned:
            raise ValueError(f"slots are {slots}: accepted are 1 to {self._assigned}, as many as were assigned")
        if first_seq % 2 or not 0 <= first_seq < 2**32 or (first_seq - least) % 2**32 >= 2**31:
            raise ValueError(f"first_seq is {first_seq}: accepted are even numbers that do not come before {least}")
        self.membership = replace(self.membership, slots=slots, first_seq=first_seq)
        self._set_out()

    def set_aggregators(self, aggregators: int) -> None:
        """Set over how many aggregators the slots are striped: packets of different ones may overtake each other.

        Raises ValueError if there was an operation, or the number is out of range.
        """
        if not 0 < aggregators <= MAX_AGGREGATORS:
            raise ValueError(f"aggregators are {aggregators}: accepted are 1 to {MAX_AGGREGATORS}")
        if self._counter:
            raise ValueError(f"aggregators are {aggregators} after an operation: accepted before the first one")
        self._aggregators = aggregators
        self._set_out()

    def suspend(self, aggregator: int) -> list[int]:
        """Send nothing in the slots of one of the aggregators until `rewind`. Return the round of each of them."""
        slots = self._slots[aggregator :: self._aggregators]
        for slot in slots:
            slot.suspended = True
            self._recovery.withdraw(slot)
        return [slot.seq for slot in slots]

    def rewind(self, aggregator: int, rounds: Sequence[int], now: float) -> None:
        """Resume the slots of an aggregator, which is elsewhere now, from these rounds: each the least of all ranks'.

        Raises ValueError if a slot cannot go back to its round.
        """
        slots = self._slots[aggregator :: self._aggregators]
        if len(rounds) != len(slots):
            raise ValueError(f"rounds are {len(rounds)}: accepted are {len(slots)}, one for each of the slots")
        for slot, seq in zip(slots, rounds, strict=True):
            if seq != slot.seq and (seq != slot.seq - 1 & 0xFFFFFFFF or not slot.previous):
                raise ValueError(
                    f"the round of slot {slot.index} is {seq}: accepted are {slot.seq} and the round before, if the "
                    "slot has sent a packet in it"
                )
        self._recovery.begin_path(now)
        for slot, seq in zip(slots, rounds, strict=True):
            self._recovery.withdraw(slot)
            slot.suspended = False
            slot.repeating = seq != slot.seq
            if slot.outgoing and self.failure is None:
                self._recovery.send(slot, now)

    def submit(self, operation: Operation, now: float) -> int:
        """Queue an operation, and return how many slots it uses. Each slot begins it after the operation before."""
        if self.failure is not None:
            operation.finish(self.failure)
            return 0
        kind = operation.data.dtype, operation.wire
        if kind not in self._numbers:
            self._numbers[kind] = numbers_for(kind[0], self.membership.world_size, operation.wire)
        task = Task(operation, self._counter, self.membership, self._numbers[kind])
        self._counter += 1
        self._tasks[task.counter] = task
        for slot in self._slots[: task.slots]:
            slot.queue.append(task)
            if slot.task is None:
                self._begin(slot, now)
        return task.slots

    def receive(self, payload: bytes | bytearray | memoryview, now: float, marked: bool = False) -> None:
        """Take one UDP payload. If it is malformed, for another job or of an earlier round, only count it.

        marked: whether a router has marked its IP packet (CE, RFC 3168).
        """
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
            self._answer(packet, marked, now)
        elif packet.op == Op.ERROR:
            # The switch sends an ERROR only for packets that differ, and this rank does not know whose do. So all ranks
            # go on retransmitting: otherwise a rank whose ERROR was lost would wait for ever.
            if self.failure is None:
                index = packet.slot >> 1
                slot = self._slots[index] if index < len(self._slots) else None
                self._end(mismatch(self.membership, packet, list(self._tasks.values()), slot), insist=True)
        elif packet.op == Op.ABORT and packet.abort_secret == self.membership.abort_secret:
            self._end(aborted(self.membership, packet))
        else:
            self.stats.foreign += 1

    def tick(self, now: float) -> None:
        """Send packets that have their turn, and those that have waited too long for an answer. Then scan.

        The scan takes place only if packets wait for it, and has a bounded number of blocks.
        """
        self._recovery.tick(now)
        if self._waiting:
            self._scan(now)

    def take_packets(self) -> list[bytes]:
        """Return the UDP payloads to send to the switch, in order."""
        return self._recovery.sending.take_packets()

    def next_deadline(self) -> float | None:
        """Return when to call `tick` next: at once if packets wait for the scan, None if no timer runs."""
        deadline = min(self._recovery.next_deadline, self._scan_at)
        return None if deadline == NEVER else deadline

    def awaited(self) -> tuple[int, ...]:
        """Return the ranks that rounds under way waited for when the switch last sent a STATUS; () without a STATUS.

        If the switch has the packets of all its own ranks, these are the ranks of other switches: it cannot tell which.
        """
        missing = 0
        elsewhere: tuple[int, ...] = ()
        for slot in self._slots:
            if slot.counted is not None:
                missing |= self._here & ~slot.counted
                elsewhere = self.membership.elsewhere
        return self.membership.ranks(missing) or elsewhere

    def unanswered(self, now: float, timeout: float) -> int | None:
        """Return the half whose retransmitted packet has waited longest, if it had no answer for `timeout` seconds."""
        waiting = [slot for slot in self._slots if slot.was_sent_again]
        slot = min(waiting, key=lambda slot: slot.last_answer, default=None)
        return None if slot is None or now - slot.last_answer < timeout else slot.index << 1 | slot.outgoing_seq & 1

    def is_impossible(self, half: int, seq: int) -> bool:
        """Return whether no rank can be in that round yet, because this rank has not sent the round before it.

        Round numbers wrap around. As at switches, a round is later if it is up to 2^31 rounds ahead.
        """
        index = half >> 1
        return index < len(self._slots) and 1 < (seq - self._slots[index].seq) % 2**32 <= 2**31

    def fail(self, error: BaseException) -> None:
        """End all operations, and those yet to come, with `error`. Only the first failure counts."""
        self._end(error)

    # Rounds.

    def _answer(self, packet: Packet, marked: bool, now: float) -> None:
        """Take a RESULT or a STATUS."""
        index = packet.slot >> 1
        if index >= self._assigned or packet.slot & 1 != packet.seq & 1:
            self.stats.foreign += 1
            return
        if index >= len(self._slots):
            self.stats.stale += 1
            return
        slot = self._slots[index]
        if packet.seq != slot.outgoing_seq:
            self._recovery.on_late_answer(slot, packet.seq)
        if self.failure is not None or not slot.in_network or packet.seq != slot.outgoing_seq:
            self.stats.stale += 1
        elif packet.fingerprint != slot.outgoing_fingerprint:
            self.stats.foreign += 1
        elif packet.op == Op.STATUS:
            self._recovery.on_status(slot, packet.keys[0], packet.worker == self._worker, marked, now)
        elif slot.repeating:
            self._repeated(slot, packet, marked, now)
        else:
            self._result(slot, packet, marked, now)

    def _repeated(self, slot: Slot, packet: Packet, marked: bool, now: float) -> None:
        """Take the RESULT of a round whose sums this rank has already. The slot goes on with its own round."""
        self._recovery.on_result(slot, packet.worker == self._worker, marked, now)
        slot.repeating = False
        if slot.packet:
            self._recovery.send(slot, now)

    def _result(self, slot: Slot, packet: Packet, marked: bool, now: float) -> None:
        task = slot.task
        assert task is not None
        plausible = self._rounds.plausible(slot, task, packet.keys)
        if not plausible or not slot.active == packet.active == packet.present:  # it lacks the sums of these lanes
            self.stats.foreign += 1
            if not plausible and slot.transmissions > 1:  # otherwise it may have been corrupted on its way
                self._end(implausible(self.membership, packet), insist=True)
            return
        self._recovery.on_result(slot, packet.worker == self._worker, marked, now)
        if self._rounds.take_result(slot, task, packet):
            self._send_round(slot, task, now)
        else:
            self._finished(slot, task, now)

    def _begin(self, slot: Slot, now: float) -> None:
        """Begin the slot's next task, if there is one."""
        if slot.queue:
            task = slot.queue.popleft()
            self._rounds.announce(slot, task)
            self._send_round(slot, task, now)

    def _send_round(self, slot: Slot, task: Task, now: float) -> None:
        """Send the packet of the round that has begun, or let it wait for the scan."""
        packet = self._rounds.complete(slot, task)
        if packet is None and not self._waiting:  # otherwise those that wait come first
            task.scanning.more(slot.index)
            packet = self._rounds.complete(slot, task)
        if packet is not None:
            self._send(slot, packet, now)
        else:
            self._waiting.append((task.counter, slot.index))
            self._scan_at = now

    def _send(self, slot: Slot, packet: bytes, now: float) -> None:
        """Send the packet of the round, unless the slot is suspended or repeats the round before."""
        slot.packet = packet
        if not slot.suspended and not slot.repeating:
            self._recovery.send(slot, now)

    def _scan(self, now: float) -> None:
        """Continue the scan, in the order of tasks and then of slots.

        All ranks have this order, so the first slots are soon ready at each of them, and do not wait for other ranks.
        """
        budget = SCAN_BLOCKS
        still = []
        for counter, index in sorted(self._waiting):
            slot, task = self._slots[index], self._tasks[counter]
            while (packet := self._rounds.complete(slot, task)) is None and budget > 0:
                budget -= task.scanning.more(index)
            if packet is not None:
                self._send(slot, packet, now)
            else:
                still.append((counter, index))
        self._waiting = still
        self._scan_at = now if still else NEVER

    def _finished(self, slot: Slot, task: Task, now: float) -> None:
        if not task.finish():
            self._end(altered(self.membership, task), insist=True)
            return
        slot.task = None
        self._begin(slot, now)
        task.slots_left -= 1
        if task.slots_left == 0:
            del self._tasks[task.counter]
            self.stats.operations += 1
            self.stats.blocks_skipped += task.scanning.blocks_skipped
            task.operation.finish()

    def _end(self, error: BaseException, *, insist: bool = False) -> None:
        """End all operations with `error`. insist: whether packets without a RESULT are still sent again."""
        if self.failure is not None:
            return
        self.failure = error
        tasks, self._tasks = self._tasks, {}
        for slot in self._slots:
            slot.queue.clear()
            slot.task = None
        self._waiting = []
        self._scan_at = NEVER
        self._recovery.end(insist=insist)
        for task in tasks.values():
            task.operation.finish(error)
