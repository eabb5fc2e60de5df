# SPDX-License-Identifier: Apache-2.0
"""gTop-k (Shi et al., ICDCS 2019): recursive doubling that keeps only the k largest elements in each step.

Its result is no sum: dropped elements are lost to the gradient, and error feedback keeps them. k is the largest count
of any rank, on which ranks agree first. A rank sends 2k log2 P words. The published form reduces along a tree and
broadcasts, in twice as many steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from p4reduce_bench.peers.vectors import Exchange, Vector, added, power_of_two


def gtopk(exchange: Exchange, own: Vector, numel: int) -> Vector:  # noqa: ARG001
    counts = exchange.all_gather(np.array([own.indices.size], np.int32), [1] * exchange.size)
    count = max(int(words[0]) for words in counts)
    for step in range(power_of_two(exchange.size)):
        partner = exchange.rank ^ 1 << step
        words = np.zeros(1 + 2 * count, np.int32)  # if a rank has fewer elements, the rest is zeros
        words[0], words[1 : 1 + 2 * own.indices.size] = own.indices.size, own.words()
        come = exchange.swap({partner: words}, [partner], {partner: words.size})[partner]
        own = added([own, Vector.from_words(come[1 : 1 + 2 * int(come[0])])]).largest(count)
    return own


def expected(inputs: Sequence[Vector]) -> Vector:
    """Return the result of gTop-k for all ranks' vectors."""
    have, count = list(inputs), max(vector.indices.size for vector in inputs)
    for step in range(power_of_two(len(inputs))):
        have = [added([have[rank], have[rank ^ 1 << step]]).largest(count) for rank in range(len(have))]
    return have[0]
