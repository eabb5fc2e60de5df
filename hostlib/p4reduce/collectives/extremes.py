# SPDX-License-Identifier: Apache-2.0
"""Maxima and minima over the ranks. Switches only add, so ranks gather all tensors, and each rank reduces them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from p4reduce.collectives.moves import move
from p4reduce.collectives.plan import Collective, Group, Plan
from p4reduce.errors import UnsupportedDtype
from p4reduce.tensors.dense import host_empty
from p4reduce.tensors.spec import TensorSpec, describe
from p4reduce.tensors.staging import Target, gathered, target

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

# Reductions over the first dimension of arrays and tensors of shape (ranks, ...).
FOLDS: dict[str, Callable[[Any], Any]] = {
    "max": lambda every: _fold(every, "max", "amax"),
    "min": lambda every: _fold(every, "min", "amin"),
}
_NO_ORDER = ("complex", "str", "bytes", "void")

# For dtypes that torch cannot compare: one that has all their values, and that it can.
_WIDER = {"uint16": "int32", "uint32": "int64", "float8": "float32"}


class Extreme:
    """A rank's tensor during a max or min, with the gathered tensors of all ranks."""

    def __init__(
        self, group: Group, collective: str, tensor: Any, spec: TensorSpec, call: Collective, *, in_place: bool
    ) -> None:
        """Check the arguments and stage the tensor. `in_place`: the tensor, which must be writable, gets the result."""
        op = call.op
        if call.residual is not None:
            raise ValueError(f"residual with op={op!r}, which loses nothing: pass a residual only with sum and average")
        if spec.dtype.startswith(_NO_ORDER):
            raise UnsupportedDtype(f"op={op!r} of {spec.dtype}, which has no order: use op='sum'")
        if spec.is_torch and not _compares(tensor.dtype):
            raise UnsupportedDtype(f"op={op!r} of {spec.dtype}, which torch cannot compare: pass another dtype")
        if call.factor != 1:
            raise ValueError(f"factor={call.factor!r} with op={op!r}: accepted with sum and average")
        spec.check_movable(tensor)
        if in_place:
            spec.check_writable(tensor)
        self._collective = f"{collective} {op}"
        self._targets = [target(tensor)] if in_place else []
        self._fold = FOLDS[op]
        every = host_empty(tensor, (group.size, *spec.shape))
        self._staging = gathered(every, describe(every), (group.rank, ...), tensor)

    def plan(self, result: T, finish: Callable[[], None], *targets: Target) -> Plan[T]:
        return move(self._collective, self._staging, result, finish, [*self._targets, *targets])

    def write_back(self) -> None:
        for own in self._targets:
            own.write(self._fold(self._staging.host))

    def write_part(self, index: int, out: Target) -> None:
        out.write(self._fold(self._staging.host[:, index, ...]))


def _fold(every: Any, of_array: str, of_tensor: str) -> Any:
    """Reduce the first dimension with the method of this name, of an array or a tensor."""
    if isinstance(every, np.ndarray):
        return _with_one_zero(getattr(every, of_array)(0))
    return _comparable(every, lambda it: _with_one_zero(getattr(it, of_tensor)(0)))


def _with_one_zero(folded: Any) -> Any:
    """Return `folded` with +0 for both zeros and one NaN for all, among which libraries choose differently."""
    if not isinstance(folded, np.ndarray | np.generic):
        return (folded + 0).masked_fill(folded.isnan(), math.nan) if folded.is_floating_point() else folded
    if not np.issubdtype(folded.dtype, np.floating):
        return folded
    return np.where(np.isnan(folded), folded.dtype.type(math.nan), folded + folded.dtype.type(0))


def _comparable(every: torch.Tensor, fold: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """Return `fold` of a tensor of any dtype that has an order."""
    import torch

    if every.dtype == torch.uint64:
        # Flipping the highest bit subtracts 2^63: the values are then int64 in the same order.
        first = torch.iinfo(torch.int64).min
        return (fold(every.view(torch.int64) ^ first) ^ first).view(torch.uint64)
    name, _, _ = str(every.dtype).removeprefix("torch.").partition("_")  # float8_e5m2
    wider = _WIDER.get(name)
    return fold(every) if wider is None else fold(every.to(getattr(torch, wider))).to(every.dtype)


@cache
def _compares(dtype: torch.dtype) -> bool:
    """Return whether torch can compare this dtype, found out before the collective with one element.

    After the collective, a rank could not tell the others of an error.
    """
    import torch

    try:
        FOLDS["max"](torch.zeros(4, dtype=torch.int64, device="cpu").view(dtype))
    except (RuntimeError, TypeError):  # which NotImplementedError is one of
        return False
    return True
