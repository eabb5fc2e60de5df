# SPDX-License-Identifier: Apache-2.0
"""16-bit floats, held to the definition of the formats."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4reduce.protocol.halves import BFLOAT16, narrowed, type_name, widened

FORMATS = {np.dtype(np.float16): (5, 10), BFLOAT16: (8, 7)}  # bits of exponent and mantissa

pytestmark = [
    pytest.mark.filterwarnings("error::RuntimeWarning"),
    pytest.mark.parametrize("dtype", FORMATS, ids=[type_name(dtype) for dtype in FORMATS]),
]

ALL = np.arange(1 << 16, dtype=np.uint16)


def value_of(half: int, dtype: np.dtype[np.generic]) -> float:
    """Return the value by the definition of the format, and not by its bits in float32."""
    exponents, mantissas = FORMATS[dtype]
    exponent, mantissa = half >> mantissas & 2**exponents - 1, half & 2**mantissas - 1
    sign = -1 if half >> 15 else 1
    if exponent == 2**exponents - 1:
        return math.nan if mantissa else sign * math.inf
    least = 2 - 2 ** (exponents - 1) - mantissas
    return math.copysign(math.ldexp(mantissa + 2**mantissas * (exponent > 0), least + max(exponent, 1) - 1), sign)


def test_every_value(dtype: np.dtype[np.generic]) -> None:
    wide = widened(ALL.view(dtype))
    assert wide.dtype == np.float32
    np.testing.assert_array_equal(wide, [value_of(half, dtype) for half in range(1 << 16)])
    np.testing.assert_array_equal(np.signbit(wide), ALL >> 15 == 1)
    number = ~np.isnan(wide)
    back = narrowed(wide, dtype)
    assert back.dtype == dtype
    np.testing.assert_array_equal(back.view(np.uint16)[number], ALL[number])
    assert np.isnan(widened(back)[~number]).all()


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_values_are_rounded_to_the_nearest(dtype: np.dtype[np.generic], value: float) -> None:
    (half,) = narrowed(np.array([value], np.float32), dtype).view(np.uint16).tolist()
    magnitude = half & 0x7FFF
    assert half >> 15 == (math.copysign(1, value) < 0)
    exponents, mantissas = FORMATS[dtype]
    infinity = (2**exponents - 1) << mantissas

    def exact(of: int) -> Fraction:  # beyond the largest number as if there were one more
        step = Fraction(value_of(infinity - 1, dtype)) - Fraction(value_of(infinity - 2, dtype))
        return Fraction(value_of(of, dtype)) if of < infinity else Fraction(value_of(infinity - 1, dtype)) + step

    distance = abs(exact(magnitude) - Fraction(abs(value)))
    for other in (magnitude - 1, magnitude + 1):
        if 0 <= other <= infinity and (magnitude < infinity or other < magnitude):
            further = abs(exact(other) - Fraction(abs(value)))
            beyond = magnitude == infinity and Fraction(abs(value)) > exact(infinity)
            assert beyond or distance < further or (distance == further and magnitude % 2 == 0)
