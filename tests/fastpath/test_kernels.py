# SPDX-License-Identifier: Apache-2.0
"""Every instruction set that this processor has gives the reference's bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p4reduce.protocol.blocks import NOT_FINITE, Blocks
from p4reduce.protocol.constants import MAX_RANKS
from p4reduce.protocol.halves import BFLOAT16, narrowed, type_name, widened
from p4reduce.protocol.numbers import WIRES, FloatNumbers, Wire, magnitude_bits, values_per_word
from tests.support.protocol import c_numbers as fast

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

TYPES = [np.dtype(np.float32), np.dtype(np.int32), np.dtype(np.float16), BFLOAT16]
dtypes = pytest.mark.parametrize("dtype", TYPES, ids=map(type_name, TYPES))
wires = pytest.mark.parametrize("wire", WIRES)
WORLD_SIZES = [1, 2, 3, 5, 9, 17, 32]  # one for each number of bits of headroom
FORMS = [(size, wire) for wire in WIRES for size in WORLD_SIZES] + [(MAX_RANKS, "int32"), (MAX_RANKS, "int16")]
SUMS = np.unique(
    np.concatenate(
        [
            np.array([sign * (2**power + step) for power in range(31) for step in range(-3, 4) for sign in (1, -1)]),
            np.array([2**31 - 1, -(2**31)]),
            # Halfway between two float32, and beside that.
            np.array(
                [
                    (2**24 + 2 * odd + 1) * 2**shift + step
                    for odd in range(3)
                    for shift in range(6)
                    for step in (-1, 0, 1)
                ]
            ),
            np.random.default_rng(1).integers(-(2**31), 2**31, 1000),
        ]
    )
).astype(np.int32)


def bits(array: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    return array.view(np.uint32)


def values_up_to(exponent: int, magnitude: int) -> npt.NDArray[np.float32]:
    """Return float32 values of a block whose largest biased exponent is `exponent`: its edges, ties, and others.

    magnitude: how many bits a value has on the wire.
    """
    rng = np.random.default_rng(exponent)
    top = np.uint32(min(exponent, 254) << 23 | 0x7FFFFF)
    any_bits = rng.integers(0, int(top) + 1, 300, np.uint32)
    close = top - rng.integers(0, min(int(top), 32 << 23) + 1, 600, np.uint32).clip(max=int(top))
    # Whole and half quanta of a block of this exponent.
    quanta = rng.integers(-(2 ** min(22, magnitude)), 2 ** min(22, magnitude), 1800) / 2
    halves = np.ldexp(quanta, exponent - 126 - magnitude)
    halves = halves[np.abs(halves) < np.ldexp(1.0, exponent - 126)]
    with np.errstate(under="ignore", over="ignore"):
        halves = halves.astype(np.float32)
    magnitudes = np.concatenate([any_bits, close, [np.uint32(0), np.uint32(1), top]]).astype(np.uint32)
    both = np.concatenate([magnitudes, magnitudes | np.uint32(1 << 31), bits(halves)])
    return both[(both & 0x7FFFFFFF) <= top].view(np.float32)


def padded(values: npt.NDArray[np.float32], wire: Wire) -> npt.NDArray[np.float32]:
    """Return the values as one block that fills its words, with zeros at the end: shape (1, values)."""
    whole = np.zeros(-(-values.size // values_per_word(wire)) * values_per_word(wire), np.float32)
    whole[: values.size] = values
    return whole[np.newaxis]


@pytest.mark.parametrize(("world_size", "wire"), FORMS)
def test_quantise_every_exponent(simd: str, world_size: int, wire: Wire) -> None:
    reference = FloatNumbers(world_size, wire)
    for exponent in range(1, 256):
        values = values_up_to(exponent, magnitude_bits(wire, world_size))
        block = padded(values, wire)
        expected = reference.quantise(block, [exponent], [exponent], 9)[0]
        actual = fast.quantise(values, exponent, world_size, simd, wire=wire, seed=9, first=exponent * block.size)
        np.testing.assert_array_equal(actual, expected, err_msg=str(exponent))


@pytest.mark.parametrize(("world_size", "wire"), FORMS)
def test_dequantise_every_exponent(simd: str, world_size: int, wire: Wire) -> None:
    reference = FloatNumbers(world_size, wire)
    for exponent in range(256):
        expected = reference.dequantise(SUMS[np.newaxis], [exponent])[0]
        actual = fast.dequantise(SUMS, exponent, world_size, simd=simd, wire=wire)
        np.testing.assert_array_equal(bits(actual), bits(expected), err_msg=str(exponent))


@wires
@settings(max_examples=60)
@given(data=st.data(), world_size=st.integers(1, 32))
def test_any_block(simd: str, wire: Wire, data: st.DataObject, world_size: int) -> None:
    reference = FloatNumbers(world_size, wire)
    words = data.draw(hnp.arrays(np.uint32, st.integers(1, 150)))
    values = words.view(np.float32)
    (exponent,) = Blocks(values, values.size).scan().tolist()
    if exponent == 0:
        return
    index, seed = data.draw(st.integers(0, 2**24)), data.draw(st.integers(0, 2**32 - 1))
    block = padded(values, wire)
    quanta = fast.quantise(values, exponent, world_size, simd, wire=wire, seed=seed, first=index * block.size)
    np.testing.assert_array_equal(quanta, reference.quantise(block, [exponent], [index], seed)[0])
    sums = words.view(np.int32)
    expected = reference.dequantise(sums[np.newaxis], [exponent])[0]
    actual = fast.dequantise(sums, exponent, world_size, simd=simd, wire=wire)
    np.testing.assert_array_equal(bits(actual), bits(expected))


@wires
def test_every_length(simd: str, wire: Wire) -> None:
    """The last word is filled up with zeros; nothing beyond it is read or written, which sanitizers would see."""
    exponent = 126 + magnitude_bits(wire, 1)  # a quantum is 1, and nothing is left to chance
    for count in range(140):
        values = np.resize(np.arange(-60, 60, dtype=np.float32), count)
        words = fast.quantise(values, exponent, 1, simd, wire=wire)
        expected = FloatNumbers(1, wire).quantise(padded(values, wire), [exponent], [0], 0)[0]
        np.testing.assert_array_equal(words, expected)
        back = fast.dequantise(words, exponent, 1, simd=simd, wire=wire, count=count)
        np.testing.assert_array_equal(back, values)


def test_every_length_of_integers(simd: str) -> None:
    for count in range(70):
        integers = np.arange(-3, count - 3, dtype=np.int32)
        np.testing.assert_array_equal(fast.quantise(integers, NOT_FINITE, 1, simd), integers)
        np.testing.assert_array_equal(fast.dequantise(integers, NOT_FINITE, 1, np.int32, simd), integers)


def test_not_finite_blocks(simd: str) -> None:
    values = np.array([1, np.nan, np.inf, -np.inf] * 9, np.float32)
    assert not fast.quantise(values, NOT_FINITE, 4, simd).any()
    back = fast.dequantise(np.arange(36, dtype=np.int32), NOT_FINITE, 4, simd=simd)
    assert set(bits(back).tolist()) == {0x7FC00000}


@dtypes
@settings(max_examples=60)
@given(words=hnp.arrays(np.uint16, st.integers(0, 300)), block_size=st.integers(1, 70), signs=st.booleans())
def test_scan_of_any_bits(
    simd: str, dtype: np.dtype[Any], words: npt.NDArray[np.uint16], block_size: int, signs: bool
) -> None:
    """A scan of 16-bit floats gives the same as one of their values as float32."""
    words = words[: words.size // 2 * 2]
    data = (words & np.uint16(0x8000) if signs else words).view(dtype)
    expected = Blocks(data if dtype.itemsize == 4 else widened(data), block_size).scan()
    np.testing.assert_array_equal(fast.scan(data, block_size, simd), expected)


def test_scan_finds_a_single_value_anywhere(simd: str) -> None:
    for block_size in (1, 3, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 256):
        size = 3 * block_size + block_size // 2
        for index in range(size):
            for value, exponent in ((1.0, 127), (-0.0, 0), (1e-45, 1), (-np.inf, 255), (np.nan, 255)):
                data = np.zeros(size, np.float32)
                data[index] = value
                expected = np.zeros(-(-size // block_size), np.uint8)
                expected[index // block_size] = exponent
                np.testing.assert_array_equal(fast.scan(data, block_size, simd), expected)


@dtypes
def test_data_need_not_be_aligned_to_vectors(simd: str, dtype: np.dtype[Any]) -> None:
    data = narrowed(np.random.default_rng(1).standard_normal(400).astype(np.float32), dtype)
    for offset in range(1, 16):
        view = data[offset : offset + 300]
        np.testing.assert_array_equal(fast.scan(view, 64, simd), Blocks(view, 64).scan())
        np.testing.assert_array_equal(fast.quantise(view, 140, 2, simd), fast.quantise(view.copy(), 140, 2, "portable"))


def test_unknown_set_is_refused(simd: str) -> None:
    with pytest.raises(ValueError, match=f"simd='abacus': this processor has .*{simd}"):
        fast.scan(np.zeros(1, np.float32), 1, "abacus")
