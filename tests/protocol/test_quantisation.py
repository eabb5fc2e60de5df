# SPDX-License-Identifier: Apache-2.0
"""The sums, held to exact arithmetic with fractions."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p4reduce.errors import UnsupportedDtype
from p4reduce.protocol.blocks import Blocks
from p4reduce.protocol.constants import MAX_RANKS
from p4reduce.protocol.halves import widened
from p4reduce.protocol.numbers import (
    WIRES,
    FloatNumbers,
    Wire,
    error_bound,
    magnitude_bits,
    noise,
    numbers_for,
    reference_allreduce,
)

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

LARGEST = float(np.finfo(np.float32).max)
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def assert_same_bits(actual: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
    assert actual.dtype == expected.dtype
    np.testing.assert_array_equal(actual.view(np.uint32), expected.view(np.uint32))


def exact_block_sum(columns: npt.NDArray[np.float32]) -> list[float]:
    """Return the sum of one block, element by element, as section "Numbers" of docs/protocol.md has it.

    columns: the ranks' values, of shape (ranks, values).
    """
    ranks = len(columns)
    headroom = math.ceil(math.log2(ranks))
    largest = float(np.abs(columns).max())
    exponent = max(math.frexp(largest)[1] + 126, 1)
    scale = Fraction(2) ** (30 - headroom - (exponent - 126))
    sums = []
    for column in columns.T:
        quanta = sum(round(Fraction(float(value)) * scale) for value in column)  # round() takes ties to even
        assert abs(quanta) <= 2**30
        sums.append(float(quanta / scale))  # exact in float64
    return sums


def blocks_of(*rows: list[float]) -> npt.NDArray[np.float32]:
    return np.array([[*row, 0.0, 0.0, 0.0, 0.0][:4] for row in rows], np.float32)


QUANTUM = 2.0**-29  # of one rank whose largest magnitude is 1
LEAST = 2.0**-149


@settings(max_examples=300)
@given(st.integers(1, 32).flatmap(lambda ranks: hnp.arrays(np.float32, (ranks, 4), elements=FLOATS)))
@example(blocks_of([1.0, 0.5 * QUANTUM, 1.5 * QUANTUM, -2.5 * QUANTUM]))  # ties go to even
@example(blocks_of([1.0, 2.0**-32], [-1.0, -(2.0**-32)]))  # what is much smaller than the largest vanishes
@example(blocks_of([LEAST, -3 * LEAST], [LEAST, 0.0]))  # subnormals are exact
@example(blocks_of([LARGEST, -LARGEST]))
@example(blocks_of([LARGEST, -LARGEST], [LARGEST, -LARGEST]))  # to infinity
@example(blocks_of(*[[LARGEST, 1.0]] * 16, *[[-LARGEST, 1.0]] * 16))
@example(blocks_of([-0.0, 1.0, -1.0], [-0.0, -1.0, 1.0]))  # no zero is negative
@example(blocks_of([-0.0, -0.0]))
def test_reference_is_the_formula(block: npt.NDArray[np.float32]) -> None:
    with np.errstate(over="ignore"):
        expected = np.array(exact_block_sum(block), np.float32) if block.any() else np.zeros(4, np.float32)
    assert_same_bits(reference_allreduce(list(block), block_size=4), expected + np.float32(0))


def narrow_sum(columns: npt.NDArray[np.float32], wire: Wire, seed: int = 0) -> list[float]:
    """Return the sums of values that fill one word, of which each rank has a row of `columns`."""
    ranks, bits = len(columns), {"int16": 16, "int8": 8}[wire]
    largest_sum = 2 ** (bits - 1) - 1
    magnitude = max(p for p in range(bits) if ranks * (2**p - 1) <= largest_sum)
    exponent = max(math.frexp(float(np.abs(columns).max()))[1] + 126, 1)
    scale = Fraction(2) ** (magnitude - (exponent - 126))
    sums = []
    for index, column in enumerate(columns.T):
        total = 0
        for rank, value in enumerate(column):
            if wire == "int16":
                quantum = round(Fraction(float(value)) * scale)
            else:
                (chance,) = noise(seed | rank, np.array([index], np.uint64)).tolist()
                quantum = math.floor(Fraction(round(Fraction(float(value)) * scale * 2**23) + chance, 2**23))
            total += min(max(quantum, 1 - 2**magnitude), 2**magnitude - 1)
        assert abs(total) <= largest_sum
        sums.append(float(total / scale))
    return sums


@pytest.mark.parametrize("wire", ["int16", "int8"])
@settings(max_examples=300)
@given(st.data(), st.integers(1, 32))
def test_reference_of_narrow_words_is_the_formula(wire: Wire, data: st.DataObject, ranks: int) -> None:
    block = data.draw(hnp.arrays(np.float32, (ranks, {"int16": 2, "int8": 4}[wire]), elements=FLOATS))
    zeros = np.zeros(block.shape[1], np.float32)
    with np.errstate(over="ignore"):
        expected = np.array(narrow_sum(block, wire, 0xABCD00), np.float32) if block.any() else zeros
    actual = reference_allreduce(list(block), block_size=1, wire=wire, operation=0xABCD00)
    assert_same_bits(actual, expected + np.float32(0))


@pytest.mark.parametrize("wire", ["int32", "int16", "int8"])
@settings(max_examples=300)
@given(st.data(), st.integers(1, 32), st.sampled_from([1.0, 1e-40, 1e30, LARGEST]))
def test_error_bound(wire: Wire, data: st.DataObject, ranks: int, size: float) -> None:
    unit = st.floats(-1, 1, width=32)
    block = data.draw(hnp.arrays(np.float32, (ranks, 4), elements=unit)) * np.float32(size)
    pairs = [block] if wire != "int16" else [block[:, :2], block[:, 2:]]
    for some in pairs:
        exponents = np.max([Blocks(row, 4).scan() for row in some], axis=0)
        bound = Fraction(float(error_bound(exponents, ranks, wire)[0]))
        sums = (exact_block_sum(some) if wire == "int32" else narrow_sum(some, wire)) if some.any() else [0.0] * 4
        for mine, column in zip(sums, some.T, strict=False):
            exact = sum(Fraction(float(value)) for value in column)
            assert abs(Fraction(mine) - exact) <= bound


@pytest.mark.parametrize("wire", ["int32", "int16"])
@settings(max_examples=300)
@given(st.sampled_from([255, 256, 257, 1000, 2048, 2049, 4095, MAX_RANKS]), st.data())
def test_sums_of_thousands_of_ranks_are_exact(wire: Wire, ranks: int, data: st.DataObject) -> None:
    """Ranks have one of three blocks, so the sum is that of three products."""
    kinds = st.one_of(FLOATS, st.sampled_from([LARGEST, -LARGEST, LEAST, 1.0, -1.0]))
    rows = data.draw(hnp.arrays(np.float32, (3, 2), elements=kinds))
    first = data.draw(st.integers(0, ranks))
    counts = (first, second := data.draw(st.integers(0, ranks - first)), ranks - first - second)
    exponent = max(math.frexp(float(np.abs(rows).max()))[1] + 126, 1)
    numbers = numbers_for(np.dtype(np.float32), ranks, wire)
    words = numbers.quantise(rows, [exponent] * 3, [0, 0, 0], 0).astype(np.int64)
    added = np.asarray(counts) @ words
    assert wire != "int32" or np.abs(added).max() <= 2**30
    result = numbers.dequantise(added.astype(np.int32)[np.newaxis], [exponent])[0]
    magnitude = 30 - math.ceil(math.log2(ranks)) if wire == "int32" else int(math.log2((2**15 - 1) // ranks + 1))
    most, scale = 2**magnitude - (wire == "int16"), Fraction(2) ** (magnitude - (exponent - 126))
    for mine, column in zip(result, rows.T, strict=True):
        quanta = [min(max(round(Fraction(float(value)) * scale), -most), most) for value in column]
        with np.errstate(over="ignore"):
            expected = np.float32(float(sum(map(int.__mul__, counts, quanta)) / scale))
        assert_same_bits(np.array([mine]), np.array([expected]) + np.float32(0))


def test_the_most_ranks_have_bits_left() -> None:
    assert [magnitude_bits(wire, MAX_RANKS) for wire in WIRES] == [18, 3, 0]


@pytest.mark.parametrize("wire", ["int16", "int8"])
def test_no_lane_of_a_word_overflows_at_any_size(wire: Wire) -> None:
    """Every rank sends the largest or the least there is; the lane beside it is at the other end."""
    for ranks in range(1, 128) if wire == "int8" else [*range(1, 256), 1023, 1024, 1365, MAX_RANKS - 1, MAX_RANKS]:
        top = np.float32(2 ** magnitude_bits(wire, ranks) - 1)  # in units of the quantum
        row = np.array([top, -top, top, -top, 0, top, -top, 0], np.float32)
        result = reference_allreduce([row] * ranks, block_size=8, wire=wire)
        np.testing.assert_array_equal(result, np.float64(ranks) * row)


def test_the_least_words_have_no_room_for_many_ranks() -> None:
    with pytest.raises(ValueError, match=r"wire 'int8' of 128 ranks: sums have 8 bits, for up to 127 ranks"):
        reference_allreduce([np.ones(4, np.float32)] * 128, wire="int8")
    with pytest.raises(ValueError, match=r"wire 'int16' of int32: accepted are int32"):
        numbers_for(np.dtype(np.int32), 2, "int16")


def test_int8_errs_to_both_sides_alike() -> None:
    """The mean of many roundings is the value: a third of a quantum is rounded up once in three."""
    values = np.full(400_000, 1 / 3, np.float32)
    values[::256] = 63  # makes a quantum 1
    result = reference_allreduce([values, np.zeros_like(values)], wire="int8", operation=77 << 8)
    rounded = result[values < 1]
    assert set(np.unique(rounded).tolist()) == {0.0, 1.0}
    deviation = math.sqrt(1 / 3 * 2 / 3 / rounded.size)
    assert abs(float(rounded.mean()) - 1 / 3) < 5 * deviation
    other = reference_allreduce([values, np.zeros_like(values)], wire="int8", operation=78 << 8)
    assert 0.3 < float((other != result).mean()) < 0.6  # 4 / 9 of them


def test_noise_is_even() -> None:
    drawn = noise(12345, np.arange(1 << 20, dtype=np.uint64))
    assert drawn.min() >= 0
    assert drawn.max() < 2**23
    counts = np.bincount(drawn >> 15, minlength=256)
    assert abs(float(((counts - 4096.0) ** 2 / 4096).sum()) - 255) < 5 * math.sqrt(2 * 255)  # chi-squared


def test_each_ranks_error_is_below_float32_rounding() -> None:
    """Up to 32 ranks each add at most float32's rounding error of the block's largest magnitude."""
    for ranks in range(1, 33):
        exponent = 127  # magnitudes up to 2, at least 1
        assert error_bound([exponent], ranks)[0] <= ranks * 2.0**-24


@given(hnp.arrays(np.int32, (3, 5)))
def test_int32_wraps(columns: npt.NDArray[np.int32]) -> None:
    exact = columns.astype(np.int64).sum(axis=0)
    expected = ((exact + 2**31) % 2**32 - 2**31).astype(np.int32)
    np.testing.assert_array_equal(reference_allreduce(list(columns), block_size=2), expected)


def test_not_finite_blocks_are_nan_everywhere_and_nowhere_else() -> None:
    for special in (math.nan, math.inf, -math.inf):
        rows = [np.array(row, np.float32) for row in ([1, special, 1, 1], [1, 1, 1, 1])]
        got = reference_allreduce(rows, block_size=2)
        assert np.isnan(got).tolist() == [True, True, False, False]
        assert got[2:].tolist() == [2, 2]


def test_nan_is_always_the_same_bits() -> None:
    odd = np.array([0xFFC12345, 0], np.uint32).view(np.float32)
    assert_same_bits(reference_allreduce([odd, odd], block_size=2), np.full(2, np.nan, np.float32))


def test_no_sum_overflows_at_any_size() -> None:
    for ranks in range(1, 33):
        numbers = FloatNumbers(ranks)
        just_below = np.full((1, 1), np.nextafter(np.float32(2), np.float32(0)))
        quantum = int(numbers.quantise(just_below, [127], [0], 0)[0, 0])
        assert 2**28 / ranks < quantum
        assert ranks * quantum <= 2**30


def test_average() -> None:
    rows = [np.array([1, 2, 4], np.float32)] * 3
    np.testing.assert_array_equal(reference_allreduce(rows, "avg"), rows[0])
    with pytest.raises(ValueError, match="op 'avg' of int32: accepted are 'sum', and 'avg' of floats"):
        reference_allreduce([np.ones(2, np.int32)], "avg")


def test_halves_are_added_and_divided_as_float32() -> None:
    rows = [np.array([60000, 0.1, -0.0, 1], np.float16), np.array([60000, 0.3, 0, 2**-24], np.float16)]
    for op, wire in itertools.product(("sum", "avg"), WIRES):
        with np.errstate(over="ignore"):
            expected = reference_allreduce([widened(row) for row in rows], op, 2, wire).astype(np.float16)
        result = reference_allreduce(rows, op, 2, wire)
        assert result.dtype == np.float16
        assert result.tobytes() == expected.tobytes()
        assert math.isinf(result[0]) == (op == "sum")


def test_shapes() -> None:
    for shape in [(0,), (1,), (), (3, 0), (5, 7), (130,)]:
        rows = [np.ones(shape, np.float32)] * 2
        result = reference_allreduce(rows)
        assert result.shape == shape
        np.testing.assert_array_equal(result, 2 * rows[0])
    strided = np.arange(12, dtype=np.float32).reshape(3, 4).T
    np.testing.assert_array_equal(reference_allreduce([strided]), strided)
    with pytest.raises(ValueError, match="arrays differ in shape or dtype"):
        reference_allreduce([np.ones(2, np.float32), np.ones(3, np.float32)])


def test_more_blocks_than_are_reduced_at_once() -> None:
    rows = [np.random.default_rng(rank).standard_normal(9001).astype(np.float32) for rank in range(3)]
    parts = [reference_allreduce([row[at : at + 1000] for row in rows], block_size=1) for at in range(0, 9001, 1000)]
    assert_same_bits(reference_allreduce(rows, block_size=1), np.concatenate(parts))


def test_unsupported_dtype() -> None:
    with pytest.raises(UnsupportedDtype, match="dtype float64 cannot be aggregated: supported are native float32, int"):
        numbers_for(np.dtype(np.float64), 2)
