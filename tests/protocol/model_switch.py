# SPDX-License-Identifier: Apache-2.0
"""The switch as section "Switch" of docs/protocol.md tells it: one job's slots, without addresses and frames."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from p4reduce.protocol.constants import NO_KEY, Op, Outcome
from p4reduce.protocol.membership import Membership
from p4reduce.protocol.packet import LANES_OF, NO_VALUES, Codec, Packet, ProtocolError


@dataclass
class Half:
    seq: int
    bitmap: int = 0
    fingerprint: int = 0
    keys: list[int] = field(default_factory=list)
    sums: npt.NDArray[np.int32] = field(default_factory=lambda: np.zeros((0, 0), np.int32))


class ModelSwitch:
    """Takes one worker's datagram at a time and says what goes to whom."""

    def __init__(self, membership: Membership) -> None:
        self.job = membership
        self.codec = Codec(membership.lanes, membership.block_size)
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.everyone = tuple(range(membership.world_size))
        self.full = (1 << membership.world_size) - 1
        self.halves: dict[int, Half] = {}
        for half in range(2 * membership.slots):
            self.reset(half, (membership.first_seq - 2 + (half & 1)) % 2**32)

    def reset(self, half: int, seq: int) -> None:
        lanes, block_size = self.job.lanes, self.job.block_size
        self.halves[half] = Half(seq, keys=[NO_KEY] * lanes, sums=np.zeros((lanes, block_size), np.int32))

    def receive(self, sender: int, payload: bytes) -> tuple[tuple[int, ...], bytes] | None:
        """The ranks to answer, and the answer. `sender`: the rank that the datagram's port and address belong to."""
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
        if packet.op != Op.DATA:
            return Outcome.FORBIDDEN, None
        if (packet.job, packet.generation, packet.worker) != (self.job.job, self.job.generation, sender):
            return Outcome.NOT_ADMITTED, None
        half = self.halves.get(packet.slot)
        if half is None or packet.slot & 1 != packet.seq & 1:
            return Outcome.BAD_SLOT, None

        bit = 1 << packet.worker
        age = (packet.seq - half.seq) % 2**32
        if age >= 2**31 or (age == 0 and half.bitmap == 0):  # older, or of a half that was reset
            return Outcome.STALE, None
        if age > 0:
            self._start(half, packet, bit)
            outcome = Outcome.STARTED
        elif packet.fingerprint != half.fingerprint:
            return Outcome.MISMATCH, (self.everyone, self._error(half, packet))
        elif not half.bitmap & bit:
            self._add(half, packet, bit)
            outcome = Outcome.ADDED
        elif half.bitmap != self.full:
            return Outcome.AHEAD, ((sender,), self._status(half, packet))
        else:
            return Outcome.REPLAYED, ((sender,), self._result(half, packet))
        if half.bitmap != self.full:
            return outcome, None
        self.outcomes[Outcome.COMPLETED] += 1
        return outcome, (self.everyone, self._result(half, packet))

    def _start(self, half: Half, packet: Packet, bit: int) -> None:
        half.seq = packet.seq
        half.fingerprint = packet.fingerprint
        half.bitmap = bit
        half.keys = list(packet.keys)
        half.sums[...] = 0
        half.sums[list(LANES_OF[packet.present])] = packet.values.reshape(-1, self.job.block_size)

    def _add(self, half: Half, packet: Packet, bit: int) -> None:
        half.bitmap |= bit
        half.keys = [min(pair) for pair in zip(half.keys, packet.keys, strict=True)]
        half.sums[list(LANES_OF[packet.present])] += packet.values.reshape(-1, self.job.block_size)

    def _result(self, half: Half, packet: Packet) -> bytes:
        packet.op = Op.RESULT
        packet.present = packet.active
        packet.keys = half.keys
        packet.values = half.sums[list(LANES_OF[packet.active])]
        return self.codec.encode(packet)

    def _status(self, half: Half, packet: Packet) -> bytes:
        return self._without_values(packet, Op.STATUS, half.bitmap)

    def _error(self, half: Half, packet: Packet) -> bytes:
        other, packet.fingerprint = packet.fingerprint, half.fingerprint
        return self._without_values(packet, Op.ERROR, other)

    def _without_values(self, packet: Packet, op: Op, word: int) -> bytes:
        packet.op = op
        packet.present = 0
        packet.values = NO_VALUES
        packet.keys = [word] + [0] * (self.job.lanes - 1)
        return self.codec.encode(packet)
