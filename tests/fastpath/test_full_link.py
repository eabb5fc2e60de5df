# SPDX-License-Identifier: Apache-2.0
"""Packets wait in the outbox while the kernel takes none, and a copy that has not left does not count as sent."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from p4reduce.protocol import Membership, Operation
from p4reduce.protocol.constants import Op
from p4reduce.protocol.packet import Codec
from tests.support.protocol.c_worker import Worker

SLOTS = 8
CODEC = Codec(1, 4)


class Full:
    """A rank that nobody else is waited for. Packets that are not taken stay in its outbox."""

    def __init__(self) -> None:
        self.worker = Worker(Membership(1, 1, 0, 2, slots=SLOTS, lanes=1, block_size=4, first_seq=0))
        self.now = 0.0
        self.worker.submit(Operation(np.ones(4 * SLOTS * 20, np.float32)), 0.0)
        self.first, *self.others = self.worker.take_packets()

    def answer(self, packet: bytes) -> None:
        self.now += 0.01
        self.worker.receive(CODEC.encode(replace(CODEC.decode(packet), op=Op.RESULT, worker=0)), self.now)

    def pass_by(self) -> None:
        """Answer packets of other slots, and let due packets be retransmitted."""
        for other in self.others:
            self.answer(other)
        for _ in range(3):
            due = self.worker.next_deadline()
            assert due is not None
            self.now = max(self.now, due)
            self.worker.tick(self.now)

    def rounds(self, packets: list[bytes]) -> list[int]:
        return [packet.seq for packet in map(CODEC.decode, packets) if packet.slot >> 1 == 0]


def test_a_packet_that_has_not_left_is_not_sent_again() -> None:
    rank = Full()
    rank.answer(rank.first)  # slot 0's second packet is in the outbox
    rank.pass_by()
    assert rank.worker.stats.retransmissions == 0
    assert rank.rounds(rank.worker.take_packets()) == [1]


def test_a_copy_whose_place_the_next_round_takes_was_not_sent() -> None:
    rank = Full()
    rank.pass_by()  # slot 0's first packet is in the outbox once more
    before = rank.worker.stats.retransmissions
    rank.answer(rank.first)
    assert rank.worker.stats.retransmissions == before - 1
    assert rank.rounds(rank.worker.take_packets()) == [1]
