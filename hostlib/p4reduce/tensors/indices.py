# SPDX-License-Identifier: Apache-2.0
"""A compact code for the numbers of a tensor's rows or elements: increasing numbers below a bound that all ranks know.

`count` numbers below `bound` are written either as a bitmap of `bound` bits, or in the Elias-Fano code, whichever is
shorter. Let l = floor(log2(bound / count)). The Elias-Fano code stores the lower l bits of each number unchanged. It
stores the upper bits in unary, as one bitmap in which number i sets bit (number >> l) + i. It takes l + 2 to l + 3 bits
for each number. For random numbers, this is within half a bit for each number of the shortest possible code.

Sources: Elias, JACM 1974; Fano, MIT 1971; Vigna, "Quasi-succinct indices", WSDM 2013.

The C library does all this if it is installed, otherwise NumPy does, with the same result.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.int32]
Indices = npt.NDArray[np.int64]

_WORD = 32  # bits
_BYTES = 64  # bitmap bytes for each number, up to which a bitmap is faster than sorting


class Code:
    """The code of `count` numbers below `bound`, which takes `words` words of 32 bits."""

    def __init__(self, count: int, bound: int) -> None:
        if not 0 <= count <= bound < 1 << 63:
            raise ValueError(f"{count} different numbers below {bound}: there are fewer")
        self.count, self.bound = count, bound
        self._low = self._bits = 0  # lower bits of a number, and bits of the whole code
        self._is_bitmap = False
        if count not in (0, bound):
            self._low = (bound // count).bit_length() - 1
            elias_fano = self._low * count + count + (bound - 1 >> self._low) + 1
            self._is_bitmap = bound <= elias_fano
            self._bits = min(bound, elias_fano)
        self.words = -(-self._bits // _WORD)

    def encode(self, indices: npt.NDArray[Any]) -> Words:
        """Return the code of `indices`, which increase: shape (words,)."""
        c = _in_c()
        if c is not None and self._bits:
            low = c.BITMAP if self._is_bitmap else self._low
            encoded: Words = c.encode(np.ascontiguousarray(indices, np.int64), low, self.words)
            return encoded
        bits = np.zeros(self.words * _WORD, np.uint8)
        if not self._bits:
            pass
        elif self._is_bitmap:
            bits[indices] = 1
        else:
            for bit, plane in enumerate(self._planes(bits)):
                np.not_equal(indices >> bit & 1, 0, out=plane)
            bits[self._low * self.count + (indices >> self._low) + np.arange(self.count)] = 1
        return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32, copy=False)

    def decode(self, words: Words) -> Indices:
        """Return the numbers that `words`, of shape (words,), encode. Raises ValueError if the code is not valid."""
        if not self._bits:
            return np.arange(self.count)
        c = _in_c()
        if c is not None:
            low = c.BITMAP if self._is_bitmap else self._low
            return self._checked(c.decode(np.ascontiguousarray(words), self._bits, self.count, low, self.bound))
        bits = np.unpackbits(words.astype("<i4", copy=False).view(np.uint8), bitorder="little")[: self._bits]
        if self._is_bitmap:
            indices = np.flatnonzero(bits)
            return self._checked(indices if indices.size == self.count else None)
        high = np.flatnonzero(bits[self._low * self.count :])
        if high.size != self.count:
            return self._checked(None)
        indices = high - np.arange(self.count) << self._low
        for bit, plane in enumerate(self._planes(bits)):
            indices |= plane.astype(np.int64) << bit
        increase = indices[-1] < self.bound and (np.diff(indices) > 0).all()
        return self._checked(indices if increase else None)

    def _planes(self, bits: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Return a view of the lower bits, bit by bit: shape (lower bits, count)."""
        return bits[: self._low * self.count].reshape(self._low, self.count)

    def _checked(self, indices: Indices | None) -> Indices:
        if indices is None:
            raise ValueError(f"the code of {self.count} numbers below {self.bound} is invalid")
        return indices


def find(values: npt.NDArray[Any]) -> Indices:
    """Return the indices of the non-zero elements of a flat array of float32 or int32."""
    c = _in_c()
    if c is not None:
        found: Indices = c.find(values)
        return found
    words = values.view(np.int32)  # so that no floating-point mode takes a subnormal for zero
    return np.flatnonzero(words << 1 if values.dtype == np.float32 else words)


def union(lists: Sequence[Indices], bound: int) -> Indices:
    """Return the union of the lists, whose numbers increase and are below `bound`."""
    c = _in_c()
    bitmap = bound if c is None else bound // 8  # bytes
    if bitmap > _BYTES * sum(map(len, lists)):
        return np.unique(np.concatenate(lists))
    if c is not None:
        found: Indices = c.union([np.ascontiguousarray(some, np.int64) for some in lists], bound)
        return found
    there = np.zeros(bound, np.bool_)
    for some in lists:
        there[some] = True
    return np.flatnonzero(there)


def locate(all_: Indices, indices: Indices) -> Indices:
    """Return the index in `all_` of each of `indices`. `all_` contains all of them, and both increase."""
    c = _in_c()
    if c is None:
        return np.searchsorted(all_, indices)
    where: Indices = c.locate(np.ascontiguousarray(all_, np.int64), np.ascontiguousarray(indices, np.int64))
    return where


@cache
def _in_c() -> Any:
    """Return `fastpath.indices`, or None without the C library."""
    from p4reduce.fastpath import library

    try:
        library.library()
    except library.LibraryError:
        return None
    from p4reduce.fastpath import indices

    return indices
