# SPDX-License-Identifier: Apache-2.0
"""16-bit floats, which are added up as float32: float16, and bfloat16, which NumPy lacks, as the uint16 of its bits.

Arrays of other dtypes pass unchanged, so that code for blocks need not distinguish them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

BFLOAT16 = np.dtype(np.uint16)
"""Dtype of an array that holds the bits of bfloat16, which are the upper half of a float32's."""


@cache
def type_name(dtype: np.dtype[Any]) -> str:
    """Return the name of an array's element type, such as "bfloat16"."""
    return "bfloat16" if dtype == BFLOAT16 else dtype.name


def widened(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return 16-bit floats as float32, in the same shape."""
    if values.dtype == BFLOAT16:
        bits: npt.NDArray[np.uint32] = values.astype(np.uint32) << np.uint32(16)
        return bits.view(np.float32)
    return values.astype(np.float32) if values.dtype == np.float16 else values


def narrowed(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return the result of `widened` as `dtype` again, rounded to nearest, ties to even.

    Values that are too large become infinite. NaNs stay NaNs.
    """
    if dtype == np.float16:
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return values.astype(np.float16)
    if dtype != BFLOAT16:
        return values
    bits: npt.NDArray[np.uint32] = values.view(np.uint32)
    upper = bits >> np.uint32(16)
    rounded = (bits + np.uint32(0x7FFF) + (upper & np.uint32(1))) >> np.uint32(16)
    halves: npt.NDArray[np.uint16] = np.where(np.isnan(values), upper | np.uint32(0x40), rounded).astype(np.uint16)
    return halves
