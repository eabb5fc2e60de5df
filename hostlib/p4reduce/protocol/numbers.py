# SPDX-License-Identifier: Apache-2.0
"""Quantisation: how values become the int32 words that switches add, and how sums become values again.

A float32 block is scaled by a power of two that all workers agree on, as in SwitchML (NSDI 2021). Let e be the largest
biased exponent of the block over N workers, and h = ceil(log2 N) the bits of headroom.

    q = rint(x * 2^(30 - h - (e - 126))), ties to even, at every worker.
    y = (sum of q) * 2^-(30 - h - (e - 126)), rounded once, to float32.

No sum overflows: |x| < 2^(e - 126), so |q| <= 2^(30 - h). Integer addition commutes, so all workers get the same bits,
in whatever order packets arrive. Scaling is done in float64, where it is exact. int32 is added unchanged and wraps
around.

A word can carry two or four narrower integers of w bits each, which the switch adds without knowing: the word is the
sum of q_i * 2^(w * i) modulo 2^32, the first integer lowest. They can be separated again while every sum of q_i stays
within w bits. So let p be the largest number such that N * (2^p - 1) <= 2^(w - 1) - 1. All q are clipped to
+-(2^p - 1).

    int16: q = rint(x * 2^(p - (e - 126))).
    int8: q = floor((rint(x * 2^(p + 23 - (e - 126))) + r) / 2^23), with r random in [0, 2^23).
    Both: y = (sum of q) * 2^-(p - (e - 126)), rounded once, to float32.

The quanta of int8 are large. Stochastic rounding by r makes its error unbiased. r depends only on the operation, the
rank and the value's index, so each implementation computes the same q. A block of B words has 2B or 4B values.

16-bit floats are converted to float32 first, and y is rounded to them at the end, ties to even.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from p4reduce.errors import UnsupportedDtype
from p4reduce.protocol.blocks import NOT_FINITE, ZERO, Blocks
from p4reduce.protocol.constants import DEFAULT_BLOCK_SIZE
from p4reduce.protocol.halves import BFLOAT16

Wire: TypeAlias = Literal["int32", "int16", "int8"]
WIRES: tuple[Wire, ...] = get_args(Wire)

SUPPORTED = (np.float32, np.int32, np.float16, BFLOAT16)
"""Dtypes of arrays that are added up."""

_ROWS_AT_ONCE = 4096  # blocks that the reference adds at once: it needs 8 bytes for each of their values
_NOISE_BITS = 23


def value_bits(wire: Wire) -> int:
    """Return the bits of a value on the wire."""
    return 32 // values_per_word(wire)


@cache
def values_per_word(wire: Wire) -> int:
    """Return how many values a word carries."""
    return {"int32": 1, "int16": 2, "int8": 4}[wire]


def magnitude_bits(wire: Wire, world_size: int) -> int:
    """Return p, or 30 - h for int32. 0 means that the sums of so many ranks have no room.

    The quantum of a block is 2^-p times the power of two above the block's largest magnitude.
    """
    if wire == "int32":
        return 30 - (world_size - 1).bit_length()
    levels: int = (2 ** (value_bits(wire) - 1) - 1) // world_size
    return (levels + 1).bit_length() - 1


def _scale_bits(exponent: npt.ArrayLike, magnitude: int) -> npt.NDArray[np.int64]:
    return magnitude - (np.asarray(exponent, np.int64) - 126)


class FloatNumbers:
    """The quantisation of float32 for a job of `world_size` workers, to int32 or narrower integers.

    Blocks of shape (blocks, values) become int32 words of shape (blocks, values / per_word). exponents: one for each
    block, as the workers agreed. blocks: the indices of the blocks. seed: identifies the operation and the rank.
    """

    def __init__(self, world_size: int, wire: Wire = "int32") -> None:
        self.per_word = values_per_word(wire)
        magnitude = magnitude_bits(wire, world_size)
        self._noisy = wire == "int8"
        self._largest = 2**magnitude - 1
        bits = _scale_bits(range(256), magnitude)
        self._up = np.ldexp(1.0, bits + _NOISE_BITS * self._noisy)[:, np.newaxis]
        self._down = np.ldexp(1.0, -bits)[:, np.newaxis]
        # In a block that is not finite, a worker sends zeros, and the scale NaN makes the result NaN: 0 * NaN.
        self._up[NOT_FINITE] = 0.0
        self._down[NOT_FINITE] = np.nan

    def quantise(
        self, values: npt.NDArray[Any], exponents: list[int], blocks: list[int], seed: int
    ) -> npt.NDArray[np.int32]:
        if max(exponents) == NOT_FINITE:
            values = np.where(np.equal(exponents, NOT_FINITE)[:, np.newaxis], np.float32(0), values)
        scaled: npt.NDArray[np.float64] = values * self._up.take(exponents, axis=0)
        quanta = np.rint(scaled, out=scaled).astype(np.int32)
        if self._noisy:
            size = values.shape[1]
            at = np.asarray(blocks, np.uint64)[:, np.newaxis] * np.uint64(size) + np.arange(size, dtype=np.uint64)
            quanta = (quanta + noise(seed, at)) >> _NOISE_BITS
        if self.per_word == 1:
            return quanta
        np.clip(quanta, -self._largest, self._largest, out=quanta)
        return _pack(quanta, self.per_word)

    def dequantise(self, sums: npt.NDArray[Any], exponents: list[int]) -> npt.NDArray[np.float32]:
        with np.errstate(over="ignore"):  # a sum beyond float32's largest number is infinite
            return (_unpack(sums, self.per_word) * self._down.take(exponents, axis=0)).astype(np.float32)


class Int32Numbers:
    """int32 values, which are sent unchanged, whatever the number of workers."""

    per_word = 1

    def quantise(
        self,
        values: npt.NDArray[Any],
        exponents: list[int],  # noqa: ARG002
        blocks: list[int],  # noqa: ARG002
        seed: int,  # noqa: ARG002
    ) -> npt.NDArray[np.int32]:
        return values

    def dequantise(self, sums: npt.NDArray[Any], exponents: list[int]) -> npt.NDArray[np.int32]:  # noqa: ARG002
        return sums


Numbers: TypeAlias = "FloatNumbers | Int32Numbers"


def noise(seed: int, indices: npt.NDArray[np.uint64]) -> npt.NDArray[np.int32]:
    """Return a random integer from 0 to 2^23 - 1 for each index of a value in its tensor.

    The hash is Chris Wellons' lowbias32 (https://nullprogram.com/blog/2018/07/31/), which is in the public domain.
    """
    start = _mix(np.array([seed], np.uint32))
    mixed = _mix(indices.astype(np.uint32) * np.uint32(0x9E3779B9) + start)
    result: npt.NDArray[np.int32] = (mixed >> np.uint32(32 - _NOISE_BITS)).astype(np.int32)
    return result


def _mix(x: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x7FEB352D)
    x = (x ^ x >> np.uint32(15)) * np.uint32(0x846CA68B)
    result: npt.NDArray[np.uint32] = x ^ x >> np.uint32(16)
    return result


def _pack(quanta: npt.NDArray[np.int32], per_word: int) -> npt.NDArray[np.int32]:
    rows = quanta.astype(np.uint32).reshape(len(quanta), -1, per_word)
    words: npt.NDArray[np.uint32] = rows[..., 0].copy()
    for position in range(1, per_word):
        words += rows[..., position] << np.uint32(32 // per_word * position)
    return words.view(np.int32)


def _unpack(words: npt.NDArray[Any], per_word: int) -> npt.NDArray[Any]:
    if per_word == 1:
        return words
    rest = words.astype(np.int32)
    bits = 32 // per_word
    values = np.empty((*rest.shape, per_word), np.int32)
    for position in range(per_word):
        lowest = values[..., position]
        np.right_shift(rest << (32 - bits), 32 - bits, out=lowest)
        rest = (rest - lowest) >> bits
    return values.reshape(len(words), -1)


def numbers_for(dtype: np.dtype[Any], world_size: int, wire: Wire = "int32") -> Numbers:
    """Return the quantisation for arrays of `dtype` on this wire. Raises UnsupportedDtype or ValueError."""
    if dtype not in SUPPORTED:
        raise UnsupportedDtype(
            f"dtype {dtype} cannot be aggregated: supported are native float32, int32, float16, and uint16 for bfloat16"
        )
    if wire not in WIRES or (dtype == np.int32 and wire != "int32"):
        accepted = WIRES[:1] if dtype == np.int32 else WIRES
        raise ValueError(f"wire {wire!r} of {dtype}: accepted are {', '.join(accepted)}")
    check_ranks(wire, world_size)
    return Int32Numbers() if dtype == np.int32 else FloatNumbers(world_size, wire)


@cache
def check_ranks(wire: Wire, world_size: int) -> None:
    """Raise ValueError if the sums of so many ranks do not fit into the wire's integers."""
    if magnitude_bits(wire, world_size) == 0:
        bits = value_bits(wire)
        raise ValueError(
            f"wire {wire!r} of {world_size} ranks: sums have {bits} bits, for up to {2 ** (bits - 1) - 1} ranks"
        )


def error_bound(exponents: npt.ArrayLike, world_size: int, wire: Wire = "int32") -> npt.NDArray[np.float64]:
    """Return how far a sum of float32 values may be from the exact one, before it is rounded to float32.

    `exponents`: the largest biased exponent of the element's block over all workers, as `Blocks.scan` returns it. It is
    at most 254: there is no bound for a block with a NaN or an infinity. An int32 value is off by at most half a
    quantum. An int16 value that was clipped, and any int8 value, is off by less than one quantum.
    """
    quanta = {"int32": 0.5, "int16": 1.0, "int8": 1.0 + 2.0 ** -(_NOISE_BITS + 1)}[wire]
    return np.ldexp(quanta * world_size, -_scale_bits(exponents, magnitude_bits(wire, world_size)))


def reference_allreduce(
    arrays: Sequence[npt.NDArray[Any]],
    op: str = "sum",
    block_size: int = DEFAULT_BLOCK_SIZE,
    wire: Wire = "int32",
    operation: int = 0,
) -> npt.NDArray[Any]:
    """Return the result that ranks must get, bit for bit, if they reduce `arrays`, one array for each rank.

    The arrays have the same shape and dtype, one of `SUPPORTED`, and so has the result. `op`: "sum", or "avg", which
    divides the sum by the number of ranks (floats only). `block_size`: in words. `operation`: the operation's
    fingerprint, on which the rounding of int8 depends.
    """
    first = arrays[0]
    if any(array.shape != first.shape or array.dtype != first.dtype for array in arrays):
        raise ValueError(f"arrays differ in shape or dtype: {[(array.shape, str(array.dtype)) for array in arrays]}")
    if op not in ("sum", "avg") or (op == "avg" and first.dtype == np.int32):
        raise ValueError(f"op {op!r} of {first.dtype}: accepted are 'sum', and 'avg' of floats")
    return added(arrays, len(arrays) if op == "avg" else 1, block_size, wire, operation)


def added(
    arrays: Sequence[npt.NDArray[Any]], divisor: int, block_size: int, wire: Wire, operation: int
) -> npt.NDArray[Any]:
    """Return the sum of arrays of the same shape and dtype, as ranks must get it. Divide floats by `divisor`."""
    first = arrays[0]
    numbers = numbers_for(first.dtype, len(arrays), wire)
    values = block_size * numbers.per_word
    flat = [Blocks(np.ascontiguousarray(array).reshape(-1), values) for array in arrays]
    exponents = np.max([blocks.scan() for blocks in flat], axis=0)
    union = np.flatnonzero(exponents != ZERO)
    result = Blocks(np.zeros(first.size, first.dtype), values)
    for start in range(0, union.size, _ROWS_AT_ONCE):
        some = union[start : start + _ROWS_AT_ONCE]
        ids: list[int] = some.tolist()
        agreed: list[int] = exponents[some].tolist()
        sums = np.zeros((len(ids), block_size), np.int32)
        for rank, blocks in enumerate(flat):
            seed = operation | rank  # the lower 8 bits of an operation's fingerprint are 0
            sums += numbers.quantise(blocks.gather(ids), agreed, ids, seed)
        totals = numbers.dequantise(sums, agreed)
        result.scatter(ids, totals if divisor == 1 else totals / np.float32(divisor))
    return result.data.reshape(first.shape)
