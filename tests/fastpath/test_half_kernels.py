# SPDX-License-Identifier: Apache-2.0
"""16-bit floats in every instruction set: torch's and NumPy's conversions, and else what is done with float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p4reduce.protocol import halves
from p4reduce.protocol.blocks import Blocks
from p4reduce.protocol.halves import BFLOAT16, type_name
from p4reduce.protocol.numbers import WIRES, Wire
from tests.support.protocol import c_numbers as fast

TYPES = [np.dtype(np.float16), BFLOAT16]

pytestmark = [
    pytest.mark.filterwarnings("error::RuntimeWarning"),
    pytest.mark.parametrize("dtype", TYPES, ids=map(type_name, TYPES)),
]

ALL = np.arange(1 << 16, dtype=np.uint16)
Dtype = np.dtype[Any]


def assert_as(actual: npt.NDArray[Any], expected: npt.NDArray[Any]) -> None:
    """Assert that all values have the same bits, except NaNs, which libraries convert to different bits."""
    bits = np.dtype(f"u{actual.itemsize}")
    nan = np.isnan(halves.widened(expected))
    np.testing.assert_array_equal(actual.view(bits)[~nan], expected.view(bits)[~nan])
    assert np.isnan(halves.widened(actual))[nan].all()


def torchs(values: npt.NDArray[np.float32], dtype: Dtype) -> npt.NDArray[Any]:
    torch = pytest.importorskip("torch", reason="needs torch")
    narrow = torch.from_numpy(values).to(torch.bfloat16 if dtype == BFLOAT16 else torch.float16)
    bits: npt.NDArray[np.uint16] = narrow.view(torch.int16).numpy().view(np.uint16)
    return bits.view(dtype)


def test_widen_every_value(simd: str, dtype: Dtype) -> None:
    wide = fast.widened(ALL.view(dtype), simd)
    assert_as(wide, halves.widened(ALL.view(dtype)))
    assert wide.tobytes() == fast.widened(ALL.view(dtype), "portable").tobytes()


def test_narrow_every_value_and_what_is_between(simd: str, dtype: Dtype) -> None:
    """The values are all that are exact, the middles between neighbours, and those just beside either."""
    wide = fast.widened(ALL.view(dtype), "portable").view(np.uint32)
    half_an_ulp = np.uint32(1 << (15 if dtype == BFLOAT16 else 12))
    middles = wide + half_an_ulp
    if dtype == np.float16:  # in subnormals, an ULP is larger
        values = wide.view(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):
            middles = np.concatenate([middles, (values + np.float32(2.0**-25)).view(np.uint32)])
    one = np.uint32(1)
    bits = np.concatenate([wide, wide + one, wide - one, middles, middles + one, middles - one])
    values = bits.view(np.float32)
    narrow = fast.narrowed(values, dtype, simd)
    assert_as(narrow, torchs(values, dtype))
    assert_as(narrow, halves.narrowed(values, dtype))
    assert narrow.tobytes() == fast.narrowed(values, dtype, "portable").tobytes()


@settings(max_examples=60)
@given(bits=hnp.arrays(np.uint32, st.integers(0, 70)))
def test_narrow_any_bits(simd: str, dtype: Dtype, bits: npt.NDArray[np.uint32]) -> None:
    """Vectors and what is left over; nothing beyond the values is read or written, which sanitizers would see."""
    values = bits.view(np.float32)
    narrow = fast.narrowed(values, dtype, simd)
    assert_as(narrow, torchs(values, dtype))
    assert narrow.tobytes() == fast.narrowed(values, dtype, "portable").tobytes()
    assert fast.widened(narrow, simd).tobytes() == fast.widened(narrow, "portable").tobytes()


def test_the_protocols_nan(simd: str, dtype: Dtype) -> None:
    nan = fast.narrowed(np.full(33, np.nan, np.float32), dtype, simd)
    assert set(nan.view(np.uint16).tolist()) == {0x7FC0 if dtype == BFLOAT16 else 0x7E00}


def any_values(dtype: Dtype, count: int) -> npt.NDArray[Any]:
    values = np.random.default_rng(count).integers(0, 1 << 16, count, np.uint16)
    return np.where(np.isfinite(halves.widened(values.view(dtype))), values, np.uint16(1)).view(dtype)


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("count", [0, 1, 7, 64, 129, 1024, 1027, 5000])
def test_quantised_and_dequantised_as_float32(simd: str, dtype: Dtype, wire: Wire, count: int) -> None:
    values = any_values(dtype, count)
    wide = halves.widened(values)
    (exponent,) = Blocks(wide, count).scan().tolist() if count else [1]
    for ranks in (1, 5):
        words = fast.quantise(values, exponent, ranks, simd, wire=wire, seed=9, first=77)
        expected = fast.quantise(wide, exponent, ranks, "portable", wire=wire, seed=9, first=77)
        np.testing.assert_array_equal(words, expected)
        for other in (exponent, 1, 20, 110, 254, 255):  # sums that are subnormal, and infinite
            floats = fast.dequantise(words, other, ranks, np.float32, "portable", wire=wire, count=count)
            back = fast.dequantise(words, other, ranks, dtype, simd, wire=wire, count=count)
            assert back.dtype == dtype
            assert back.tobytes() == fast.narrowed(floats, dtype, "portable").tobytes()


def test_other_types_have_nothing_to_convert(simd: str, dtype: Dtype) -> None:
    del dtype
    with pytest.raises(ValueError, match="simd="):
        fast.narrowed(np.zeros(1, np.float32), np.float32, simd)
