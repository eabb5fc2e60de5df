# SPDX-License-Identifier: Apache-2.0
"""AGsparse: every rank gathers all ranks' places and values, and adds them up itself.

The baseline of SparCML's and Ok-Topk's papers, and what PyTorch and Horovod do. A rank receives 2k(P - 1) words, of k
elements each at P ranks.
"""

from __future__ import annotations

from p4reduce_bench.peers.vectors import Exchange, Vector, added


def agsparse(exchange: Exchange, own: Vector, numel: int) -> Vector:  # noqa: ARG001
    return added([Vector.from_words(words) for words in exchange.all_gather(own.words())])
