# SPDX-License-Identifier: Apache-2.0
"""Premultiplied sums by Gloo, which multiplies nothing: tensors are multiplied here, and then it is a sum."""

from __future__ import annotations

from typing import Any

import torch
from torch._C._distributed_c10d import ReduceOp


def is_premultiplied(opts: Any) -> bool:
    """Whether tensors are multiplied before they are added: as this is done in place, in copies of them."""
    return bool(opts.reduceOp == ReduceOp.PREMUL_SUM)


def factor(op: Any) -> Any:
    """By what a premultiplied sum's tensors are multiplied: a number or a tensor; 1 for other operations."""
    # `ReduceOp.factor` came after PyTorch 2.11; the state for pickle has the same in all releases.
    return op.__getstate__()[1] if op == ReduceOp.PREMUL_SUM else 1.0


def multiply(copies: list[torch.Tensor], opts: Any) -> list[torch.Tensor]:
    """What is to be added, which is the same tensors."""
    if is_premultiplied(opts):
        by = factor(opts.reduceOp)
        for copy in copies:
            copy.mul_(by)
    return copies


def summing(opts: Any) -> Any:
    """Options for what Gloo then adds: others than the caller's, which may be those of other tensors as well."""
    if not is_premultiplied(opts):
        return opts
    sums = type(opts)()
    for name in ("timeout", "asyncOp", "rootRank", "rootTensor"):
        if hasattr(opts, name):
            setattr(sums, name, getattr(opts, name))
    sums.reduceOp = ReduceOp.SUM
    return sums
