# SPDX-License-Identifier: Apache-2.0
"""Collectives that reduce dense tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, get_args

from p4reduce.collectives.extremes import FOLDS, Extreme
from p4reduce.collectives.plan import Group, Plan, nothing
from p4reduce.collectives.sums import Sum
from p4reduce.tensors.dense import WireChoice, output_for, shape_of
from p4reduce.tensors.staging import Target, target

ReduceOp: TypeAlias = Literal["sum", "average", "max", "min"]
REDUCE_OPS: tuple[str, ...] = get_args(ReduceOp)

T = TypeVar("T")


class Reduction(Protocol):
    """A rank's tensor while it is reduced."""

    def plan(self, result: T, finish: Callable[[], None], *targets: Target) -> Plan[T]:
        """The plan that reduces it. `targets`: into which `finish` writes, besides the tensor."""

    def write_back(self) -> None:
        """Makes the tensor its reduction."""

    def write_part(self, index: int, out: Target) -> None:
        """Makes `out` the part of the reduction at `index` of the first dimension."""


def allreduce(group: Group, tensor: T, op: str, factor: float, wire: WireChoice, residual: Any = None) -> Plan[T]:
    """Into the tensor of every rank."""
    reduction = _begin(group, "allreduce", tensor, op, factor, wire, residual, in_place=True)
    return reduction.plan(tensor, reduction.write_back)


def reduce(group: Group, tensor: T, dst: int, op: str, factor: float, wire: WireChoice) -> Plan[T]:
    """Into the tensor of rank `dst`."""
    here = group.member("dst", dst) == group.rank
    reduction = _begin(group, f"reduce to {dst}", tensor, op, factor, wire, in_place=here)
    return reduction.plan(tensor, reduction.write_back if here else nothing)


def reduce_scatter(group: Group, tensor: T, out: T | None, op: str, factor: float, wire: WireChoice) -> Plan[T]:
    """To each rank its part."""
    shape = shape_of(tensor)
    if not shape or shape[0] != group.size:
        raise ValueError(f"tensor has shape {shape}: its first dimension must be the number of ranks, {group.size}")
    result: T = output_for(out, tensor, shape[1:])
    reduction = _begin(group, "reduce_scatter", tensor, op, factor, wire, in_place=False)
    out_target = target(result)
    return reduction.plan(result, lambda: reduction.write_part(group.rank, out_target), out_target)


def _begin(
    group: Group,
    collective: str,
    tensor: Any,
    op: str,
    factor: float,
    wire: WireChoice,
    residual: Any = None,
    *,
    in_place: bool,
) -> Reduction:
    if op not in REDUCE_OPS:
        raise ValueError(f"op={op!r}: accepted are {', '.join(REDUCE_OPS)}")
    if op in FOLDS:
        if residual is not None:
            raise ValueError(f"residual with op={op!r}, which loses nothing: pass a residual only with sum and average")
        return Extreme(group, collective, tensor, op, factor, in_place=in_place)
    return Sum(group, collective, tensor, op, factor, wire, residual, in_place=in_place)
