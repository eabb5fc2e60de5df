# SPDX-License-Identifier: Apache-2.0
"""Rounds of one slot after another: both halves, retransmissions, duplicates, and round numbers that wrap around."""

from __future__ import annotations

from random import Random

import pytest

from tests.support.dataplane.frames import Aggregation
from tests.support.dataplane.jobs import Job, sums, values_of
from tests.support.dataplane.switch import Outputs, Switch


class Round:
    """A round of `job` in `slot` whose packets carry lane 0."""

    def __init__(self, job: Job, seq: int, slot: int = 0) -> None:
        self.job, self.seq, self.slot = job, seq, slot
        self.packets = [
            job.packet(rank, seq, slot=slot, values=values_of(seq * 64 + slot * 32 + rank, job.switch, [0]))
            for rank in range(job.size)
        ]
        self.total = sums(job.switch, [0], *(packet.values for packet in self.packets))

    def send(self, rank: int) -> Outputs:
        return self.job.switch.exchange(self.job.sent(self.packets[rank]))

    def result(self, rank: int) -> Aggregation:
        return self.job.result(self.packets[rank], keys=self.packets[rank].keys, values=self.total)

    def run(self) -> None:
        for rank in range(self.job.size - 1):
            self.send(rank).expect()
        last = self.job.size - 1
        self.send(last).expect(self.job.to_all(self.result(last)))


def test_rounds_alternate_between_the_halves(switch: Switch) -> None:
    job = Job(switch, 2).start()
    for seq in range(2, 12):
        Round(job, seq).run()
        assert switch.query(job.pool_base + (seq & 1)).seq == seq


def test_slots_do_not_touch_each_other(switch: Switch) -> None:
    job = Job(switch, 2, slots=4).start()
    rounds = [Round(job, 2, slot) for slot in range(4)] + [Round(job, 3, slot) for slot in range(4)]
    for one in rounds:
        one.send(1).expect()
    for one in rounds[::-1]:
        one.send(0).expect(job.to_all(one.result(0)))


def test_a_retransmission_to_the_other_half(switch: Switch) -> None:
    """Rank 0 is already in the next round when rank 1, which lost the result, asks for the former one."""
    job = Job(switch, 2).start()
    former, latter = Round(job, 2), Round(job, 3)
    former.run()
    latter.send(0).expect()
    former.send(1).expect(job.to_one(1, former.result(1)))
    latter.send(1).expect(job.to_all(latter.result(1)))


def test_a_retransmission_is_ignored_until_the_half_is_used_again_then_stale(switch: Switch) -> None:
    job = Job(switch, 2).start()
    rounds = [Round(job, seq) for seq in (2, 3, 4)]
    rounds[0].run()
    rounds[1].run()
    rounds[2].send(0).expect()
    rounds[0].send(1).expect()  # nobody can still miss round 2: all have been in round 3
    rounds[2].send(1).expect(job.to_all(rounds[2].result(1)))
    assert switch.counts()["stale"] == 1


def test_duplicates_before_and_after_completion_add_nothing(switch: Switch) -> None:
    job = Job(switch, 3).start()
    one = Round(job, 2)
    one.send(0).expect()
    for _ in range(3):
        one.send(0).expect(job.to_one(0, job.status(one.packets[0], 0b001)))
    one.send(1).expect()
    for rank in (0, 1, 1, 0):
        one.send(rank).expect(job.to_one(rank, job.status(one.packets[rank], 0b011)))
    one.send(2).expect(job.to_all(one.result(2)))
    for rank in (2, 0, 1, 2):
        one.send(rank).expect(job.to_one(rank, one.result(rank)))
    assert switch.counts() == {"reset": 4, "started": 1, "added": 2, "completed": 1, "ahead": 7, "replayed": 4}


@pytest.mark.parametrize("first_seq", [2**32 - 4, 2**32 - 2, 0, 2**31 - 4])
def test_round_numbers_wrap_around(switch: Switch, first_seq: int) -> None:
    job = Job(switch, 2, first_seq=first_seq).start()
    rounds = [Round(job, (first_seq + step) % 2**32) for step in range(8)]
    for at, one in enumerate(rounds):
        one.run()
        if at >= 2:
            rounds[at - 2].send(0).expect()
    assert switch.counts()["stale"] == 6


def test_any_order_of_any_duplicates(switch: Switch) -> None:
    """Seeded schedules of two slots whose packets come late, twice or out of order; every sum is exact."""
    random = Random(7)
    job = Job(switch, 3, slots=2).start()
    for seq in range(2, 32):
        rounds = [Round(job, seq, slot) for slot in range(2)]
        former = [Round(job, seq - 2, slot) for slot in range(2)] if seq >= 4 else []
        seen = [0, 0]
        schedule = [(slot, rank) for slot in range(2) for rank in range(3)] * random.randint(1, 3)
        random.shuffle(schedule)
        for slot, rank in schedule:
            one, bit = rounds[slot], 1 << rank
            outputs = one.send(rank)
            if seen[slot] == job.full:
                outputs.expect(job.to_one(rank, one.result(rank)))
            elif seen[slot] & bit:
                outputs.expect(job.to_one(rank, job.status(one.packets[rank], seen[slot])))
            else:
                seen[slot] |= bit
                outputs.expect(job.to_all(one.result(rank)) if seen[slot] == job.full else {})
            if former and seen[slot] and random.random() < 0.3:
                former[slot].send(random.randrange(3)).expect()
