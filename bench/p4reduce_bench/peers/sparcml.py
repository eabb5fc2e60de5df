# SPDX-License-Identifier: Apache-2.0
"""SparCML (Renggli, Ashkboos, Aghagolzadeh, Alistarh and Hoefler, SC 2019): its three sparse allreduces.

As published: the algorithms, and the change of a vector to dense when that takes fewer words. Missing: its non-blocking
forms, its quantisation, and MPI instead of Gloo.
"""

from __future__ import annotations

import numpy as np

from p4reduce_bench.peers.vectors import Dense, Exchange, Vector, added, chained, power_of_two


def recursive_doubling(exchange: Exchange, own: Vector, numel: int) -> Vector | Dense:
    """Run SSAR_Recursive_double: in step t, ranks at distance 2^t exchange all that they have.

    A rank sends 2k log2 P words if all ranks have the same indices, and 2k(P - 1) if none have any in common.
    """
    have = _least(own, numel)
    for step in range(power_of_two(exchange.size)):
        partner = exchange.rank ^ 1 << step
        words = have.words() if isinstance(have, Vector) else have.view(np.int32)
        come = exchange.swap({partner: words}, [partner])[partner]
        have = _both(have, come.view(np.float32) if come.size == numel else Vector.from_words(come), numel)
    return have


def split_allgather(exchange: Exchange, own: Vector, numel: int) -> Vector:
    """Run SSAR_Split_allgather: rank i adds up the i-th part of the indices, and all gather the sums.

    With evenly spread indices, a rank sends 2k(P - 1)/P words in the first phase. In the second it sends up to
    2k(P - 1), if no two ranks have the same indices.
    """
    part = _own_part(exchange, own, numel)
    return chained([Vector.from_words(words) for words in exchange.all_gather(part.words())])


def dense_split_allgather(exchange: Exchange, own: Vector, numel: int) -> Dense:
    """Run DSAR_Split_allgather: the same, but sums are gathered dense, for sums that are no longer sparse."""
    bounds = _bounds(exchange, numel)
    start, end = bounds[exchange.rank]
    part = _own_part(exchange, own, numel)
    dense = Vector(part.indices - start, part.values).dense(end - start)
    lengths = [end - start for start, end in bounds]
    return np.concatenate(exchange.all_gather(dense.view(np.int32), lengths)).view(np.float32)


def _own_part(exchange: Exchange, own: Vector, numel: int) -> Vector:
    parts = [own.between(start, end).words() for start, end in _bounds(exchange, numel)]
    return added([Vector.from_words(words) for words in exchange.all_to_all(parts)])


def _bounds(exchange: Exchange, numel: int) -> list[tuple[int, int]]:
    size = exchange.size
    return [(numel * rank // size, numel * (rank + 1) // size) for rank in range(size)]


def _least(vector: Vector, numel: int) -> Vector | Dense:
    """Return the vector in the form of fewer words."""
    return vector if 2 * vector.indices.size < numel else vector.dense(numel)


def _both(one: Vector | Dense, other: Vector | Dense, numel: int) -> Vector | Dense:
    """Return the sum of two vectors, in any form."""
    if isinstance(one, Vector) and isinstance(other, Vector):
        return _least(added([one, other]), numel)
    if isinstance(one, Vector):
        one, other = other, one
    assert not isinstance(one, Vector)
    if isinstance(other, Vector):
        one[other.indices] += other.values
        return one
    return one + other
