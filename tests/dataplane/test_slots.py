# SPDX-License-Identifier: Apache-2.0
"""Rounds of one slot after another: both halves, retransmissions, duplicates, and round numbers that wrap around."""

from __future__ import annotations

from random import Random

import pytest

from tests.support.dataplane.jobs import Job, Round
from tests.support.dataplane.switch import Switch


def test_slots_do_not_touch_each_other(switch: Switch) -> None:
    job = Job(switch, 2, slots=4).start()
    rounds = [Round(job, seq, slot=slot) for seq in (2, 3) for slot in range(4)]
    for one in rounds:
        one.send(1).expect()
    for one in rounds[::-1]:
        one.send(0).expect(job.to_all(one.result(0)))


def test_a_retransmission_to_the_other_half(switch: Switch) -> None:
    """Rank 0 is already in the next round when rank 1, which lost the result, asks for the former one."""
    job = Job(switch, 2).start()
    former, latter = Round(job, 2).run(), Round(job, 3)
    latter.send(0).expect()
    former.replay(1)
    latter.send(1).expect(job.to_all(latter.result(1)))


def test_a_retransmission_is_stale_once_the_half_is_used_again(switch: Switch) -> None:
    job = Job(switch, 2).start()
    first, _, third = Round(job, 2).run(), Round(job, 3).run(), Round(job, 4)
    third.send(0).expect()
    first.send(1).expect()  # nobody can still miss round 2: all have been in round 3
    third.send(1).expect(job.to_all(third.result(1)))
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
    before = switch.query(job.pool_base)
    one.send(0)
    assert switch.query(job.pool_base) == before
    one.send(2).expect(job.to_all(one.result(2)))
    for rank in (2, 0, 1, 2):
        one.replay(rank)
    assert switch.counts() == {
        "reset": 4, "started": 1, "added": 2, "completed": 1, "ahead": 8, "replayed": 4, "query": 2,
    }  # fmt: skip


@pytest.mark.parametrize("first_seq", [2**32 - 4, 2**31 - 4])
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
    former: list[Round] = []
    for seq in range(2, 32):
        rounds = [Round(job, seq, slot=slot) for slot in range(2)]
        seen = [0, 0]
        schedule = [(slot, rank) for slot in range(2) for rank in range(3)] * random.randint(1, 3)
        random.shuffle(schedule)
        for slot, rank in schedule:
            one, bit = rounds[slot], 1 << rank
            if seen[slot] == job.full:
                one.replay(rank)
            elif seen[slot] & bit:
                one.send(rank).expect(job.to_one(rank, job.status(one.packets[rank], seen[slot])))
            else:
                seen[slot] |= bit
                one.send(rank).expect(job.to_all(one.result(rank)) if seen[slot] == job.full else {})
            if seq >= 4 and random.random() < 0.3:
                former[2 * (seq - 4) + slot].send(random.randrange(3)).expect()
        former += rounds
