# SPDX-License-Identifier: Apache-2.0
"""The model of the switch, after docs/protocol.md: the slots of one job, without addresses and frames."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from p4reduce.protocol.constants import NO_KEY, NOBODY, PARENT, Op, Outcome
from p4reduce.protocol.membership import Membership
from p4reduce.protocol.packet import LANES_OF, NO_VALUES, Codec, Packet, ProtocolError


@dataclass
class Half:
    seq: int
    bitmap: int = 0
    present: int = 0
    envoy: int = 0
    fingerprint: int = 0
    keys: list[int] = field(default_factory=list)
    sums: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 0), np.int32))


class ModelSwitch:
    """A switch that takes one datagram at a time, and returns its answer with the receivers.

    index: the worker of its parent that the switch is, if it is a leaf.
    """

    def __init__(self, membership: Membership, workers: int | None = None, index: int | None = None) -> None:
        workers = membership.world_size if workers is None else workers
        self.job = membership
        self.codec = Codec(membership.lanes, membership.block_size)
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.everyone = tuple(range(workers))
        self.index = index
        self.all_workers = (1 << workers) - 1
        self.full = self.all_workers if index is None else self.all_workers | 1 << PARENT
        self.halves: dict[int, Half] = {}
        for half in range(2 * membership.slots):
            self.reset(half, (membership.first_seq - 2 + (half & 1)) % 2**32)

    def reset(self, half: int, seq: int) -> None:
        lanes, block_size = self.job.lanes, self.job.block_size
        self.halves[half] = Half(seq, keys=[NO_KEY] * lanes, sums=np.zeros((lanes, block_size), np.int32))

    def query(self, half: int) -> tuple[int, int]:
        """Return the seq and the bitmap of a half."""
        return self.halves[half].seq, self.halves[half].bitmap

    def receive(self, sender: int, payload: bytes) -> tuple[tuple[int, ...], bytes] | None:
        """Return the receivers and the answer, or None.

        sender: the worker, or PARENT, to whom the source's port and address belong.
        """
        outcome, answer = self._receive(sender, payload)
        self.outcomes[outcome] += 1
        return answer

    def _receive(self, sender: int, payload: bytes) -> tuple[Outcome, tuple[tuple[int, ...], bytes] | None]:
        try:
            packet = self.codec.decode(payload)
        except ProtocolError:
            return Outcome.MALFORMED, None
        if (packet.active & ~packet.present).bit_count() > self.job.max_absent_lanes:
            return Outcome.MALFORMED, None
        if packet.op in (Op.DATA, Op.RESULT) and packet.active != packet.fingerprint & 0xFF:
            return Outcome.MALFORMED, None
        from_parent = self.index is not None and sender == PARENT
        if packet.op not in ((Op.RESULT, Op.STATUS, Op.ERROR) if from_parent else (Op.DATA, Op.ERROR)):
            return Outcome.FORBIDDEN, None
        worker = PARENT if from_parent else packet.worker
        if (packet.job, packet.generation, worker) != (self.job.job, self.job.generation, sender):
            return Outcome.NOT_ADMITTED, None
        half = self.halves.get(packet.slot)
        if half is None or packet.slot & 1 != packet.seq & 1:
            return Outcome.BAD_SLOT, None

        if packet.op == Op.ERROR:
            return Outcome.MISMATCH, self._tell_error(packet, packet.keys[0], from_parent)
        if from_parent:
            return self._from_parent(half, packet)
        bit = 1 << packet.worker
        age = (packet.seq - half.seq) % 2**32
        if age >= 2**31 or (age == 0 and half.bitmap == 0):  # older, or a round before a reset
            return Outcome.STALE, None
        if age > 0:
            self._start(half, packet, bit)
            outcome = Outcome.STARTED
        elif packet.fingerprint != half.fingerprint:
            other, packet.fingerprint = packet.fingerprint, half.fingerprint
            return Outcome.MISMATCH, self._tell_error(packet, other, from_parent)
        elif not half.bitmap & bit:
            self._add(half, packet, bit)
            outcome = Outcome.ADDED
        elif half.bitmap == self.full:
            return Outcome.REPLAYED, ((sender,), self._result(half, packet))
        elif half.bitmap == self.all_workers and packet.worker == half.envoy:
            return Outcome.SENT_UP, ((PARENT,), self._partial(half, packet))
        else:
            return Outcome.AHEAD, ((sender,), self._status(half, packet))
        half.envoy = packet.worker
        if half.bitmap != self.full:
            if half.bitmap != self.all_workers:
                return outcome, None
            self.outcomes[Outcome.SENT_UP] += 1
            return outcome, ((PARENT,), self._partial(half, packet))
        self.outcomes[Outcome.COMPLETED] += 1
        return outcome, (self.everyone, self._result(half, packet))

    def _from_parent(self, half: Half, packet: Packet) -> tuple[Outcome, tuple[tuple[int, ...], bytes] | None]:
        expected = packet.seq == half.seq and packet.fingerprint == half.fingerprint
        if not expected or half.bitmap != self.all_workers:
            return Outcome.STALE, None
        packet.worker = half.envoy if packet.worker == self.index else NOBODY
        if packet.op == Op.STATUS:
            return Outcome.AHEAD, (self.everyone, self._status(half, packet))
        half.bitmap = self.full
        half.keys = list(packet.keys)
        half.sums[...] = 0
        half.sums[list(LANES_OF[packet.present])] = packet.values.reshape(-1, self.job.block_size)
        self.outcomes[Outcome.COMPLETED] += 1
        return Outcome.STORED, (self.everyone, self._result(half, packet))

    def _start(self, half: Half, packet: Packet, bit: int) -> None:
        half.seq = packet.seq
        half.fingerprint = packet.fingerprint
        half.bitmap = bit
        half.present = packet.present
        half.keys = list(packet.keys)
        half.sums[list(LANES_OF[packet.active])] = 0  # other lanes keep their former sums
        half.sums[list(LANES_OF[packet.present])] = packet.values.reshape(-1, self.job.block_size)

    def _add(self, half: Half, packet: Packet, bit: int) -> None:
        half.bitmap |= bit
        half.present |= packet.present
        half.keys = [min(pair) for pair in zip(half.keys, packet.keys, strict=True)]
        half.sums[list(LANES_OF[packet.present])] += packet.values.reshape(-1, self.job.block_size)

    def _result(self, half: Half, packet: Packet) -> bytes:
        packet.op = Op.RESULT
        packet.present = packet.active
        packet.keys = half.keys
        packet.values = half.sums[list(LANES_OF[packet.active])]
        return self.codec.encode(packet)

    def _partial(self, half: Half, packet: Packet) -> bytes:
        assert self.index is not None
        packet.op = Op.DATA
        packet.worker = self.index
        packet.present = packet.active & half.present
        packet.keys = half.keys
        packet.values = half.sums[list(LANES_OF[packet.present])]
        return self.codec.encode(packet)

    def _status(self, half: Half, packet: Packet) -> bytes:
        return self._without_values(packet, Op.STATUS, half.bitmap)

    def _tell_error(self, packet: Packet, other: int, from_parent: bool) -> tuple[tuple[int, ...], bytes]:
        if self.index is not None and not from_parent:
            packet.worker = self.index
            return (PARENT,), self._without_values(packet, Op.ERROR, other)
        if from_parent:
            packet.worker = NOBODY
        return self.everyone, self._without_values(packet, Op.ERROR, other)

    def _without_values(self, packet: Packet, op: Op, word: int) -> bytes:
        packet.op = op
        packet.active = 0
        packet.present = 0
        packet.values = NO_VALUES
        packet.keys = [word] + [0] * (self.job.lanes - 1)
        return self.codec.encode(packet)
