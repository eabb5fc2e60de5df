# SPDX-License-Identifier: Apache-2.0
"""How values become the int32 that switches add, and sums become values again.

A float32 block is scaled by a power of two that all workers agree on, as in SwitchML (NSDI 2021): with the largest
biased exponent e of the block over N workers and h = ceil(log2 N) bits of headroom,

    q = rint(x * 2^(30 - h - (e - 126)))    ties to even, at every worker
    y = (sum of q) * 2^-(30 - h - (e - 126))    rounded once, to float32

No sum overflows, as |q| <= 2^(30 - h). Integer addition commutes, so all workers get the same bits whatever the order
of arrival. Scaling is done in float64, where it is exact. int32 is added as it is and wraps around.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from p4reduce.errors import UnsupportedDtype
from p4reduce.protocol.blocks import NOT_FINITE, ZERO, Blocks
from p4reduce.protocol.constants import DEFAULT_BLOCK_SIZE

_ROWS_AT_ONCE = 4096  # of the reference, which takes 8 bytes a value besides its arrays


class Numbers(Protocol):
    """Turns blocks, shape (blocks, block size), into int32 and back; `exponents` are those agreed on, one a block."""

    def quantise(self, values: npt.NDArray[Any], exponents: list[int]) -> npt.NDArray[np.int32]: ...
    def dequantise(self, sums: npt.NDArray[Any], exponents: list[int]) -> npt.NDArray[Any]: ...


def _scale_bits(exponent: npt.ArrayLike, world_size: int) -> npt.NDArray[np.int64]:
    headroom = (world_size - 1).bit_length()
    return 30 - headroom - (np.asarray(exponent, np.int64) - 126)


class Float32Numbers:
    """float32 for a job of `world_size` workers."""

    def __init__(self, world_size: int) -> None:
        bits = _scale_bits(range(256), world_size)
        self._up = np.ldexp(1.0, bits)[:, np.newaxis]
        self._down = np.ldexp(1.0, -bits)[:, np.newaxis]
        # Who has finite values in a block that is not finite sends zeros, and 0 * NaN makes the result NaN.
        self._up[NOT_FINITE] = 0.0
        self._down[NOT_FINITE] = np.nan

    def quantise(self, values: npt.NDArray[Any], exponents: list[int]) -> npt.NDArray[np.int32]:
        if max(exponents) == NOT_FINITE:
            values = np.where(np.equal(exponents, NOT_FINITE)[:, np.newaxis], np.float32(0), values)
        scaled: npt.NDArray[np.float64] = values * self._up.take(exponents, axis=0)
        return np.rint(scaled, out=scaled).astype(np.int32)

    def dequantise(self, sums: npt.NDArray[Any], exponents: list[int]) -> npt.NDArray[np.float32]:
        with np.errstate(over="ignore"):  # a sum beyond float32's largest number is infinite
            return (sums * self._down.take(exponents, axis=0)).astype(np.float32)


class Int32Numbers:
    """int32, whatever the number of workers."""

    def quantise(self, values: npt.NDArray[Any], exponents: list[int]) -> npt.NDArray[np.int32]:  # noqa: ARG002
        return values

    def dequantise(self, sums: npt.NDArray[Any], exponents: list[int]) -> npt.NDArray[np.int32]:  # noqa: ARG002
        return sums


def numbers_for(dtype: np.dtype[Any], world_size: int) -> Numbers:
    """What adds arrays of `dtype`. Raises UnsupportedDtype."""
    if dtype == np.float32:
        return Float32Numbers(world_size)
    if dtype == np.int32:
        return Int32Numbers()
    raise UnsupportedDtype(f"dtype {dtype} cannot be aggregated: supported are float32 and int32")


def error_bound(exponents: npt.ArrayLike, world_size: int) -> npt.NDArray[np.float64]:
    """How far a sum of float32 values may be from the exact one, before it is rounded to float32.

    `exponents`: the largest biased exponent of the element's block over all workers, as `Blocks.scan` gives it; at
    most 254, as nothing is promised for a block with a NaN or an infinity.
    """
    return np.ldexp(float(world_size), -_scale_bits(exponents, world_size) - 1)


def reference_allreduce(
    arrays: Sequence[npt.NDArray[Any]], op: str = "sum", block_size: int = DEFAULT_BLOCK_SIZE
) -> npt.NDArray[Any]:
    """The answer that the switch must give, bit for bit, to ranks that reduce `arrays`: one a rank, equal in shape.

    dtype float32 or int32; the result has the shape and dtype of one of them. `op`: "sum", or "avg", which divides
    the sum by the number of ranks (float32 only).
    """
    first = arrays[0]
    if any(array.shape != first.shape or array.dtype != first.dtype for array in arrays):
        raise ValueError(f"arrays differ in shape or dtype: {[(array.shape, str(array.dtype)) for array in arrays]}")
    if op not in ("sum", "avg") or (op == "avg" and first.dtype != np.float32):
        raise ValueError(f"op {op!r} of {first.dtype}: accepted are 'sum', and 'avg' of float32")
    numbers = numbers_for(first.dtype, len(arrays))
    flat = [Blocks(np.ascontiguousarray(array).reshape(-1), block_size) for array in arrays]
    exponents = np.max([blocks.scan() for blocks in flat], axis=0)
    union = np.flatnonzero(exponents != ZERO)
    result = Blocks(np.zeros(first.size, first.dtype), block_size)
    for start in range(0, union.size, _ROWS_AT_ONCE):
        some = union[start : start + _ROWS_AT_ONCE]
        ids: list[int] = some.tolist()
        agreed: list[int] = exponents[some].tolist()
        sums = np.zeros((len(ids), block_size), np.int32)
        for blocks in flat:
            sums += numbers.quantise(blocks.gather(ids), agreed)
        result.scatter(ids, numbers.dequantise(sums, agreed))
    if op == "avg":
        result.data /= np.float32(len(arrays))
    return result.data.reshape(first.shape)
