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


def biased_exponent(value: float) -> int:
    """Return the exponent by the definition of the format, and not by its bits."""
    if not math.isfinite(value):
        return NOT_FINITE
    if value == 0:
        return ZERO
    return max(math.frexp(value)[1] + 126, 1)


SPECIAL = (
    0, 1, 0x007FFFFF, 0x00800000, 0x3F800000, 0x7F7FFFFF, 0x7F800000, 0x7F800001, 0x7FC00000,
)  # fmt: skip
WORDS = st.sampled_from([*SPECIAL, *(1 << 31 | word for word in SPECIAL)]) | st.integers(0, 2**32 - 1)


@given(hnp.arrays(np.uint32, st.integers(0, 70), elements=WORDS), st.integers(1, 33))
def test_scan_of_any_bits(bits: npt.NDArray[np.uint32], block_size: int) -> None:
    values = [float(np.frombuffer(struct.pack("=I", word), np.float32)[0]) for word in bits.tolist()]
    starts = range(0, len(values), block_size)
    expected = [max(map(biased_exponent, values[start : start + block_size])) for start in starts]
    before = bits.copy()
    blocks = Blocks(bits.view(np.float32), block_size)
    assert blocks.scan().tolist() == expected
    some = list(range(blocks.count))[::-2]
    assert not some or blocks.scan(some).tolist() == expected[::-2]
    integers = [255 * bool(bits[start : start + block_size].any()) for start in starts]
    assert Blocks(bits.view(np.int32), block_size).scan().tolist() == integers
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
