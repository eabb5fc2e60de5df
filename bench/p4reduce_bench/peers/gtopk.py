# SPDX-License-Identifier: Apache-2.0
"""gTop-k (Shi et al., ICDCS 2019): recursive doubling, of which only the k largest elements are kept in each step.

Faithful: that. Its result is no sum: what is dropped on the way is the gradient's loss, which error feedback keeps.
k is the most that any rank has, on which ranks agree first. A rank sends 2k log2 P words. The published form reduces
along a tree and broadcasts, in twice as many steps.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from p4reduce_bench.peers.vectors import Exchange, Vector, added, power_of_two


def gtopk(exchange: Exchange, own: Vector, numel: int) -> Vector:  # noqa: ARG001
    counts = exchange.all_gather(np.array([own.places.size], np.int32), [1] * exchange.size)
    count = max(int(words[0]) for words in counts)
    for step in range(power_of_two(exchange.size)):
        partner = exchange.rank ^ 1 << step
        words = np.zeros(1 + 2 * count, np.int32)  # of a rank that has fewer, the rest is zeros
        words[0], words[1 : 1 + 2 * own.places.size] = own.places.size, own.words()
        come = exchange.swap({partner: words}, [partner], {partner: words.size})[partner]
        own = added([own, Vector.from_words(come[1 : 1 + 2 * int(come[0])])]).largest(count)
    return own


def expected(inputs: Sequence[Vector]) -> Vector:
    """What gTop-k gives, of all ranks' vectors."""
    have, count = list(inputs), max(vector.places.size for vector in inputs)
    for step in range(power_of_two(len(inputs))):
        have = [added([have[rank], have[rank ^ 1 << step]]).largest(count) for rank in range(len(have))]
    return have[0]
