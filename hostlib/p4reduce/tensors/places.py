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
        return -(-self._bits // _WORD)

    @property
    def _bits(self) -> int:
        return 0 if self.count in (0, self.bound) else min(self.bound, self._elias_fano)

    @property
    def _elias_fano(self) -> int:
        return self._low * self.count + self._high

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
        bits = np.zeros(self.words * _WORD, np.uint8)
        if not self._bits:
            pass
        elif self._is_bitmap:
            bits[places] = 1
        else:
            for bit, plane in enumerate(self._planes(bits)):
                np.not_equal(places >> bit & 1, 0, out=plane)
            bits[self._low * self.count + (places >> self._low) + np.arange(self.count)] = 1
        return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32, copy=False)

    def decode(self, words: Words) -> Places:
        """The numbers, from `words` of shape (words,). Raises ValueError for what is no code of so many numbers."""
        if not self._bits:
            return np.arange(self.count)
        bits = np.unpackbits(words.astype("<i4", copy=False).view(np.uint8), bitorder="little")[: self._bits]
        if self._is_bitmap:
            return self._checked(np.flatnonzero(bits))
        high = np.flatnonzero(bits[self._low * self.count :])
        if high.size != self.count:
            raise ValueError(f"the code of {self.count} numbers below {self.bound} has {high.size}")
        places = high - np.arange(self.count) << self._low
        for bit, plane in enumerate(self._planes(bits)):
            places |= plane.astype(np.int64) << bit
        return self._checked(places)

    def _planes(self, bits: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Of each lower bit, one of each number: shape (lower bits, count)."""
        return bits[: self._low * self.count].reshape(self._low, self.count)

    @property
    def _is_bitmap(self) -> bool:
        return self.bound <= self._elias_fano

    def _checked(self, places: Places) -> Places:
        if places.size != self.count or places[-1] >= self.bound or (np.diff(places) <= 0).any():
            raise ValueError(f"the code of {self.count} numbers below {self.bound} has others")
        return places
