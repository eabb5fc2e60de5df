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
    count = max(int(words[0]) for words in exchange.all_gather(np.array([own.places.size], np.int32)))
    for step in range(power_of_two(exchange.size)):
        partner = exchange.rank ^ 1 << step
        other = Vector.from_words(exchange.swap({partner: own.words()}, [partner])[partner])
        own = added([own, other]).largest(count)
    return own


def expected(inputs: Sequence[Vector]) -> Vector:
    """What gTop-k gives, of all ranks' vectors."""
    have, count = list(inputs), max(vector.places.size for vector in inputs)
    for step in range(power_of_two(len(inputs))):
        have = [added([have[rank], have[rank ^ 1 << step]]).largest(count) for rank in range(len(have))]
    return have[0]
