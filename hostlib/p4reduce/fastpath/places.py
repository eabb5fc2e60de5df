# SPDX-License-Identifier: Apache-2.0
"""What `tensors.places` does, in C: see hostlib/csrc/include/p4reduce_places.h. Arrays are 1-d and contiguous."""

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
"""The place of `low`, where the code is a bitmap."""


def find(values: npt.NDArray[Any]) -> Places:
    """Return the numbers of those of float32 or int32 that are not zero."""
    places = np.empty(values.size, np.int64)  # memory is only taken for what is written
    at, into = addresses(values, places)
    mask = 0x7FFFFFFF if values.dtype == np.float32 else 0xFFFFFFFF
    count: int = library().p4reduce_find_places(at, values.size, mask, into)
    found: Places = places[:count].copy()
    return found


def encode(places: Places, low: int, words: int) -> npt.NDArray[np.int32]:
    """Return the code, of so many words. low: bits of a number that are written as they are."""
    code = np.zeros(words, np.int32)
    at, into = addresses(places, code)
    library().p4reduce_encode_places(at, places.size, low, into)
    return code


def decode(words: npt.NDArray[np.int32], bits: int, count: int, low: int, bound: int) -> Places | None:
    """Return the numbers; None for what is no code of so many below `bound`."""
    places = np.empty(count, np.int64)
    at, into = addresses(words, places)
    status = library().p4reduce_decode_places(at, bits, count, low, bound, into)
    return places if status == c.OK else None


def union(lists: Sequence[Places], bound: int) -> Places:
    """Return the numbers that any of the lists has."""
    bitmap = np.zeros(-(-bound // 64), np.uint64)
    places = np.empty(min(bound, sum(map(len, lists))), np.int64)
    at, into, *starts = addresses(bitmap, places, *lists)
    pointers = c.array_of(ctypes.c_void_p, len(lists))(*starts)
    counts = c.array_of(ctypes.c_uint64, len(lists))(*map(len, lists))
    count: int = library().p4reduce_union_places(pointers, counts, len(lists), at, bound, into)
    return places[:count]


def locate(all_: Places, places: Places) -> Places:
    """Where each of `places` stands in `all_`, which has all of them."""
    where = np.empty(places.size, np.int64)
    of, at, into = addresses(all_, places, where)
    library().p4reduce_locate_places(of, at, places.size, into)
    return where
