# SPDX-License-Identifier: Apache-2.0
"""The calls of torch.distributed that the switch can carry out, and the operations that they become."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from functools import cache
from typing import Any

import torch
from torch._C._distributed_c10d import HashStore, ProcessGroupGloo, ReduceOp

from p4reduce.distributed.premultiplied import factor
from p4reduce.errors import UnsupportedDtype
from p4reduce.tensors.spec import WORK_DTYPES

log = logging.getLogger(__name__)

_LEAST_WARNED = 1024  # elements; incidental tensors, such as a loss, have fewer
_WARNED: set[torch.dtype] = set()

_NEED_DTYPES = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_single", "gather", "scatter")
"""Calls in which Gloo does not accept every dtype."""

_OPS = [
    (ReduceOp.SUM, "sum"),
    (ReduceOp.PREMUL_SUM, "sum"),
    (ReduceOp.AVG, "average"),
    (ReduceOp.MAX, "max"),
    (ReduceOp.MIN, "min"),
]


def how(opts: Any) -> tuple[Any, float]:
    """Return the name of the operation in a communicator's reductions, None if it has none, and the factor."""
    op = opts.reduceOp
    return op_name(op), float(factor(op))


def op_name(op: Any) -> str | None:
    """Return the name of the operation in a communicator's reductions, None if it has none."""
    for known, name in _OPS:
        if op == known:
            return name
    return None


def can_reduce(tensor: torch.Tensor, op: Any) -> bool:
    """Return whether a communicator can reduce it: it adds `WORK_DTYPES` and compares all dtypes with an order."""
    name, dtype = op_name(op), str(tensor.dtype).removeprefix("torch.")
    if tensor.is_sparse:
        return name in ("sum", "average") and dtype in WORK_DTYPES
    if not can_move(tensor) or name is None:
        return False
    if name in ("max", "min"):
        return not tensor.is_complex()
    integers_as_they_are = op == ReduceOp.SUM or tensor.is_floating_point()
    return dtype in WORK_DTYPES and integers_as_they_are


def tell_of_gloo(call: str, tensor: torch.Tensor) -> None:
    """Log a warning, once for each dtype, about sums that the switch could carry out if they had another dtype."""
    if tensor.dtype not in _WARNED and tensor.dtype is torch.float64 and tensor.numel() >= _LEAST_WARNED:
        _WARNED.add(tensor.dtype)
        log.warning(
            "%s of %d float64 values uses Gloo, because the switch adds only %s; model.float() converts a model to "
            "float32",
            call,
            tensor.numel(),
            ", ".join(WORK_DTYPES),
        )


def check_dtypes(call: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raise UnsupportedDtype, which names the dtypes, if Gloo does not accept them: its own error is late and vague."""
    if call not in _NEED_DTYPES:
        return
    dtypes = dict.fromkeys(tensor.dtype for tensor in tensors)
    refused = [str(dtype).removeprefix("torch.") for dtype in dtypes if not _gloo_takes(dtype)]
    if refused:
        raise UnsupportedDtype(
            f"{call} of {', '.join(refused)}: neither the switch nor Gloo supports this dtype here; convert the "
            "tensor, as by tensor.int() or tensor.float()"
        )


@cache
def _gloo_takes(dtype: torch.dtype) -> bool:
    """Return whether Gloo can reduce this dtype, found out by a try, since that differs between releases."""
    if dtype in (torch.float32, torch.float64, torch.int32, torch.int64, torch.uint8):
        return True
    alone: Any = ProcessGroupGloo(HashStore(), 0, 1, timeout=timedelta(seconds=30))
    try:
        alone.allreduce([torch.zeros(1, dtype=dtype)]).wait()
    except RuntimeError as error:
        return "Invalid scalar type" not in str(error)
    return True


def check_sizes(whole: tuple[str, torch.Tensor], part: tuple[str, torch.Tensor], ranks: int) -> None:
    """Raise ValueError unless `whole` consists of one `part` for each rank. Both come with their arguments' names."""
    (name, tensor), (part_name, one) = whole, part
    if tensor.dtype != one.dtype:
        raise ValueError(f"{name} is {tensor.dtype}: accepted is {one.dtype}, which {part_name} is")
    if tensor.numel() != ranks * one.numel():
        raise ValueError(
            f"{name} has {tensor.numel()} elements: accepted are {ranks * one.numel()}, for each of {ranks} ranks the "
            f"{one.numel()} of {part_name}"
        )


def can_move(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and not tensor.is_quantized


def alike(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    return tensor.shape == other.shape and tensor.dtype == other.dtype
