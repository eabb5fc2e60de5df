# SPDX-License-Identifier: Apache-2.0
"""A packet that was sent again was lost, or its answer, if fewer answers came than copies went."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from p4reduce.protocol import Membership, Operation, Worker
from p4reduce.protocol.constants import Op
from p4reduce.protocol.pacing import Pace
from p4reduce.protocol.packet import Codec
from p4reduce.protocol.timing import RetransmissionTimer, Timing

SLOTS = 8


class SentTwice:
    """A rank whose packet in slot 0 was passed, and so sent again. Round trips take 10 ms. `lost`: what the pace was
    told, by when the packet was first sent.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, first_seq: int = 0) -> None:
        membership = Membership(1, 1, 0, 2, slots=SLOTS, lanes=1, block_size=4, first_seq=first_seq)
        self.codec = Codec(membership.lanes, membership.block_size)
        self.worker = Worker(membership)
        self.now = 0.0
        self.lost: list[float] = []
        self.pace = self.worker._recovery.pace
        monkeypatch.setattr(self.pace, "lost", lambda sent_at, *_: self.lost.append(sent_at) or False)
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
        assert not self.worker._recovery._probing

    def answer(self, packet: bytes, *, worker: int = 0, op: Op = Op.RESULT, twice: bool = False) -> bytes:
        """Returns the slot's next packet."""
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


def test_after_probes_it_was_the_switch(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = SentTwice(monkeypatch)
    rank.worker._recovery._probing = True
    rank.answer(rank.answer(rank.packet))
    assert rank.lost == []


def test_where_there_is_a_limit_what_seems_lost_counts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = SentTwice(monkeypatch)
    rank.pace.window, rank.pace._threshold, rank.pace.next = 3.0, 1.0, -math.inf
    rank.answer(rank.packet)
    assert rank.lost == [rank.sent_at]


def test_what_was_sent_again_just_before_its_answer_had_arrived(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = SentTwice(monkeypatch)
    rank.pace.window, rank.pace._threshold, rank.pace.next = 3.0, 1.0, -math.inf
    rank.now -= 0.005
    rank.answer(rank.packet)
    assert rank.lost == []


@pytest.mark.parametrize("completed_by", [0, 1])
def test_what_was_lost_gives_credit_at_once(monkeypatch: pytest.MonkeyPatch, completed_by: int) -> None:
    """Else ranks whose operations are short wait for time-outs."""
    rank = SentTwice(monkeypatch)
    recovery = rank.worker._recovery
    recovery._credit = 0
    rank.answer(rank.packet, worker=completed_by)
    assert recovery._credit == (recovery._pays if completed_by == 0 else 1)


def test_credit_is_taken_back_when_nothing_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what was sent again in vain pays for more of it."""
    rank = SentTwice(monkeypatch)
    recovery = rank.worker._recovery
    recovery._credit = 0
    rank.answer(rank.packet, twice=True)
    assert recovery._credit == 0
    recovery._credit = recovery._most_credit
    rank.answer(rank.packet)
    assert recovery._credit == recovery._most_credit, "of a round, once"


def test_where_the_network_duplicates_answers_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what is lost there pays for nothing, and time-outs are all that finds it."""
    rank = SentTwice(monkeypatch)
    recovery = rank.worker._recovery
    other = rank.worker._slots[1].packet
    rank.answer(other, twice=True)
    recovery._credit = 0
    rank.answer(rank.packet, twice=True)
    assert recovery._credit == recovery._pays


def limited(monkeypatch: pytest.MonkeyPatch) -> tuple[SentTwice, bytes, bytes]:
    """With a limit for a loss that was proved; and the slot's next packets."""
    rank = SentTwice(monkeypatch, 2**32 - 2)

    def lost(*_: object) -> bool:
        rank.pace.window, rank.pace._threshold, rank.pace.next = 3.0, 1.0, -math.inf
        return True

    monkeypatch.setattr(rank.pace, "lost", lost)
    then = rank.answer(rank.packet)
    last = rank.answer(then)
    assert rank.pace.limited
    return rank, then, last


@pytest.mark.parametrize("op", [Op.RESULT, Op.STATUS])
def test_an_answer_that_was_missed_lifts_the_limit(monkeypatch: pytest.MonkeyPatch, op: Op) -> None:
    """As it does where a thread of the switch waits before it sends, and another answers who asks again."""
    rank, _, last = limited(monkeypatch)
    slot = rank.worker._slots[0]
    slot.unanswered = 1
    rank.answer(last)  # another loss, of those for which the limit stays
    rank.answer(rank.packet, op=op)
    assert rank.pace.window == math.inf


def test_no_other_answer_lifts_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    rank, then, last = limited(monkeypatch)
    packet = rank.codec.decode(rank.packet)
    rank.answer(rank.codec.encode(replace(packet, slot=2 | packet.slot)))
    rank.answer(last)
    rank.answer(then)
    assert rank.pace.limited


@pytest.mark.parametrize("windows", [(14.0, 7.0), (math.inf, 15.0)], ids=["slow start", "no limit"])
def test_the_window_is_again_as_large_as_before(windows: tuple[float, float]) -> None:
    timer = RetransmissionTimer(Timing())
    for seconds in (0.001, 0.01, 0.01):
        timer.measure(seconds)
    pace = Pace(timer, 256)
    pace.window = windows[0]
    assert pace.lost(0.0, 30, 1.0)
    assert (pace.window, pace.limited) == (windows[1], True)
    assert pace.lost(2.0, 30, 3.0), "for what seems lost, as there was a limit"
    pace.lift()
    assert (pace.window, pace.limited) == (windows[0], False)


def test_where_no_limit_was_set_none_is_lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = SentTwice(monkeypatch)
    monkeypatch.setattr(rank.pace, "lift", pytest.fail)
    rank.answer(rank.answer(rank.packet))
    assert len(rank.lost) == 1
    rank.answer(rank.packet)


def test_where_the_network_duplicates_no_limit_is_lifted(monkeypatch: pytest.MonkeyPatch) -> None:
    rank, _, _ = limited(monkeypatch)
    rank.worker._recovery._duplicates = True
    rank.answer(rank.packet)
    assert rank.pace.limited
