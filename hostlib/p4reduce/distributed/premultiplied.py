# SPDX-License-Identifier: Apache-2.0
"""Premultiplied sums by Gloo, which cannot multiply: tensors are multiplied here before an ordinary sum."""

from __future__ import annotations

from typing import Any

import torch
from torch._C._distributed_c10d import ReduceOp


def is_premultiplied(opts: Any) -> bool:
    """Return whether tensors are multiplied before the sum. That is done in place, so they need copies."""
    return bool(opts.reduceOp == ReduceOp.PREMUL_SUM)


def factor(op: Any) -> Any:
    """Return the factor of a premultiplied sum, a number or a tensor; 1 for other operations."""
    # `ReduceOp.factor` is newer than PyTorch 2.11; the state for pickle has the factor in all releases.
    return op.__getstate__()[1] if op == ReduceOp.PREMUL_SUM else 1.0


def multiply(copies: list[torch.Tensor], opts: Any) -> list[torch.Tensor]:
    """Multiply the copies in place if the operation asks for it, and return them."""
    if is_premultiplied(opts):
        by = factor(opts.reduceOp)
        for copy in copies:
            copy.mul_(by)
    return copies


def summing(opts: Any) -> Any:
    """Return options for Gloo's ordinary sum: a copy, since the caller may use its own for other tensors, too."""
    if not is_premultiplied(opts):
        return opts
    sums = type(opts)()
    for name in ("timeout", "asyncOp", "rootRank", "rootTensor"):
        if hasattr(opts, name):
            setattr(sums, name, getattr(opts, name))
    sums.reduceOp = ReduceOp.SUM
    return sums
