# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p4reduce_controller.jobs import numbers
from p4reduce_controller.jobs.numbers import JobNumbers, NumbersExhausted, secret_order


def test_the_lowest_free_number_comes_next_with_a_new_generation() -> None:
    given = JobNumbers(nth=lambda _, n: 7 + n)
    assert [given.take() for _ in range(3)] == [(1, 7), (2, 7), (3, 7)]
    given.give_back(2)
    given.give_back(1)
    assert [given.take() for _ in range(3)] == [(1, 8), (2, 8), (4, 7)]


def test_a_number_has_each_generation_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "GENERATIONS", 4)
    jobs = JobNumbers(last=1, nth=lambda _, n: 3 - n)
    generations = []
    for _ in range(4):
        number, generation = jobs.take()
        generations.append(generation)
        jobs.give_back(number)
    assert generations == [3, 2, 1, 0]
    with pytest.raises(NumbersExhausted):  # the number has had them all
        jobs.take()


def test_no_number_is_left() -> None:
    jobs = JobNumbers(last=2)
    jobs.take()
    jobs.take()
    with pytest.raises(NumbersExhausted, match="all 2 job numbers"):
        jobs.take()


def test_the_next_generation_cannot_be_told_from_those_before() -> None:
    nth, other = secret_order(b"one"), secret_order(b"other")
    given = [nth(5, n) for n in range(1 << 16)]
    assert sorted(given) == list(range(1 << 16))
    steps = Counter((later - earlier) % 65536 for earlier, later in pairwise(given))
    assert max(steps.values()) < 20
    assert sum(nth(5, n) == other(5, n) for n in range(1000)) < 10
    assert sum(nth(5, n) == nth(6, n) for n in range(1000)) < 10


def test_a_generation_of_an_earlier_run_is_not_given_again() -> None:
    jobs = JobNumbers(last=2, nth=lambda number, n: 10 * number + n)
    jobs.resume(2, 21)
    assert jobs.take() == (1, 10)
    jobs.give_back(2)
    assert jobs.take() == (2, 20)
    jobs.give_back(2)
    assert jobs.take() == (2, 22)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3), max_size=60))
def test_no_pair_is_given_twice(returns: list[int]) -> None:
    jobs = JobNumbers(last=4)
    seen: set[tuple[int, int]] = set()
    out: list[int] = []
    for which in returns:
        if len(out) == 4:
            jobs.give_back(out.pop(which))
        pair = jobs.take()
        assert pair not in seen
        assert pair[0] not in out
        seen.add(pair)
        out.append(pair[0])
