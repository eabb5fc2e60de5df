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

Places = npt.NDArray[np.int64]

BITMAP = 64
"""The value of `low` for a code that is a bitmap."""


def find(values: npt.NDArray[Any]) -> Places:
    """Return the indices of the non-zero values, which are float32 or int32."""
    places = np.empty(values.size, np.int64)  # the kernel allocates only the pages that are written
    at, into = addresses(values, places)
    mask = 0x7FFFFFFF if values.dtype == np.float32 else 0xFFFFFFFF
    count: int = library().p4reduce_find_places(at, values.size, mask, into)
    found: Places = places[:count].copy()
    return found


def encode(places: Places, low: int, words: int) -> npt.NDArray[np.int32]:
    """Return the code of the indices, of `words` words. low: how many low bits of each index the code has unchanged."""
    code = np.zeros(words, np.int32)
    at, into = addresses(places, code)
    library().p4reduce_encode_places(at, places.size, low, into)
    return code


def decode(words: npt.NDArray[np.int32], bits: int, count: int, low: int, bound: int) -> Places | None:
    """Return the indices of a code; None if it is no code of `count` indices below `bound`."""
    places = np.empty(count, np.int64)
    at, into = addresses(words, places)
    status = library().p4reduce_decode_places(at, bits, count, low, bound, into)
    return places if status == c.OK else None


def union(lists: Sequence[Places], bound: int) -> Places:
    """Return the indices that at least one of the lists has."""
    bitmap = np.zeros(-(-bound // 64), np.uint64)
    places = np.empty(min(bound, sum(map(len, lists))), np.int64)
    at, into, *starts = addresses(bitmap, places, *lists)
    pointers = c.array_of(ctypes.c_void_p, len(lists))(*starts)
    counts = c.array_of(ctypes.c_uint64, len(lists))(*map(len, lists))
    count: int = library().p4reduce_union_places(pointers, counts, len(lists), at, bound, into)
    return places[:count]


def locate(all_: Places, places: Places) -> Places:
    """Return the position of each of `places` in `all_`, which contains all of them."""
    where = np.empty(places.size, np.int64)
    of, at, into = addresses(all_, places, where)
    library().p4reduce_locate_places(of, at, places.size, into)
    return where
