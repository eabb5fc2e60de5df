# SPDX-License-Identifier: Apache-2.0
"""Numbers in few words: any that increase come back, in as few bits as the code promises; what is no code is told."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from p4reduce.tensors import places as module
from p4reduce.tensors.places import Code


@pytest.fixture(autouse=True, scope="module")
def in_numpy() -> Iterator[None]:
    """tests/fastpath/test_places_in_c.py compares C with this."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_in_c", lambda: None)
        yield


@st.composite
def numbers(draw: st.DrawFn) -> tuple[np.ndarray, int]:
    bound = draw(st.one_of(st.integers(0, 300), st.integers(1, 2**20), st.integers(2**31, 2**62)))
    some = draw(st.sets(st.integers(0, bound - 1), max_size=200)) if bound else set()
    return np.array(sorted(some), np.int64), bound


@given(given_=numbers())
@example((np.arange(300), 300))
@example((np.array([2**62 - 1]), 2**62))
def test_numbers_come_back(given_: tuple[np.ndarray, int]) -> None:
    places, bound = given_
    code = Code(places.size, bound)
    words = code.encode(places)
    assert words.dtype == np.int32
    assert words.shape == (code.words,)
    assert code.decode(words).tolist() == places.tolist()


@pytest.mark.parametrize(("density", "bits"), [(0.5, 2.01), (0.1, 5.4), (0.01, 8.7), (0.001, 12.2), (0.0001, 15.9)])
def test_numbers_take_few_bits(density: float, bits: float) -> None:
    bound = 1 << 21
    places = np.flatnonzero(np.random.default_rng(1).random(bound) < density)
    code = Code(places.size, bound)
    assert np.array_equal(code.decode(code.encode(places)), places)
    each = 32 * code.words / places.size
    entropy = -(density * math.log2(density) + (1 - density) * math.log2(1 - density)) / density
    assert 0.98 * entropy <= each <= bits


@given(given_=numbers(), data=st.data())
def test_no_words_make_numbers_that_are_none(given_: tuple[np.ndarray, int], data: st.DataObject) -> None:
    """Words may be a faulty peer's: what they give increases and is below the bound, or there is an error."""
    places, bound = given_
    code = Code(places.size, bound)
    words = code.encode(places).copy()
    if words.size == 0:
        return
    for _ in range(data.draw(st.integers(1, 3))):
        words[data.draw(st.integers(0, words.size - 1))] ^= np.int32(1 << data.draw(st.integers(0, 30)))
    with contextlib.suppress(ValueError):
        got = code.decode(words)
        assert got.size == places.size
        assert (np.diff(got) > 0).all()
        assert 0 <= got[0] <= got[-1] < bound


def test_more_numbers_than_there_are() -> None:
    with pytest.raises(ValueError, match="4 different numbers below 3"):
        Code(4, 3)
