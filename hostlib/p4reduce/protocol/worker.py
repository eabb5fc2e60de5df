# SPDX-License-Identifier: Apache-2.0
"""The worker's state machine: packets and a clock in, packets and results out. docs/protocol.md explains why.

An operation uses some slots of the job, each of which goes through rounds of its own:

    announce: key of the first non-zero block in every lane, no values
    RESULT names the next block of each lane and its exponent, the same for all workers
    send the values of those that are not zero here, and the key of the block after them
    RESULT carries their sums, and names the next ...
    RESULT names no block: the slot is finished and begins the next operation

Of integers whose blocks fit into one packet nothing has to be agreed on: the first round carries them, and is the only
one. Few floats are such integers, too: those of `gather`.

One packet a slot is on its way; the same bytes are sent again until its RESULT comes. `rounds` has what packets say,
`recovery` when they are sent.

Between two operations the job may come to have fewer slots, or as many again, somewhere else in the switch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from p4reduce.protocol.constants import Op
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

    `now` is in seconds of any clock that does not go back. After every call, send what `take_packets` gives, and call
    `tick` no later than at `next_deadline`. Not thread-safe. `Operation.on_done` is called from within these calls,
    as their last act, and may submit.
    """

    def __init__(self, membership: Membership, *, timing: Timing | None = None) -> None:
        self.membership = membership
        """With as many slots as are used now."""
        self.stats = Stats()
        self.failure: BaseException | None = None
        self._codec = Codec(membership.lanes, membership.block_size)
        self._numbers: dict[tuple[Any, Wire], Numbers] = {}
        self._worker = membership.worker
        self._here = (1 << len(membership.peers or membership.leaders)) - 1
        self._assigned = membership.slots
        self._timer = RetransmissionTimer(timing or Timing())
        self._counter = 0
        self._tasks: dict[int, Task] = {}  # those not done, by counter
        self._waiting: list[tuple[int, int]] = []  # for the scan: counters and slots
        self._scan_at = NEVER
        self._set_out()

    def _set_out(self) -> None:
        """Has all slots at the job's first round. What is known of the path's round trips stays."""
        self._slots = [Slot(index, self.membership) for index in range(self.membership.slots)]
        self._rounds = Rounds(self.membership, self._codec, self.stats)
        self._recovery = Recovery(self._slots, len(self.membership.leaders), self._timer, self.stats)

    # What the engine calls.

    def hello(self, nonce: int) -> bytes:
        """Return the HELLO datagram that shows the controller, through the switch, where this rank is."""
        return hello_of(self.membership, nonce)

    @property
    def idle(self) -> bool:
        """Whether every operation that was submitted is done."""
        return not self._tasks

    @property
    def submitted(self) -> int:
        """Operations so far."""
        return self._counter

    def next_first_seq(self) -> int:
        """Of a worker that is idle: an even round that no slot has come to yet; the same on all ranks that
        have done the same."""
        first = self._slots[0].seq
        furthest = max((slot.seq - first + 2**31) % 2**32 - 2**31 for slot in self._slots)
        return (first + furthest + 1 & ~1) % 2**32

    def begin_anew(self, slots: int, first_seq: int) -> None:
        """Goes on with the first `slots` of those that the job was assigned, each of which begins with `first_seq`.

        Every rank does so after the same operation, when the switch's slots have been reset. Raises ValueError where
        that cannot be.
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

    def submit(self, operation: Operation, now: float) -> int:
        """Queues an operation; each slot begins it when it has finished the former. Returns how many slots it uses."""
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

    def receive(self, payload: bytes | bytearray | memoryview, now: float) -> None:
        """Take one UDP payload. What is malformed, not for this rank or of an earlier round is only counted."""
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
            self._answer(packet, now)
        elif packet.op == Op.ERROR:
            # Only packets that differ make the switch say so, and whose do is not known here. All go on, lest another
            # rank whose ERROR was lost waits for ever.
            if self.failure is None:
                index = packet.slot >> 1
                slot = self._slots[index] if index < len(self._slots) else None
                self._end(mismatch(self.membership, packet, list(self._tasks.values()), slot), insist=True)
        elif packet.op == Op.ABORT and packet.abort_secret == self.membership.abort_secret:
            self._end(aborted(self.membership, packet))
        else:
            self.stats.foreign += 1

    def tick(self, now: float) -> None:
        """Send again what has waited too long for its answer, and what has its turn; and scan, where packets wait for
        it, a bounded number of blocks."""
        self._recovery.tick(now)
        if self._waiting:
            self._scan(now)

    def take_packets(self) -> list[bytes]:
        """Return the UDP payloads to send to the switch, in order."""
        return self._recovery.sending.take_packets()

    def next_deadline(self) -> float | None:
        """When to call `tick` next: at once, where packets wait for the scan. None: not before something comes."""
        deadline = min(self._recovery.next_deadline, self._scan_at)
        return None if deadline == NEVER else deadline

    def awaited(self) -> tuple[int, ...]:
        """Ranks that the switch, when last asked, had not heard of in rounds under way; () if it was not asked.

        Where it has heard of all of its own, the ranks of other switches: it cannot tell which of them.
        """
        missing = 0
        elsewhere: tuple[int, ...] = ()
        for slot in self._slots:
            if slot.counted is not None:
                missing |= self._here & ~slot.counted
                elsewhere = self.membership.elsewhere
        return self.membership.ranks(missing) or elsewhere

    def unanswered(self, now: float, patience: float) -> int | None:
        """Return the half in which a packet has waited longest, where for `patience` nothing has answered it though it
        was sent again."""
        waiting = [slot for slot in self._slots if slot.was_sent_again]
        slot = min(waiting, key=lambda slot: slot.last_answer, default=None)
        return None if slot is None or now - slot.last_answer < patience else slot.index << 1 | slot.seq & 1

    def is_impossible(self, half: int, seq: int) -> bool:
        """Whether no rank can be in that round yet: this one has not sent the round before it.

        Later is what switches take for it: they drop packets of up to 2^31 rounds before.
        """
        index = half >> 1
        return index < len(self._slots) and 1 < (seq - self._slots[index].seq) % 2**32 <= 2**31

    def fail(self, error: BaseException) -> None:
        """End all operations, and those yet to come, with `error`; the first failure stays."""
        self._end(error)

    # Rounds.

    def _answer(self, packet: Packet, now: float) -> None:
        """A RESULT or a STATUS."""
        index = packet.slot >> 1
        if index >= self._assigned or packet.slot & 1 != packet.seq & 1:
            self.stats.foreign += 1
            return
        if index >= len(self._slots):
            self.stats.stale += 1
            return
        slot = self._slots[index]
        if packet.seq != slot.seq:
            self._recovery.on_late_answer(slot, packet.seq)
        if self.failure is not None or not slot.in_network or packet.seq != slot.seq:
            self.stats.stale += 1
        elif packet.fingerprint != slot.fingerprint:
            self.stats.foreign += 1
        elif packet.op == Op.STATUS:
            self._recovery.on_status(slot, packet.keys[0], packet.worker == self._worker, now)
        else:
            self._result(slot, packet, now)

    def _result(self, slot: Slot, packet: Packet, now: float) -> None:
        task = slot.task
        assert task is not None
        plausible = self._rounds.plausible(slot, task, packet.keys)
        if not plausible or not slot.active == packet.active == packet.present:  # it has not the sums of these lanes
            self.stats.foreign += 1
            if not plausible and slot.transmissions > 1:  # else it may have been spoilt on its way
                self._end(implausible(self.membership, packet), insist=True)
            return
        self._recovery.on_result(slot, packet.worker == self._worker, now)
        if self._rounds.take_result(slot, task, packet):
            self._send_round(slot, task, now)
        else:
            self._finished(slot, task, now)

    def _begin(self, slot: Slot, now: float) -> None:
        """Begins the slot's next task, if there is one."""
        if slot.queue:
            task = slot.queue.popleft()
            self._rounds.announce(slot, task)
            self._send_round(slot, task, now)

    def _send_round(self, slot: Slot, task: Task, now: float) -> None:
        """Send the packet of the round that has begun, or let it wait for the scan."""
        packet = self._rounds.complete(slot, task)
        if packet is None and not self._waiting:  # else others' turn is first
            task.scanning.more(slot.index)
            packet = self._rounds.complete(slot, task)
        if packet is not None:
            self._recovery.send(slot, packet, now)
        else:
            self._waiting.append((task.counter, slot.index))
            self._scan_at = now

    def _scan(self, now: float) -> None:
        """Goes on with the scan, for the oldest task's slots first, and of these for the first, as all ranks do: so the
        first are soon done, and wait for nobody."""
        budget = SCAN_BLOCKS
        still = []
        for counter, index in sorted(self._waiting):
            slot, task = self._slots[index], self._tasks[counter]
            while (packet := self._rounds.complete(slot, task)) is None and budget > 0:
                budget -= task.scanning.more(index)
            if packet is not None:
                self._recovery.send(slot, packet, now)
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
            self.stats.blocks_skipped += task.scanning.zeros
            task.operation.finish()

    def _end(self, error: BaseException, *, insist: bool = False) -> None:
        """Fails everything. Packets that wait for answers are still sent, where `insist`."""
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
