# SPDX-License-Identifier: Apache-2.0
"""A flat tensor as blocks: which of them are not zero, and how large their values are."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.protocol.halves import narrowed, widened

ZERO = 0
"""Exponent of a block whose values are all +0 or -0."""
NOT_FINITE = 255
"""Exponent of a block of floats if a value is NaN or infinite. Also the exponent of any non-zero int32 block."""

_SCAN_ROWS = 1024  # blocks scanned at once, so that the magnitudes stay in the processor's cache


class Blocks:
    """A flat array that is read and written by block: float32, int32, or 16-bit floats, whose blocks are float32.

    If the last block is ragged, it reads as if it were padded with zeros.
    """

    def __init__(self, data: npt.NDArray[Any], block_size: int) -> None:
        self.data = data
        self.block_size = block_size
        self.count = -(-data.size // block_size)
        self._whole_count = data.size // block_size
        self._whole = data[: self._whole_count * block_size].reshape(-1, block_size)

    def gather(self, blocks: list[int]) -> npt.NDArray[Any]:
        """Return a copy of some blocks, at least one: shape (number of blocks, block size)."""
        if max(blocks) < self._whole_count:
            return widened(self._whole.take(blocks, axis=0))
        rows = np.zeros((len(blocks), self.block_size), self.data.dtype)
        for block, row in zip(blocks, rows, strict=True):
            values = self._values(block)
            row[: values.size] = values
        return widened(rows)

    def scatter(self, blocks: list[int], rows: npt.NDArray[Any]) -> None:
        """Write some blocks, at least one; `rows` has shape (number of blocks, block size)."""
        rows = narrowed(rows, self.data.dtype)
        if max(blocks) < self._whole_count:
            self._whole[blocks] = rows
        else:
            for block, row in zip(blocks, rows, strict=True):
                values = self._values(block)
                values[:] = row[: values.size]

    def _values(self, block: int) -> npt.NDArray[Any]:
        return self.data[block * self.block_size : (block + 1) * self.block_size]

    @property
    def least(self) -> int:
        """The least exponent of a block that is not zero."""
        return NOT_FINITE if self.data.dtype == np.int32 else 1

    def scan(self, blocks: list[int] | None = None) -> npt.NDArray[np.uint8]:
        """Return the largest biased exponent in each of some blocks, at least one, by default in each of all blocks.

        A block of zeros has ZERO. Floats count as float32: a block that has only subnormals has 1, a block with a NaN
        or an infinity has NOT_FINITE. An int32 block that is not zero has NOT_FINITE, because integers are not scaled.
        """
        if blocks is not None:
            return self._exponents(self._largest(self.gather(blocks)))
        largest = np.zeros(self.count, np.uint32)
        for start in range(0, self._whole_count, _SCAN_ROWS):
            rows = self._whole[start : start + _SCAN_ROWS]
            largest[start : start + len(rows)] = self._largest(widened(rows))
        if self.count > self._whole_count:
            largest[-1:] = self._largest(widened(self._values(self._whole_count)[None]))
        return self._exponents(largest)

    def _largest(self, rows: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
        """Return the bits of each row's largest magnitude, as an integer.

        As integers, the magnitudes of IEEE numbers are in the order of their values.
        """
        magnitude = np.uint32(0xFFFFFFFF if self.data.dtype == np.int32 else 0x7FFFFFFF)  # -0 is the magnitude 0
        largest: npt.NDArray[np.uint32] = np.max(rows.view(np.uint32) & magnitude, axis=1)
        return largest

    def _exponents(self, largest: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint8]:
        is_float = self.data.dtype != np.int32
        exponents = np.maximum(largest >> 23, 1).astype(np.uint8) if is_float else np.uint8(NOT_FINITE)
        result: npt.NDArray[np.uint8] = np.where(largest != 0, exponents, np.uint8(ZERO))
        return result

    def clear(self, blocks: list[int]) -> None:
        """Write +0 to some blocks that are zero already, so that none of them keeps a -0."""
        if blocks:
            self.scatter(blocks, np.zeros((len(blocks), self.block_size), np.float32))
