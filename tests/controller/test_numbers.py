# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4reduce_controller import numbers
from p4reduce_controller.numbers import JobNumbers, NumbersExhausted


def test_the_lowest_free_number_comes_next_with_a_new_generation() -> None:
    given = JobNumbers(first_generation=lambda: 7)
    assert [given.take() for _ in range(3)] == [(1, 7), (2, 7), (3, 7)]
    given.give_back(2)
    given.give_back(1)
    assert [given.take() for _ in range(3)] == [(1, 8), (2, 8), (4, 7)]


def test_generations_wrap_but_never_repeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "GENERATIONS", 4)
    jobs = JobNumbers(last=1, first_generation=lambda: 2)
    generations = []
    for _ in range(4):
        number, generation = jobs.take()
        generations.append(generation)
        jobs.give_back(number)
    assert generations == [2, 3, 0, 1]
    with pytest.raises(NumbersExhausted):  # the number has had them all
        jobs.take()


def test_no_number_is_left() -> None:
    jobs = JobNumbers(last=2)
    jobs.take()
    jobs.take()
    with pytest.raises(NumbersExhausted, match="all 2 job numbers"):
        jobs.take()


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
