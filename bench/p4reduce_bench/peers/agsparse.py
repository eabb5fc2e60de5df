# SPDX-License-Identifier: Apache-2.0
"""AGsparse: every rank gathers all ranks' indices and values, and adds them up itself.

It is the baseline of SparCML's and Ok-Topk's papers, and the method of PyTorch and Horovod. With k elements at each of
P ranks, a rank receives 2k(P - 1) words.
"""

from __future__ import annotations

from p4reduce_bench.peers.vectors import Exchange, Vector, added


def agsparse(exchange: Exchange, own: Vector, numel: int) -> Vector:  # noqa: ARG001
    return added([Vector.from_words(words) for words in exchange.all_gather(own.words())])
