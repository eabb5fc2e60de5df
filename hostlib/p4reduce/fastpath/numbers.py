# SPDX-License-Identifier: Apache-2.0
"""The C loops over values, for tests and benchmarks: see hostlib/csrc/include/p4reduce_numbers.h."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.fastpath import structures as c
from p4reduce.fastpath.library import address, library, type_code
from p4reduce.protocol.numbers import Wire, values_per_word


def simd_in_use() -> str:
    """The instruction set that is used here. Raises ValueError if P4REDUCE_SIMD names one that this processor lacks."""
    used: str = library().p4reduce_simd().decode()
    wanted = os.environ.get("P4REDUCE_SIMD")
    if wanted and wanted != used:
        raise ValueError(f"P4REDUCE_SIMD={wanted!r}: this processor has {', '.join(simd_sets())}")
    return used


def simd_sets() -> list[str]:
    """The instruction sets that this processor has, the one in use first."""
    used = library().p4reduce_simd().decode()
    others = ("avx512", "avx2", "neon", "portable")
    return [used, *(simd for simd in others if simd != used and _has(simd))]


def _has(simd: str) -> bool:
    status: int = library().p4reduce_scan(simd.encode(), c.TYPES["float32"], None, 0, 1, None)
    return status == c.OK


def scan(data: npt.NDArray[Any], block_size: int, simd: str | None = None) -> npt.NDArray[np.uint8]:
    """What `protocol.blocks.Blocks.scan` gives for a flat array."""
    exponents = np.empty(-(-data.size // block_size), np.uint8)
    _check(
        library().p4reduce_scan(
            _name(simd), type_code(data.dtype), address(data), data.size, block_size, address(exponents)
        ),
        simd,
    )
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
    """A block's words, big-endian int32. seed: of int8's rounding. first: the place of the first value."""
    words = np.empty(-(-data.size // values_per_word(wire)), ">i4")
    code, type_ = c.WIRES[wire], type_code(data.dtype)
    _check(
        library().p4reduce_quantise(
            *(_name(simd), type_, code, address(data), data.size),
            *(world_size, exponent, seed, first, address(words)),
        ),
        simd,
    )
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
    """A block's values, `count` or as many as there are, from its sums, int32 in any byte order."""
    words = sums.astype(">i4")
    values = np.empty(sums.size * values_per_word(wire) if count is None else count, dtype)
    code, type_ = c.WIRES[wire], type_code(values.dtype)
    _check(
        library().p4reduce_dequantise(
            _name(simd), type_, code, address(words), values.size, world_size, exponent, address(values)
        ),
        simd,
    )
    return values


def widened(halves: npt.NDArray[Any], simd: str | None = None) -> npt.NDArray[np.float32]:
    """What `protocol.halves.widened` gives for a flat array of 16-bit floats."""
    values = np.empty(halves.size, np.float32)
    type_ = type_code(halves.dtype)
    _check(library().p4reduce_widen(_name(simd), type_, address(halves), halves.size, address(values)), simd)
    return values


def narrowed(values: npt.NDArray[np.float32], dtype: npt.DTypeLike, simd: str | None = None) -> npt.NDArray[Any]:
    """What `protocol.halves.narrowed` gives for a flat array."""
    halves = np.empty(values.size, dtype)
    type_ = type_code(halves.dtype)
    _check(library().p4reduce_narrow(_name(simd), type_, address(values), values.size, address(halves)), simd)
    return halves


def fingerprint(counter: int, dtype: str, reduce_op: str, numel: int) -> int:
    """What `protocol.fingerprint.fingerprint` gives."""
    result: int = library().p4reduce_fingerprint(counter & 0xFFFFFFFF, dtype.encode(), reduce_op.encode(), numel)
    return result


def _name(simd: str | None) -> bytes | None:
    return None if simd is None else simd.encode()


def _check(status: int, simd: str | None) -> None:
    if status != c.OK:
        raise ValueError(f"simd={simd!r}: this processor has {', '.join(simd_sets())}")
