# SPDX-License-Identifier: Apache-2.0
"""A packet that was sent again was lost, or its answer, if fewer answers came than copies went."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from p4reduce.protocol import Membership, Operation, Worker
from p4reduce.protocol.constants import Op
from p4reduce.protocol.packet import Codec

SLOTS = 8


class SentTwice:
    """A rank whose packet in slot 0 was overtaken, and so sent again. Round trips take 10 ms.

    lost: the losses that the pace was told of, each by the time when the packet was first sent.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first_seq: int = 0) -> None:
        membership = Membership(1, 1, 0, 2, slots=SLOTS, lanes=1, block_size=4, first_seq=first_seq)
        self.codec = Codec(membership.lanes, membership.block_size)
        self.worker = Worker(membership)
        self.now = 0.0
        self.lost: list[float] = []
        self.pace = self.worker._recovery.pace
        monkeypatch.setattr(self.pace, "on_loss", lambda sent_at, *_: self.lost.append(sent_at) or False)
        self.worker.submit(Operation(np.ones(4 * SLOTS * 20, np.float32)), 0.0)
        first, *others = self.worker.take_packets()
        self.packet = self.answer(first)
        self.sent_at = self.now
        for other in others:
            self.answer(self.answer(self.answer(other)))
        due = self.worker.next_deadline()
        assert due is not None
        self.now = due
        self.worker.tick(due)
        assert self.worker.take_packets() == [self.packet]

    def answer(self, packet: bytes, *, worker: int = 0, op: Op = Op.RESULT, twice: bool = False) -> bytes:
        """Receive the answer to a packet after a round trip, and return the slot's next packet."""
        self.now += 0.01
        answer = self.codec.encode(replace(self.codec.decode(packet), op=op, worker=worker))
        self.worker.receive(answer, self.now)
        packets = self.worker.take_packets()
        if twice:
            self.worker.receive(answer, self.now)
        return packets[0] if packets else b""


@pytest.mark.parametrize("first_seq", [0, 2**32 - 2])
def test_the_next_answer_proves_a_loss(monkeypatch: pytest.MonkeyPatch, first_seq: int) -> None:
    rank = SentTwice(monkeypatch, first_seq)
    then = rank.answer(rank.packet)
    assert rank.lost == []
    then = rank.answer(then)
    assert rank.lost == [rank.sent_at]
    rank.answer(then)
    assert rank.lost == [rank.sent_at], "once"


@pytest.mark.parametrize("first_seq", [0, 2**32 - 2])
def test_who_was_answered_twice_lost_nothing(monkeypatch: pytest.MonkeyPatch, first_seq: int) -> None:
    rank = SentTwice(monkeypatch, first_seq)
    rank.answer(rank.answer(rank.packet, twice=True))
    assert rank.lost == []


def test_who_waits_for_another_lost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = SentTwice(monkeypatch)
    rank.answer(rank.answer(rank.packet, worker=1))
    assert rank.lost == []


def test_who_got_a_status_lost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = SentTwice(monkeypatch)
    rank.answer(rank.packet, op=Op.STATUS)
    rank.answer(rank.answer(rank.packet))
    assert rank.lost == []


@pytest.mark.parametrize("completed_by", [0, 1])
def test_a_loss_refills_the_budget_at_once(monkeypatch: pytest.MonkeyPatch, completed_by: int) -> None:
    """Else ranks whose operations are short wait for time-outs."""
    rank = SentTwice(monkeypatch)
    recovery = rank.worker._recovery
    recovery._budget = 0
    rank.answer(rank.packet, worker=completed_by)
    assert recovery._budget == (recovery._budget_of_loss if completed_by == 0 else 1)
