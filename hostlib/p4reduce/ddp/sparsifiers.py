# SPDX-License-Identifier: Apache-2.0
"""The states of hooks that send only a part of each bucket, one class for each way to choose that part."""

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
    """The state of `block_topk_hook`: each rank sends the blocks of a bucket that have the largest norms.

    ratio: share of a bucket's blocks to send, above 0 and up to 1; at least one block of each bucket.
    by: "norm", or "update ratio": the block's norm divided by the norm of the parameters that it changes. These are
        Block Top-k and Block Top-k Ratio of OmniReduce (Fei et al., SIGCOMM 2021).
    exact_every: iterations between exact choices; 1 for always. In between, each block is sent whose norm reaches the
        smallest norm of the last exact choice. That takes one comparison a block instead of a selection, as Ok-Topk
        does with elements (Li and Hoefler, PPoPP 2022).
    tolerance: bound on the number of blocks of a choice by threshold: from 1/tolerance to `tolerance` times the number
        for `ratio`. Outside of these bounds, the choice is made again exactly.
    The other parameters are those of `SparsifierState`.

    Each rank chooses its own blocks, and the switch adds all that arrive: with N ranks, the average has up to N times
    `ratio` of the blocks.
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
        """How many of the choices, one for each bucket and iteration, were exact."""
        self._thresholds: dict[int, float] = {}  # by bucket index; for other buckets, `tolerance` rejects their choice

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
        values, indices = norms.topk(k, sorted=False)
        self._thresholds[bucket.index()] = float(values.min()) if k else math.inf
        return torch.zeros_like(norms, dtype=torch.bool).index_fill_(0, indices, True)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "thresholds": dict(self._thresholds), "exact_choices": self.exact_choices}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._thresholds, self.exact_choices = dict(state["thresholds"]), state["exact_choices"]


class ElementTopKState(BlockTopKState):
    """The state of `element_topk_hook`: each rank sends the elements of a bucket that have the largest magnitudes.

    All parameters are those of `BlockTopKState`, with blocks of one element: Ok-Topk (Li and Hoefler, PPoPP 2022) also
    reuses the threshold between exact choices. The values' rounding to int16 and int8 is lost, even with error
    feedback.
    """

    hook = "element_topk_hook"
    _by_elements = True


class BlockThresholdState(SparsifierState):
    """The state of `block_threshold_hook`: each rank sends the blocks whose l2 norm reaches `threshold`.

    This is Block Threshold of OmniReduce (Fei et al., SIGCOMM 2021). A constant threshold compresses less while
    gradients are large, and bounds the residuals (Sahu et al., NeurIPS 2021). Each rank chooses its own blocks, and
    chooses each block independently of the others.

    threshold: 0 or more; 0 sends all blocks that are not zero. `SparsifierStats.density` shows its effect.
    The other parameters are those of `SparsifierState`.
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
    """The state of `block_randomk_hook`: ranks send random blocks of each bucket, all ranks the same ones.

    This is Block Random-k of OmniReduce (Fei et al., SIGCOMM 2021). The choice depends on a common seed, the iteration
    and the bucket, and not on gradients. Since all ranks choose the same blocks, the average has no more blocks than
    each rank has sent. With N independent choices it would have up to N times as many.

    ratio: share of a bucket's blocks to send, above 0 and up to 1; at least one block of each bucket.
    seed: the same on all ranks.
    The other parameters are those of `SparsifierState`.
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
        indices = torch.from_numpy(drawn).to(norms.device)
        return torch.zeros_like(norms, dtype=torch.bool).index_fill_(0, indices, True)


def _parameter_norms(parameters: Sequence[torch.Tensor], block_size: int) -> torch.Tensor:
    """Return the norms of the parameters' blocks, in the bucket's order; none is zero, since they are divisors."""
    flat = torch.cat([parameter.detach().as_strided((parameter.numel(),), (1,)) for parameter in parameters])
    return block_norms(flat, block_size).clamp_(min=torch.finfo(torch.float32).tiny)


def _count(norms: torch.Tensor, ratio: float) -> int:
    return min(norms.numel(), max(1, math.ceil(ratio * norms.numel())))


def _share(ratio: float) -> float:
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio={ratio!r}: must be a number above 0 and up to 1")
    return ratio
