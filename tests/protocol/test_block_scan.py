# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
import struct

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p4reduce.protocol.blocks import NOT_FINITE, ZERO, Blocks

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

SUBNORMAL = np.float32(1e-45)
LARGEST = np.finfo(np.float32).max


def scan(values: list[float], block_size: int = 4) -> list[int]:
    exponents: list[int] = Blocks(np.array(values, np.float32), block_size).scan().tolist()
    return exponents


def biased_exponent(value: float) -> int:
    """By the definition of the format, not by its bits."""
    if not math.isfinite(value):
        return NOT_FINITE
    if value == 0:
        return ZERO
    return max(math.frexp(value)[1] + 126, 1)


@pytest.mark.parametrize(
    ("values", "exponents"),
    [
        ([], []),
        ([0.0], [ZERO]),
        ([-0.0, 0.0, -0.0], [ZERO]),
        ([1.0], [127]),
        ([-1.0], [127]),
        ([1.0, 0, 0, 0, 0, 0, 0, -2.5], [127, 128]),
        ([0, 0, 0, 0, 0, 3.0], [ZERO, 128]),
        ([SUBNORMAL, -SUBNORMAL], [1]),
        ([np.finfo(np.float32).tiny], [1]),
        ([LARGEST, -LARGEST], [254]),
        ([math.inf], [NOT_FINITE]),
        ([0, -math.inf], [NOT_FINITE]),
        ([0, 0, 0, 0, math.nan], [ZERO, NOT_FINITE]),
        ([-math.nan, 1], [NOT_FINITE]),
    ],
)
def test_scan(values: list[float], exponents: list[int]) -> None:
    assert scan(values) == exponents


@given(hnp.arrays(np.uint32, st.integers(0, 70)), st.integers(1, 33))
def test_scan_of_any_bits(bits: npt.NDArray[np.uint32], block_size: int) -> None:
    values = [float(np.frombuffer(struct.pack("=I", word), np.float32)[0]) for word in bits.tolist()]
    expected = [
        max(map(biased_exponent, values[start : start + block_size])) for start in range(0, len(values), block_size)
    ]
    data = bits.view(np.float32)
    before = bits.copy()
    blocks = Blocks(data, block_size)
    assert blocks.scan().tolist() == expected
    some = list(range(blocks.count))[::-2]
    assert not some or blocks.scan(some).tolist() == expected[::-2]
    np.testing.assert_array_equal(bits, before)


@pytest.mark.parametrize("size", [0, 1, 64, 65, 1024 * 64, 1024 * 64 + 1, 2050 * 64 + 17])
def test_scan_of_long_arrays(size: int) -> None:
    """Longer than what is scanned at once, and ragged."""
    rng = np.random.default_rng(size)
    data = rng.standard_normal(size).astype(np.float32) * (rng.random(size) < 0.02)
    padded = np.zeros(-(-size // 64) * 64, np.float32)
    padded[:size] = data
    exponents = Blocks(data.astype(np.float32), 64).scan()
    np.testing.assert_array_equal(exponents != ZERO, padded.reshape(-1, 64).any(axis=1))


def test_scan_of_int32() -> None:
    data = np.array([0, 0, 0, -1, 0, 0, -(2**31)], np.int32)
    assert Blocks(data, 2).scan().tolist() == [ZERO, 255, ZERO, 255]


def test_clear_removes_negative_zeros() -> None:
    data = np.array([-0.0, 0, 0, 0, 1, -0.0, 0, 0, -0.0, -0.0], np.float32)
    blocks = Blocks(data, 4)
    blocks.clear(np.flatnonzero(blocks.scan() == ZERO).tolist())
    np.testing.assert_array_equal(np.signbit(data), [0, 0, 0, 0, 0, 1, 0, 0, 0, 0])
    assert data[4] == 1


@given(st.integers(1, 40), st.integers(1, 9), st.data())
def test_gather_and_scatter(size: int, block_size: int, data: st.DataObject) -> None:
    values = np.arange(1, size + 1, dtype=np.float32)
    blocks = Blocks(values, block_size)
    assert blocks.count == math.ceil(size / block_size)
    ids = data.draw(st.lists(st.integers(0, blocks.count - 1), min_size=1, unique=True))
    padded = np.zeros(blocks.count * block_size, np.float32)
    padded[:size] = values
    rows = blocks.gather(ids)
    np.testing.assert_array_equal(rows, padded.reshape(-1, block_size)[ids])

    blocks.scatter(ids, -rows)
    padded.reshape(-1, block_size)[ids] *= -1
    np.testing.assert_array_equal(values, padded[:size])
