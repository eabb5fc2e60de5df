# SPDX-License-Identifier: Apache-2.0
"""Premultiplied sums by Gloo, which multiplies nothing: tensors are multiplied here, and then it is a sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._C._distributed_c10d import ReduceOp


def by_gloo(begin: Callable[[Any, Any], Any], tensor: torch.Tensor, opts: Any, *, result: bool = True) -> Any:
    """Begins a reduction in place. result: whether this rank's tensor becomes it; else it stays as it is."""
    if opts.reduceOp != ReduceOp.PREMUL_SUM:
        return begin([tensor], opts)
    (product,) = multiplied([tensor], opts)
    if not result:
        return begin([product], summing(opts))
    before = tensor.clone()
    tensor.copy_(product)
    try:
        return begin([tensor], summing(opts))
    except BaseException:  # which Gloo raises before it begins
        tensor.copy_(before)
        raise


def multiplied(tensors: list[torch.Tensor], opts: Any) -> list[torch.Tensor]:
    """What is to be added, in copies where it is multiplied: inputs stay as they are."""
    if opts.reduceOp != ReduceOp.PREMUL_SUM:
        return tensors
    return [tensor.clone().mul_(opts.reduceOp.factor) for tensor in tensors]


def summing(opts: Any) -> Any:
    """Options for what Gloo then adds: others than the caller's, which may be those of other tensors as well."""
    if opts.reduceOp != ReduceOp.PREMUL_SUM:
        return opts
    sums = type(opts)()
    for name in ("timeout", "asyncOp", "rootRank", "rootTensor"):
        if hasattr(opts, name):
            setattr(sums, name, getattr(opts, name))
    sums.reduceOp = ReduceOp.SUM
    return sums
