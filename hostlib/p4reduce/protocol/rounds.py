# SPDX-License-Identifier: Apache-2.0
"""A slot's rounds: the contents of its packets, and the meaning of a RESULT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from p4reduce.protocol.constants import NO_KEY, Op
from p4reduce.protocol.fingerprint import of_round
from p4reduce.protocol.membership import Membership
from p4reduce.protocol.operation import Task
from p4reduce.protocol.packet import LANES_OF, NO_VALUES, Codec, Packet
from p4reduce.protocol.slot import Slot
from p4reduce.protocol.stats import Stats

_SEQ_MASK = 0xFFFFFFFF


class Rounds:
    """The rounds of a worker's slots: each packet is made from the answer to the one before."""

    def __init__(self, membership: Membership, codec: Codec, stats: Stats) -> None:
        self._membership = membership
        self._codec = codec
        self._stats = stats
        self._worker = membership.worker
        self._streams = membership.slots * membership.lanes
        self._all_lanes = range(membership.lanes)

    def announce(self, slot: Slot, task: Task) -> None:
        """Begin a task with its announcement, which has no values unless it is the task's only round."""
        lanes = self._membership.lanes
        slot.task = task
        slot.announced = [NO_KEY] * lanes
        slot.sought = [0] * lanes
        slot.unknown = (1 << lanes) - 1
        slot.least = [0] * lanes
        slot.active = 0
        slot.agreed = []
        slot.agreed_exponents = []
        if task.at_once:
            self._name_all(slot, task)
        else:
            self._carry(slot, task, 0, NO_VALUES)

    def _name_all(self, slot: Slot, task: Task) -> None:
        """Begin the only round of a small task of integers, which names all blocks, as no exponent is to be agreed."""
        if task.blocks.count:
            task.scanning.more(slot.index)
        for lane in self._all_lanes:
            key = task.scanning.next_key(slot.first_stream + lane, 0)
            assert key is not None
            slot.announced[lane] = key
        own = self._agree(slot, [0 if lane < task.blocks.count else NO_KEY for lane in self._all_lanes])
        self._carry(slot, task, *self._contribution(slot, task, own))

    def plausible(self, slot: Slot, task: Task, keys: Sequence[int]) -> bool:
        """Return whether a RESULT's keys can be minimums over workers, of which this is one."""
        for lane, least, key, announced in zip(self._all_lanes, slot.least, keys, slot.announced, strict=True):
            if not least <= key <= announced:
                return False
            if key != NO_KEY and self._block(slot, lane, key) >= task.blocks.count:
                return False
        return True

    def take_result(self, slot: Slot, task: Task, packet: Packet) -> bool:
        """Take the sums of the round, and begin the next one. Return False when the slot has finished the task."""
        if slot.active:
            task.dequantise(slot.agreed, slot.agreed_exponents, packet.values)
            self._stats.blocks_received += len(slot.agreed)
        slot.seq = slot.seq + 1 & _SEQ_MASK
        slot.previous, slot.packet = slot.packet, b""
        own = self._agree(slot, packet.keys)
        if slot.active:
            self._carry(slot, task, *self._contribution(slot, task, own))
        return slot.active != 0

    def complete(self, slot: Slot, task: Task) -> bytes | None:
        """Return the round's packet, or None while a lane's next block is not known."""
        for lane in LANES_OF[slot.unknown]:
            key = task.scanning.next_key(slot.first_stream + lane, slot.sought[lane])
            if key is not None:
                slot.announced[lane] = key
                slot.unknown ^= 1 << lane
        return None if slot.unknown else self._packet(slot)

    def _block(self, slot: Slot, lane: int, key: int) -> int:
        return (key >> 8) * self._streams + slot.first_stream + lane

    def _agree(self, slot: Slot, keys: Sequence[int]) -> int:
        """Begin the round of the blocks that the keys name. Return the lanes whose block is not zero here."""
        active = own = 0
        slot.agreed = []
        slot.agreed_exponents = []
        for lane, key in enumerate(keys):
            slot.least[lane] = min((key | 0xFF) + 1, NO_KEY)
            if key == NO_KEY:
                continue
            active |= 1 << lane
            slot.agreed.append(self._block(slot, lane, key))
            slot.agreed_exponents.append(255 - (key & 255))
            if key >> 8 == slot.announced[lane] >> 8 and slot.announced[lane] != NO_KEY:
                own |= 1 << lane
                slot.sought[lane] = (key >> 8) + 1
        slot.active = active
        slot.unknown = own
        return own

    def _contribution(self, slot: Slot, task: Task, own: int) -> tuple[int, npt.NDArray[Any]]:
        """Return the lanes to send in this round, and their values."""
        absent = LANES_OF[slot.active & ~own]
        present = own
        for lane in absent[: max(0, len(absent) - self._membership.max_absent_lanes)]:
            present |= 1 << lane  # zeros, so that the switch has room for the sums
        self._stats.blocks_sent += own.bit_count()
        self._stats.blocks_filled += present.bit_count() - own.bit_count()
        if not present:
            return 0, NO_VALUES
        blocks, exponents = slot.agreed, slot.agreed_exponents
        if present != slot.active:
            positions = [position for position, lane in enumerate(LANES_OF[slot.active]) if present >> lane & 1]
            blocks = [blocks[position] for position in positions]
            exponents = [exponents[position] for position in positions]
        announced = [position for position, lane in enumerate(LANES_OF[present]) if own >> lane & 1]
        return present, task.quantise(blocks, exponents, announced)

    def _carry(self, slot: Slot, task: Task, present: int, values: npt.NDArray[Any]) -> None:
        """Set the contents of the round's packet, except its keys."""
        slot.fingerprint = of_round(task.fingerprint, slot.active)
        slot.present = present
        slot.values = values

    def _packet(self, slot: Slot) -> bytes:
        m = self._membership
        return self._codec.encode(
            Packet(
                Op.DATA,
                m.job,
                m.generation,
                self._worker,
                slot.index << 1 | slot.seq & 1,
                slot.seq,
                slot.fingerprint,
                slot.active,
                slot.present,
                slot.announced,
                slot.values,
            )
        )
