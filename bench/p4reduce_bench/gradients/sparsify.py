# SPDX-License-Identifier: Apache-2.0
"""Sparsifiers with error feedback that choose like the hooks of `p4reduce.ddp`, but without a job."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from p4reduce.ddp.states import block_norms
from p4reduce_bench.gradients.plan import SPARSIFIERS


def chosen(bucket: Tensor, ratio: float, together: int) -> Tensor:
    """Return the mask of the blocks with the largest norms, `ratio` of them and at least one: bool, shape (numel,).

    together: elements a block; the last one may be shorter.
    """
    norms = block_norms(bucket, together)
    _, indices = norms.topk(max(1, math.ceil(ratio * norms.numel())), sorted=False)
    blocks = torch.zeros_like(norms, dtype=torch.bool).index_fill_(0, indices, True)
    return blocks.repeat_interleave(together)[: bucket.numel()]


class Sparsifier:
    """The sparsifier of one rank."""

    def __init__(self, kind: str, ratio: float) -> None:
        self._together, self._ratio = SPARSIFIERS[kind], ratio
        self._residuals: dict[int, Tensor] = {}

    def sent(self, index: int, bucket: Tensor) -> Tensor:
        """Return the values of a bucket to send, float32; the rest is added to the next bucket with this index."""
        if not self._together:
            return bucket
        whole = bucket + self._residuals[index] if index in self._residuals else bucket
        sent = whole.masked_fill(~chosen(whole, self._ratio, self._together), 0)
        self._residuals[index] = whole - sent
        return sent
