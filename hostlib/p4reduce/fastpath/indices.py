# SPDX-License-Identifier: Apache-2.0
"""The C version of `tensors.indices`: see hostlib/csrc/include/p4reduce_indices.h. Arrays are 1-d and contiguous."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.fastpath import structures as c
from p4reduce.fastpath.library import library
from p4reduce.protocol.memory import addresses

Indices = npt.NDArray[np.int64]

BITMAP = 64
"""The value of `low` for a code that is a bitmap."""


def find(values: npt.NDArray[Any]) -> Indices:
    """Return the indices of the non-zero values, which are float32 or int32."""
    indices = np.empty(values.size, np.int64)  # the kernel allocates only the pages that are written
    at, into = addresses(values, indices)
    mask = 0x7FFFFFFF if values.dtype == np.float32 else 0xFFFFFFFF
    count: int = library().p4reduce_find_indices(at, values.size, mask, into)
    found: Indices = indices[:count].copy()
    return found


def encode(indices: Indices, low: int, words: int) -> npt.NDArray[np.int32]:
    """Return the code of the indices, of `words` words. low: how many low bits of each index the code has unchanged."""
    code = np.zeros(words, np.int32)
    at, into = addresses(indices, code)
    library().p4reduce_encode_indices(at, indices.size, low, into)
    return code


def decode(words: npt.NDArray[np.int32], bits: int, count: int, low: int, bound: int) -> Indices | None:
    """Return the indices of a code; None if it is no code of `count` indices below `bound`."""
    indices = np.empty(count, np.int64)
    at, into = addresses(words, indices)
    status = library().p4reduce_decode_indices(at, bits, count, low, bound, into)
    return indices if status == c.OK else None


def union(lists: Sequence[Indices], bound: int) -> Indices:
    """Return the indices that at least one of the lists has."""
    bitmap = np.zeros(-(-bound // 64), np.uint64)
    indices = np.empty(min(bound, sum(map(len, lists))), np.int64)
    at, into, *starts = addresses(bitmap, indices, *lists)
    pointers = c.array_of(ctypes.c_void_p, len(lists))(*starts)
    counts = c.array_of(ctypes.c_uint64, len(lists))(*map(len, lists))
    count: int = library().p4reduce_union_indices(pointers, counts, len(lists), at, bound, into)
    return indices[:count]


def locate(all_: Indices, indices: Indices) -> Indices:
    """Return the position of each of `indices` in `all_`, which contains all of them."""
    where = np.empty(indices.size, np.int64)
    of, at, into = addresses(all_, indices, where)
    library().p4reduce_locate_indices(of, at, indices.size, into)
    return where
