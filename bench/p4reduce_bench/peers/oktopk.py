# SPDX-License-Identifier: Apache-2.0
"""Ok-Topk's sparse allreduce (Li and Hoefler, PPoPP 2022): split and reduce, then balance and allgatherv.

As published: all ranks agree on the boundaries of the parts, so that parts have equally many elements. Destinations
rotate. If a rank has more than four times the average, elements are balanced before they are gathered. Missing: its
buckets of several messages.

`oktopk` gathers the whole sum, so that sums are exact, and computes boundaries in each call. The DDP hook that trains
with it, `p4reduce_bench.training.oktopk`, selects the sum's own top-k by a threshold, and reuses boundaries and
thresholds between iterations.

A rank sends up to 2k(P - 1)/P words to split, as much to balance, and 2k(P - 1)/P to gather a sum of k elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from p4reduce_bench.peers.vectors import Exchange, Vector, added, chained

_UNBALANCED = 4


def oktopk(exchange: Exchange, own: Vector, numel: int) -> Vector:
    part = split_and_reduce(exchange, own, space_repartition(exchange, own, numel))
    return balance_and_allgatherv(exchange, part)


def space_repartition(exchange: Exchange, own: Vector, numel: int) -> list[int]:
    """Return the boundaries of the parts: the means of those at which each rank would have equally many elements."""
    size = exchange.size
    at = np.arange(1, size) * own.indices.size // size
    wanted = own.indices[at] if own.indices.size else np.arange(1, size) * numel // size
    every = exchange.all_gather(wanted.astype(np.int32), [size - 1] * size)
    return [0, *(int(np.mean(indices)) for indices in zip(*every, strict=True)), numel]


def split_and_reduce(exchange: Exchange, own: Vector, bounds: Sequence[int]) -> Vector:
    """Return the sum of this rank's part."""
    parts = [own.between(start, end).words() for start, end in pairwise(bounds)]
    return added([Vector.from_words(words) for words in exchange.all_to_all(parts)])


def balance_and_allgatherv(exchange: Exchange, part: Vector) -> Vector:
    """Return the parts of all ranks."""
    every = exchange.all_gather(np.array([part.indices.size], np.int32), [1] * exchange.size)
    counts = [int(words[0]) for words in every]
    if max(counts) * exchange.size > _UNBALANCED * sum(counts):
        shares = [sum(counts) * rank // exchange.size for rank in range(exchange.size + 1)]
        part = _balanced(exchange, part, counts, shares)
        counts = [end - start for start, end in pairwise(shares)]
    return allgatherv(exchange, part, counts)


def allgatherv(exchange: Exchange, part: Vector, counts: Sequence[int] | None = None) -> Vector:
    """Return the parts of all ranks. counts: their numbers of elements, if they are known."""
    lengths = None if counts is None else [2 * count for count in counts]
    return chained([Vector.from_words(words) for words in exchange.all_gather(part.words(), lengths)])


def _balanced(exchange: Exchange, part: Vector, counts: Sequence[int], shares: Sequence[int]) -> Vector:
    """Return this rank's share of all elements, in order, so that ranks have equally many.

    shares: for each rank, the number of its first element among all elements.
    """

    def cuts(rank: int) -> list[int]:
        """Return the positions at which a rank's part is cut."""
        first = sum(counts[:rank])
        return [min(max(share - first, 0), counts[rank]) for share in shares]

    own = pairwise(cuts(exchange.rank))
    pieces = [Vector(part.indices[start:end], part.values[start:end]).words() for start, end in own]
    lengths = [2 * (at[exchange.rank + 1] - at[exchange.rank]) for at in map(cuts, range(exchange.size))]
    return added([Vector.from_words(words) for words in exchange.all_to_all(pieces, lengths)])
