# SPDX-License-Identifier: Apache-2.0
"""Numbers in few words: any that increase come back, in as few bits as the code promises; what is no code is told.

In C as in NumPy: of any numbers, of any words, and of tensors of any length.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from p4reduce.tensors import indices
from p4reduce.tensors.indices import Code, find, locate, union


def both(work: Callable[[], Any]) -> tuple[Any, Any]:
    """Return the results in C and in NumPy. An error's text takes the place of a result."""
    assert indices._in_c() is not None
    results = []
    for in_c in (indices._in_c(), None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(indices, "_in_c", lambda in_c=in_c: in_c)
            try:
                results.append(work().tolist())
            except ValueError as error:
                results.append(str(error))
    return results[0], results[1]


@st.composite
def increasing(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    bound = draw(st.one_of(st.integers(0, 300), st.integers(1, 2**20), st.integers(2**31, 2**62)))
    some = st.sets(st.integers(0, bound - 1), max_size=200) if bound else st.just(set())
    return np.array(sorted(draw(some | st.just(set(range(min(bound, 200)))))), np.int64), bound


@given(given_=increasing())
@example((np.arange(0, 2**62, 2**56), 2**62))
@example((np.arange(300), 300))
@example((np.array([2**62 - 1]), 2**62))
def test_codes_and_numbers(given_: tuple[np.ndarray, int]) -> None:
    numbers, bound = given_
    code = Code(numbers.size, bound)
    in_c, in_numpy = both(lambda: code.encode(numbers))
    assert in_c == in_numpy
    words = np.array(in_c, np.int32)
    assert words.shape == (code.words,)
    assert both(lambda: code.decode(words)) == (numbers.tolist(), numbers.tolist())


@pytest.mark.parametrize(("density", "bits"), [(0.5, 2.01), (0.1, 5.4), (0.01, 8.7), (0.001, 12.2), (0.0001, 15.9)])
def test_numbers_take_few_bits(density: float, bits: float) -> None:
    bound = 1 << 21
    numbers = np.flatnonzero(np.random.default_rng(1).random(bound) < density)
    entropy = -(density * math.log2(density) + (1 - density) * math.log2(1 - density)) / density
    assert 0.98 * entropy <= 32 * Code(numbers.size, bound).words / numbers.size <= bits


def test_more_numbers_than_there_are() -> None:
    with pytest.raises(ValueError, match="4 different numbers below 3"):
        Code(4, 3)


@given(given_=increasing(), data=st.data())
def test_words_that_are_no_code(given_: tuple[np.ndarray, int], data: st.DataObject) -> None:
    """Words of a faulty peer either decode to increasing numbers below the bound, or are an error."""
    numbers, bound = given_
    code = Code(numbers.size, bound)
    words = code.encode(numbers).copy()
    if words.size == 0:
        return
    for _ in range(data.draw(st.integers(1, 3))):
        words[data.draw(st.integers(0, words.size - 1))] ^= np.int32(1 << data.draw(st.integers(0, 30)))
    in_c, got = both(lambda: code.decode(words))
    assert in_c == got
    if not isinstance(got, str):
        assert len(got) == numbers.size
        assert got == sorted(set(got))
        assert 0 <= got[0] <= got[-1] < bound


@given(
    size=st.integers(0, 300), density=st.floats(0, 1), dtype=st.sampled_from(["float32", "int32"]), seed=st.integers(0)
)
def test_elements_that_are_not_zero(size: int, density: float, dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    odd = rng.choice(np.array([1, 1 << 31, 0x7FC00000, 0x7F800000, 0xFFFFFFFF], np.uint32), size)
    values = np.where(rng.random(size) < density, odd, 0).astype(np.uint32).view(dtype)
    in_c, in_numpy = both(lambda: find(values))
    assert in_c == in_numpy


@given(bound=st.sampled_from([1, 64, 65, 1000, 1 << 40]), sizes=st.lists(st.integers(0, 100), min_size=1, max_size=5),
       seed=st.integers(0))  # fmt: skip
def test_unions_and_where_numbers_stand_in_them(bound: int, sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    lists = [np.unique(rng.integers(0, bound, size)) for size in sizes]
    in_c, in_numpy = both(lambda: union(lists, bound))
    assert in_c == in_numpy == sorted(set(np.concatenate(lists).tolist()))
    all_ = np.array(in_c, np.int64)
    for some in lists:
        in_c, in_numpy = both(lambda some=some: locate(all_, some))
        assert in_c == in_numpy == [all_.tolist().index(number) for number in some.tolist()]
