# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from p4reduce_controller.switches.pools import PoolFull, SlotPool, SlotRange

SLOTS = 24


def take(pool: SlotPool, count: int) -> SlotRange:
    """Take so many slots, which `find` returns until they are taken."""
    found = pool.find(count)
    assert pool.find(count) == found
    pool.take(found)
    return found


class Pools(RuleBasedStateMachine):
    """A slot pool behaves like a model that keeps one bit for each slot."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = SlotPool(SLOTS)
        self.taken: list[SlotRange] = []
        self.used = [False] * SLOTS

    def first_fit(self, count: int) -> int | None:
        return next((at for at in range(SLOTS - count + 1) if not any(self.used[at : at + count])), None)

    @rule(count=st.integers(1, SLOTS + 1))
    def take(self, count: int) -> None:
        at = self.first_fit(count)
        if at is None:
            with pytest.raises(PoolFull, match=f"{count} slots asked, {self.used.count(False)} of {SLOTS} free"):
                self.pool.find(count)
        else:
            taken = take(self.pool, count)
            assert taken == SlotRange(at, count)
            self.used[at : at + count] = [True] * count
            self.taken.append(taken)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        taken = data.draw(st.sampled_from(self.taken))
        self.taken.remove(taken)
        self.pool.give_back(taken)
        self.used[taken.first : taken.end] = [False] * taken.count
        with pytest.raises(ValueError):
            self.pool.give_back(taken)

    @invariant()
    def counts_agree(self) -> None:
        assert self.pool.free == self.used.count(False)
        assert self.pool.used == self.used.count(True)
        runs = "".join(".#"[used] for used in self.used).split("#")
        assert self.pool.longest == max(map(len, runs))
        for taken in self.taken:
            low = max([at + 1 for at in range(taken.first) if self.used[at]], default=0)
            high = min([at for at in range(taken.end, SLOTS) if self.used[at]], default=SLOTS)
            assert self.pool.around(taken) == high - low


def test_a_pool_is_as_a_bit_for_each_slot() -> None:
    run_state_machine_as_test(Pools, settings=settings(max_examples=30, deadline=None))


def test_free_neighbours_become_one() -> None:
    pool = SlotPool(8)
    ranges = [take(pool, 2) for _ in range(4)]
    for index in (0, 2, 1, 3):
        pool.give_back(ranges[index])
    assert take(pool, 8) == SlotRange(0, 8)


def test_a_full_pool_tells_free_from_free_in_a_row() -> None:
    pool = SlotPool(8)
    ranges = [take(pool, 2) for _ in range(4)]
    pool.give_back(ranges[0])
    pool.give_back(ranges[2])
    with pytest.raises(PoolFull, match="3 slots asked, 4 of 8 free, 2 of them in a row"):
        pool.find(3)


@pytest.mark.parametrize("count", [0, -1])
def test_a_job_needs_a_slot(count: int) -> None:
    with pytest.raises(ValueError, match=f"count={count}"):
        SlotPool(8).find(count)


def test_a_switch_needs_a_slot() -> None:
    with pytest.raises(ValueError, match="slots=0"):
        SlotPool(0)


@pytest.mark.parametrize(
    ("first", "whole"),
    [(6, [SlotRange(0, 4), SlotRange(6, 4)]), (4, [SlotRange(0, 8)]), (2, [SlotRange(0, 6)])],
    ids=["apart", "touching", "overlapping"],
)
def test_two_ranges_are_one_where_they_meet(first: int, whole: list[SlotRange]) -> None:
    assert SlotRange(0, 4).joined(SlotRange(first, 4)) == SlotRange(first, 4).joined(SlotRange(0, 4)) == whole
