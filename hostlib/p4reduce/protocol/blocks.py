# SPDX-License-Identifier: Apache-2.0
"""A flat tensor as blocks: which of them are not zero, how large their values are, and how they are dealt to streams.

The idea of sending only non-zero blocks, each naming the next, is OmniReduce's (SIGCOMM 2021).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.protocol.constants import NO_KEY
from p4reduce.protocol.halves import narrowed, widened

ZERO = 0
"""As a block's exponent: all its values are +0 or -0."""
NOT_FINITE = 255
"""As a block of floats' exponent: one of its values is NaN or infinite. Also the exponent of any int32 block."""

MAX_STREAM_LENGTH = 1 << 24

_SCAN_ROWS = 1024  # blocks scanned at once, so that the magnitudes stay in the processor's cache


class Blocks:
    """Reads and writes a flat array by block: float32, int32, or 16-bit floats, whose blocks are float32.

    A ragged last block reads as padded with zeros.
    """

    def __init__(self, data: npt.NDArray[Any], block_size: int) -> None:
        self.data = data
        self.block_size = block_size
        self.count = -(-data.size // block_size)
        self._whole_count = data.size // block_size
        self._whole = data[: self._whole_count * block_size].reshape(-1, block_size)

    def gather(self, blocks: list[int]) -> npt.NDArray[Any]:
        """A copy of some blocks, at least one: shape (number of blocks, block size)."""
        if max(blocks) < self._whole_count:
            return widened(self._whole.take(blocks, axis=0))
        rows = np.zeros((len(blocks), self.block_size), self.data.dtype)
        for block, row in zip(blocks, rows, strict=True):
            values = self._values(block)
            row[: values.size] = values
        return widened(rows)

    def scatter(self, blocks: list[int], rows: npt.NDArray[Any]) -> None:
        """Writes some blocks, at least one; `rows` has shape (number of blocks, block size)."""
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

    def scan(self) -> npt.NDArray[np.uint8]:
        """The largest biased exponent in each block, ZERO for a block of zeros.

        Floats, as float32: 1 also stands for a block of subnormals only, NOT_FINITE for one with a NaN or an infinity.
        int32: NOT_FINITE for every block that is not zero, as integers are not scaled.
        """
        is_float = self.data.dtype != np.int32
        # As integers, the magnitudes of IEEE numbers are in the order of their values. -0 is the magnitude 0.
        magnitude = np.uint32(0x7FFFFFFF if is_float else 0xFFFFFFFF)
        largest = np.zeros(self.count, np.uint32)
        for start in range(0, self._whole_count, _SCAN_ROWS):
            rows = widened(self._whole[start : start + _SCAN_ROWS]).view(np.uint32)
            np.max(rows & magnitude, axis=1, out=largest[start : start + len(rows)])
        if self.count > self._whole_count:
            largest[-1] = np.max(widened(self._values(self._whole_count)).view(np.uint32) & magnitude)
        exponents = np.maximum(largest >> 23, 1).astype(np.uint8) if is_float else np.uint8(NOT_FINITE)
        result: npt.NDArray[np.uint8] = np.where(largest != 0, exponents, np.uint8(ZERO))
        return result

    def clear(self, zeros: npt.NDArray[np.bool_]) -> None:
        """Writes +0 to the blocks of the mask, which are zero already, so that none of them keeps a -0."""
        self._whole[zeros[: self._whole_count]] = 0
        if self.count > self._whole_count and zeros[-1]:
            self._values(self._whole_count)[:] = 0


class Dealing:
    """Which block goes to which stream: block b is number b // streams of stream b mod streams.

    `keys` holds the keys of the non-zero blocks, stream after stream and in order, each stream ended by NO_KEY;
    those of stream t begin at `starts[t]`.
    """

    def __init__(self, exponents: npt.NDArray[np.uint8], streams: int) -> None:
        length = -(-exponents.size // streams)
        if length > MAX_STREAM_LENGTH:
            raise ValueError(
                f"tensor has {exponents.size} blocks, {length} in each of {streams} streams: accepted are up to "
                f"{MAX_STREAM_LENGTH} a stream; join the job with more slots, or reduce the tensor in parts"
            )
        by_number = np.zeros((length, streams), np.uint8)
        by_number.reshape(-1)[: exponents.size] = exponents
        by_stream = np.ascontiguousarray(by_number.T)
        stream, number = np.nonzero(by_stream)
        keys = np.full(stream.size + streams, NO_KEY, np.uint32)
        keys[np.arange(stream.size) + stream] = number << 8 | (255 - by_stream[stream, number])
        ends = np.cumsum(np.count_nonzero(by_stream, axis=1) + 1)
        # A memoryview gives Python integers, and faster than an array does.
        self.keys: memoryview[int] = keys.data
        self.starts: list[int] = [0, *ends[:-1].tolist()]
        self.nonzero = int(stream.size)
