# SPDX-License-Identifier: Apache-2.0
"""The loops in C over values, with the signatures of their Python references; see p4reduce_numbers.h."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.fastpath import structures as c
from p4reduce.fastpath.library import simd_sets, type_code
from p4reduce.protocol.memory import address
from p4reduce.protocol.numbers import Wire, values_per_word
from tests.support.c_library import whole_library


def scan(data: npt.NDArray[Any], block_size: int, simd: str | None = None) -> npt.NDArray[np.uint8]:
    """Return the same as `protocol.blocks.Blocks.scan` does for a flat array."""
    exponents = np.empty(-(-data.size // block_size), np.uint8)
    _call("scan", simd, type_code(data.dtype), address(data), data.size, block_size, address(exponents))
    return exponents


def quantise(
    data: npt.NDArray[Any],
    exponent: int,
    world_size: int,
    simd: str | None = None,
    *,
    wire: Wire = "int32",
    seed: int = 0,
    first: int = 0,
) -> npt.NDArray[np.int32]:
    """Return the words of a block, as big-endian int32.

    seed: the seed of stochastic rounding to int8.
    first: the index of the first value.
    """
    words = np.empty(-(-data.size // values_per_word(wire)), ">i4")
    values = type_code(data.dtype), c.WIRES[wire], address(data), data.size
    _call("quantise", simd, *values, world_size, exponent, seed, first, address(words))
    return words


def dequantise(
    sums: npt.NDArray[Any],
    exponent: int,
    world_size: int,
    dtype: npt.DTypeLike = np.float32,
    simd: str | None = None,
    *,
    wire: Wire = "int32",
    count: int | None = None,
) -> npt.NDArray[Any]:
    """Return the values of a block from its sums.

    sums: int32 in any byte order.
    count: the number of values. The default is all.
    """
    words = sums.astype(">i4")
    values = np.empty(sums.size * values_per_word(wire) if count is None else count, dtype)
    code = type_code(values.dtype), c.WIRES[wire]
    _call("dequantise", simd, *code, address(words), values.size, world_size, exponent, address(values))
    return values


def widened(halves: npt.NDArray[Any], simd: str | None = None) -> npt.NDArray[np.float32]:
    """Return the same as `protocol.halves.widened` does for a flat array of 16-bit floats."""
    values = np.empty(halves.size, np.float32)
    _call("widen", simd, type_code(halves.dtype), address(halves), halves.size, address(values))
    return values


def narrowed(values: npt.NDArray[np.float32], dtype: npt.DTypeLike, simd: str | None = None) -> npt.NDArray[Any]:
    """Return the same as `protocol.halves.narrowed` does for a flat array."""
    halves = np.empty(values.size, dtype)
    _call("narrow", simd, type_code(halves.dtype), address(values), values.size, address(halves))
    return halves


def fingerprint(counter: int, dtype: str, reduce_op: str, numel: int) -> int:
    """Return the same as `protocol.fingerprint.fingerprint` does."""
    result: int = whole_library().p4reduce_fingerprint(counter & 0xFFFFFFFF, dtype.encode(), reduce_op.encode(), numel)
    return result


def _call(function: str, simd: str | None, *arguments: int) -> None:
    """Call a loop with a set of SIMD instructions. Raises ValueError if this processor lacks them.

    simd: the name of the set. None means the best.
    """
    if getattr(whole_library(), f"p4reduce_{function}")(simd and simd.encode(), *arguments) != c.OK:
        raise ValueError(f"simd={simd!r}: this processor has {', '.join(simd_sets())}")
