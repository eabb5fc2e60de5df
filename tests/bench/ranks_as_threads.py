# SPDX-License-Identifier: Apache-2.0
"""Ranks of a peer, which are threads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from queue import SimpleQueue

import numpy as np

from p4reduce_bench.peers.vectors import Exchange, Words


class Threads(Exchange):
    """An exchange between ranks that are threads of one process."""

    def __init__(self, rank: int, queues: Mapping[tuple[int, int], SimpleQueue[Words]]) -> None:
        self.rank, self.size = rank, math.isqrt(len(queues))
        self.words = 0
        self._queues = queues

    def swap(
        self, to: Mapping[int, Words], of: Sequence[int], lengths: Mapping[int, int] | None = None
    ) -> dict[int, Words]:
        for rank, words in to.items():
            self._queues[self.rank, rank].put(np.array(words))
            self.words += words.size
        come = {rank: self._queues[rank, self.rank].get(timeout=20) for rank in of}
        if lengths is not None:  # as Gloo receives it
            assert {rank: lengths[rank] for rank in of} == {rank: words.size for rank, words in come.items()}
        return come


def threads(size: int) -> list[Threads]:
    """Return an exchange for each of `size` ranks that run as threads of this process."""
    queues: dict[tuple[int, int], SimpleQueue[Words]] = {
        (one, other): SimpleQueue() for one in range(size) for other in range(size)
    }
    return [Threads(rank, queues) for rank in range(size)]
