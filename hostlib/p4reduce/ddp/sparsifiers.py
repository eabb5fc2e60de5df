# SPDX-License-Identifier: Apache-2.0
"""What the hooks that send only some of each bucket work with, by how they choose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch._C._distributed_c10d import GradBucket

from p4reduce.api.communicator import Communicator
from p4reduce.ddp.states import SparsifierState, block_norms
from p4reduce.tensors.spec import WireChoice


class BlockTopKState(SparsifierState):
    """What `block_topk_hook` works with: of each bucket, the blocks with the largest norms are sent.

    ratio: share of a bucket's blocks that is sent, above 0 and up to 1; at least one block of each bucket.
    by: "norm", or "update ratio": a block's norm over that of the parameters that it would change. These are Block
        Top-k and Block Top-k Ratio of OmniReduce (Fei et al., SIGCOMM 2021).
    exact_every: iterations from one exact choice to the next; 1 for always. In between, the blocks are sent whose norm
        reaches that of the least that the last exact choice took: one comparison a block in place of a selection, as
        Ok-Topk does with elements (Li and Hoefler, PPoPP 2022).
    tolerance: a choice by the old threshold that takes less than the share's 1/tolerance or more than `tolerance` times
        it is made again exactly, so the count never leaves these bounds.
    The rest is as of `SparsifierState`.

    Each rank chooses its own blocks: the switch adds whatever arrives, and with N ranks up to N times `ratio` return.
    """

    hook = "block_topk_hook"

    def __init__(
        self,
        communicator: Communicator,
        model: torch.nn.Module,
        *,
        ratio: float = 0.01,
        by: str = "norm",
        exact_every: int = 1,
        tolerance: float = 1.5,
        start_iteration: int = 0,
        error_feedback: bool = True,
        wire: WireChoice | None = None,
    ) -> None:
        super().__init__(communicator, model, start_iteration=start_iteration, error_feedback=error_feedback, wire=wire)
        self.ratio = _share(ratio)
        if by not in ("norm", "update ratio"):
            raise ValueError(f"by={by!r}: accepted are 'norm' and 'update ratio'")
        if not isinstance(exact_every, int) or exact_every < 1:
            raise ValueError(f"exact_every={exact_every!r}: must be an integer of 1 or more")
        if not 1 <= tolerance < math.inf:
            raise ValueError(f"tolerance={tolerance!r}: must be a number of 1 or more")
        self.by = by
        self.exact_every = exact_every
        self.tolerance = tolerance
        self.exact_choices = 0
        """How many of the choices, one a bucket and iteration, were made exactly."""
        self._thresholds: dict[int, float] = {}  # by bucket's index: of other buckets, they miss the count

    def choose(self, norms: torch.Tensor, bucket: GradBucket) -> torch.Tensor:
        if self.by == "update ratio":
            norms = norms / _parameter_norms(bucket.parameters(), self._block_size(bucket.buffer()))
        k = _count(norms, self.ratio)
        threshold = self._thresholds.get(bucket.index())
        if threshold is not None and self.iteration % self.exact_every:
            chosen = norms >= threshold
            if k / self.tolerance <= int(chosen.count_nonzero()) <= k * self.tolerance:
                return chosen
        self.exact_choices += 1
        values, places = norms.topk(k, sorted=False)
        self._thresholds[bucket.index()] = float(values.min()) if k else math.inf
        return torch.zeros_like(norms, dtype=torch.bool).index_fill_(0, places, True)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "thresholds": dict(self._thresholds), "exact_choices": self.exact_choices}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._thresholds, self.exact_choices = dict(state["thresholds"]), state["exact_choices"]


class ElementTopKState(BlockTopKState):
    """What `element_topk_hook` works with: of each bucket, the elements with the largest magnitudes are sent, wherever
    they stand, with the threshold reused between exact choices as by Ok-Topk (Li and Hoefler, PPoPP 2022).

    All is as of `BlockTopKState`, of blocks of one element, but that what int16 and int8 have no digits for is lost.
    """

    hook = "element_topk_hook"
    _by_elements = True


class BlockThresholdState(SparsifierState):
    """What `block_threshold_hook` works with: blocks are sent whose l2 norm reaches `threshold`.

    That is Block Threshold of OmniReduce (Fei et al., SIGCOMM 2021); a threshold for all training compresses less while
    gradients are large, and bounds what is kept (Sahu et al., NeurIPS 2021). Each rank chooses its own blocks, and a
    block is chosen or not regardless of the others of its bucket.

    threshold: at least 0, which sends all that is not zero; `SparsifierStats.density` says what one comes to.
    The rest is as of `SparsifierState`.
    """

    hook = "block_threshold_hook"

    def __init__(
        self,
        communicator: Communicator,
        model: torch.nn.Module,
        *,
        threshold: float,
        start_iteration: int = 0,
        error_feedback: bool = True,
        wire: WireChoice | None = None,
    ) -> None:
        super().__init__(communicator, model, start_iteration=start_iteration, error_feedback=error_feedback, wire=wire)
        if not 0 <= threshold < math.inf:
            raise ValueError(f"threshold={threshold!r}: must be a number of 0 or more")
        self.threshold = threshold

    def choose(self, norms: torch.Tensor, bucket: GradBucket) -> torch.Tensor:  # noqa: ARG002
        return norms >= self.threshold


class BlockRandomKState(SparsifierState):
    """What `block_randomk_hook` works with: of each bucket, blocks drawn at random are sent.

    That is Block Random-k of OmniReduce (Fei et al., SIGCOMM 2021). All ranks draw the same blocks, from a seed that
    they share, the iteration and the bucket. Nothing of a gradient decides here, so there is no reason for ranks to
    differ, and one against it: the sum has no more blocks than each rank sent, where N ranks that draw alone would
    receive up to N times as many.

    ratio: share of a bucket's blocks that is sent, above 0 and up to 1; at least one block of each bucket.
    seed: the same on all ranks.
    The rest is as of `SparsifierState`.
    """

    hook = "block_randomk_hook"

    def __init__(
        self,
        communicator: Communicator,
        model: torch.nn.Module,
        *,
        ratio: float = 0.01,
        seed: int = 0,
        start_iteration: int = 0,
        error_feedback: bool = True,
        wire: WireChoice | None = None,
    ) -> None:
        super().__init__(communicator, model, start_iteration=start_iteration, error_feedback=error_feedback, wire=wire)
        self.ratio = _share(ratio)
        if not isinstance(seed, int) or seed < 0:
            raise ValueError(f"seed={seed!r}: must be an integer of 0 or more")
        self.seed = seed

    def choose(self, norms: torch.Tensor, bucket: GradBucket) -> torch.Tensor:
        rng = np.random.default_rng([self.seed, self.iteration, bucket.index()])
        drawn = rng.choice(norms.numel(), _count(norms, self.ratio), replace=False, shuffle=False)
        places = torch.from_numpy(drawn).to(norms.device)
        return torch.zeros_like(norms, dtype=torch.bool).index_fill_(0, places, True)


def _parameter_norms(parameters: Sequence[torch.Tensor], block_size: int) -> torch.Tensor:
    """Of the parameters' blocks, as a bucket lays them out; nothing is zero, to be divided by."""
    flat = torch.cat([parameter.detach().as_strided((parameter.numel(),), (1,)) for parameter in parameters])
    return block_norms(flat, block_size).clamp_(min=torch.finfo(torch.float32).tiny)


def _count(norms: torch.Tensor, ratio: float) -> int:
    return min(norms.numel(), max(1, math.ceil(ratio * norms.numel())))


def _share(ratio: float) -> float:
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio={ratio!r}: must be a number above 0 and up to 1")
    return ratio
