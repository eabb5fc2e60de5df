# SPDX-License-Identifier: Apache-2.0
"""The scan of an operation's blocks, piece by piece, as packets need them: it finds those that are not zero."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from p4reduce.protocol.blocks import ZERO, Blocks
from p4reduce.protocol.constants import NO_KEY

MAX_STREAM_LENGTH = 1 << 24

SCAN_BLOCKS = 4096
"""Blocks scanned between packets. Each group of slots has a share of them, a piece."""
GROUP_SLOTS = 16
"""Slots whose streams are scanned together, because their blocks of a row are adjacent in memory."""


class Scanning:
    """The exponents of an operation's blocks, and which blocks are to be sent, as far as they have been scanned.

    Block b is number b // streams of stream b mod streams. A row has one block of each stream.

    `zeros_sent`: the number of rows, from the first, whose blocks of zeros are sent as well, with the least exponent
    that a non-zero block can have. The scan clears other blocks of zeros, so that none keeps a -0, unless `read_only`.
    """

    def __init__(self, blocks: Blocks, *, slots: int, lanes: int, zeros_sent: int = 0, read_only: bool = False) -> None:
        streams = slots * lanes
        self.rows = -(-blocks.count // streams)
        if self.rows > MAX_STREAM_LENGTH:
            raise ValueError(
                f"tensor has {blocks.count} blocks, {self.rows} in each of {streams} streams: accepted are up to "
                f"{MAX_STREAM_LENGTH} a stream; join the job with more slots, or reduce the tensor in parts"
            )
        self.blocks_skipped = 0
        """The number of scanned blocks that are not to be sent."""
        self._blocks = blocks
        self._lanes = lanes
        self._streams = streams
        self._zeros_sent = zeros_sent
        self._read_only = read_only
        self.piece = max(1, SCAN_BLOCKS // streams)
        """Rows of a piece: if each group scans one, that is SCAN_BLOCKS blocks."""
        self._scanned = [0] * (slots // GROUP_SLOTS + 1)  # how many rows of each group have been scanned
        # Stream after stream. `bytearray.find` finds the next block faster than NumPy does.
        self._exponents = bytearray(streams * self.rows)
        self._sent = bytearray(streams * self.rows)

    def next_key(self, stream: int, number: int) -> int | None:
        """Return the key of a stream's first block to be sent, from `number` on: NO_KEY if there is none.

        None if the scan has not come that far.
        """
        first, scanned = stream * self.rows, self._scanned[stream // self._lanes // GROUP_SLOTS]
        position = self._sent.find(True, first + number, first + scanned)
        if position >= 0:
            # The least key wins: of the workers' next blocks the first, and of its exponents the largest.
            return (position - first) << 8 | (255 - self._exponents[position])
        return NO_KEY if scanned == self.rows else None

    def more(self, slot: int) -> int:
        """Scan the next piece of the streams of a slot's group. Return how many blocks it has."""
        group = slot // GROUP_SLOTS
        begin = self._scanned[group]
        end = self._scanned[group] = min(begin + self.piece, self.rows)
        first = group * GROUP_SLOTS * self._lanes
        last = min(first + GROUP_SLOTS * self._lanes, self._streams)
        numbers = (np.arange(begin, end)[:, None] * self._streams + np.arange(first, last)).reshape(-1)
        blocks = numbers[numbers < self._blocks.count]  # a prefix, as numbers ascend: only the last row can be short
        exponents = np.full(numbers.size, ZERO, np.uint8)
        if blocks.size:
            exponents[: blocks.size] = self._scan(blocks)
        by_stream = exponents.reshape(-1, last - first).T
        for of_all, own in ((self._exponents, by_stream), (self._sent, by_stream != ZERO)):
            np.frombuffer(of_all, np.uint8).reshape(self._streams, -1)[first:last, begin:end] = own
        return blocks.size

    def _scan(self, blocks: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
        exponents = self._blocks.scan(blocks.tolist())
        exponents[(exponents == ZERO) & (blocks < self._zeros_sent * self._streams)] = self._blocks.least
        skipped = blocks[exponents == ZERO].tolist()
        self.blocks_skipped += len(skipped)
        if not self._read_only:
            self._blocks.clear(skipped)
        return exponents
