# SPDX-License-Identifier: Apache-2.0
"""Which rows or elements of a tensor there are, in few words: increasing numbers below a bound that all ranks know.

`count` numbers below `bound` are a bitmap of `bound` bits, or, where that is less, Elias and Fano's code: the lower
l = floor(log2(bound / count)) bits of each number as they are, and the rest in unary, as one bitmap in which the i-th
number has the bit (number >> l) + i. That is 2 to 3 bits a number more than l, within half a bit a number of the least
of any code of random numbers (Elias, JACM 1974; Fano, MIT 1971; Vigna, "Quasi-succinct indices", WSDM 2013).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.int32]
Places = npt.NDArray[np.int64]

_WORD = 32  # bits


@dataclass(frozen=True)
class Code:
    """How `count` numbers below `bound` are written."""

    count: int
    bound: int

    def __post_init__(self) -> None:
        if not 0 <= self.count <= self.bound < 1 << 63:
            raise ValueError(f"{self.count} different numbers below {self.bound}: there are not so many")

    @property
    def words(self) -> int:
        """Length of the code, in words of 32 bits."""
        return 0 if self.count in (0, self.bound) else min(_words(self.bound), self._elias_fano)

    @property
    def _elias_fano(self) -> int:
        return self._low * _words(self.count) + _words(self._high)

    @property
    def _low(self) -> int:
        """Bits of a number that are written as they are."""
        return (self.bound // self.count).bit_length() - 1

    @property
    def _high(self) -> int:
        """Bits of the bitmap that has the rest."""
        return self.count + (self.bound - 1 >> self._low) + 1

    def encode(self, places: npt.NDArray[Any]) -> Words:
        """The code of `places`, which increase: shape (words,)."""
        if not self.words:
            return np.empty(0, np.int32)
        if self._is_bitmap:
            return _bitmap(places, self.bound)
        parts = [_packed((places >> bit & 1).astype(np.uint8)) for bit in range(self._low)]
        parts.append(_bitmap((places >> self._low) + np.arange(self.count), self._high))
        return np.concatenate(parts)

    def decode(self, words: Words) -> Places:
        """The numbers, from `words` of shape (words,). Raises ValueError for what is no code of so many numbers."""
        if not self.words:
            return np.arange(self.count)
        if self._is_bitmap:
            return self._checked(_set_bits(words, self.bound))
        each = _words(self.count)
        high = _set_bits(words[self._low * each :], self._high)
        if high.size != self.count:
            raise ValueError(f"the code of {self.count} numbers below {self.bound} has {high.size}")
        places = high - np.arange(self.count) << self._low
        for bit in range(self._low):
            places |= _unpacked(words[bit * each : (bit + 1) * each], self.count).astype(np.int64) << bit
        return self._checked(places)

    @property
    def _is_bitmap(self) -> bool:
        return _words(self.bound) <= self._elias_fano

    def _checked(self, places: Places) -> Places:
        if places.size != self.count or places[-1] >= self.bound or (np.diff(places) <= 0).any():
            raise ValueError(f"the code of {self.count} numbers below {self.bound} has others")
        return places


def _words(bits: int) -> int:
    return -(-bits // _WORD)


def _bitmap(places: npt.NDArray[Any], bits: int) -> Words:
    ones = np.zeros(bits, np.uint8)
    ones[places] = 1
    return _packed(ones)


def _packed(bits: npt.NDArray[np.uint8]) -> Words:
    words = np.zeros(_words(bits.size), "<i4")
    packed = np.packbits(bits, bitorder="little")
    words.view(np.uint8)[: packed.size] = packed
    return words.astype(np.int32, copy=False)


def _unpacked(words: Words, bits: int) -> npt.NDArray[np.uint8]:
    return np.unpackbits(words.astype("<i4", copy=False).view(np.uint8), bitorder="little", count=bits)


def _set_bits(words: Words, bits: int) -> Places:
    return np.flatnonzero(_unpacked(words, bits))
