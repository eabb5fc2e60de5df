# SPDX-License-Identifier: Apache-2.0
"""Collectives that reduce dense tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from p4reduce import settings
from p4reduce.collectives.extremes import FOLDS, Extreme
from p4reduce.collectives.plan import REDUCE_OPS, Collective, Group, Plan, nothing
from p4reduce.errors import UnsupportedDtype
from p4reduce.protocol import Operation
from p4reduce.protocol.numbers import check_ranks
from p4reduce.tensors.dense import flat_float32, output_for, shares_memory
from p4reduce.tensors.spec import HALVES, TensorSpec, describe
from p4reduce.tensors.staging import Number, Target, numbers, target, transfers

if TYPE_CHECKING:
    from p4reduce.tensors.cuda import Wait

T = TypeVar("T")


class Sum:
    """A rank's tensor while switches add it up to a sum or an average."""

    def __init__(
        self, group: Group, collective: str, tensor: Any, spec: TensorSpec, call: Collective, *, in_place: bool
    ) -> None:
        """Check the arguments and stage the tensor. `in_place`: the tensor, which must be writable, gets the result."""
        op, factor, residual = call.op, call.factor, call.residual
        carried: Number = spec.work_dtype
        if carried is np.int32:
            _check_integers(call)
        form = spec.wire(call.wire)
        check_ranks(form, group.size)
        if in_place:
            spec.check_writable(tensor)
        self._factor = np.float32(settings.number("factor", factor)) if factor != 1 else factor
        if factor == 1 and residual is None and not spec.is_cuda:
            carried = HALVES.get(spec.dtype, carried)
        # The product is never made in the tensor's own memory: if the plan cannot be submitted, the tensor must be as
        # it was.
        self._staging = numbers(tensor, spec, carried, copy=not in_place or factor != 1)
        work = self._staging.work
        self._name = f"{collective} ({op}) of {work.size} {spec.dtype}"
        what = op if collective == "allreduce" else f"{collective} {op}"
        lost = None if residual is None else flat_float32("residual", residual, work.size)
        if lost is not None and shares_memory(tensor, lost):
            raise ValueError("residual shares memory with tensor: accepted is memory of its own")
        divisor = group.size if op == "average" else 1
        self._operation = Operation(work, dtype=spec.dtype, reduce_op=what, divisor=divisor, wire=form, residual=lost)

    def plan(self, result: T, finish: Callable[[], None], *targets: Target) -> Plan[T]:
        """Return the plan of the reduction. `targets`: tensors that `finish` writes, besides this one."""
        return Plan(self._name, self._operation, result, finish, self._fetch, transfers(self._staging, *targets))

    def write_back(self) -> None:
        """Write the reduction into the tensor."""
        self._staging.write_back()

    def write_part(self, index: int, out: Target) -> None:
        """Write the part of the reduction at `index` of the first dimension into `out`."""
        out.write(self._staging.host[index, ...])

    def _fetch(self, wait: Wait) -> None:
        self._staging.fetch(wait)
        if self._factor != 1:
            np.multiply(self._staging.work, self._factor, out=self._staging.work)


def _check_integers(call: Collective) -> None:
    """Raise UnsupportedDtype or ValueError for arguments that have no meaning for int32."""
    if call.op == "average":
        raise UnsupportedDtype("op='average' of int32, whose average may not be an integer: use op='sum' and divide")
    if call.factor != 1:
        raise UnsupportedDtype(
            f"factor={call.factor!r} of int32, whose product may not be an integer: multiply before the call"
        )
    if call.residual is not None:
        raise ValueError("residual with int32, which loses nothing: pass a residual only with floats")


def allreduce(group: Group, tensor: T, spec: TensorSpec, call: Collective) -> Plan[T]:
    """Stage a reduction into the tensor of every rank."""
    reduction = _begin(group, "allreduce", tensor, spec, call, in_place=True)
    return reduction.plan(tensor, reduction.write_back)


def reduce(group: Group, tensor: T, dst: int, call: Collective) -> Plan[T]:
    """Stage a reduction into the tensor of rank `dst`."""
    here = group.member("dst", dst) == group.rank
    reduction = _begin(group, f"reduce to {dst}", tensor, describe(tensor), call, in_place=here)
    return reduction.plan(tensor, reduction.write_back if here else nothing)


def reduce_scatter(group: Group, tensor: T, out: T | None, call: Collective) -> Plan[T]:
    """Stage a reduction of which each rank gets its part."""
    spec = describe(tensor)
    if not spec.shape or spec.shape[0] != group.size:
        raise ValueError(
            f"tensor has shape {spec.shape}: its first dimension must be the number of ranks, {group.size}"
        )
    result: T = output_for(out, tensor, spec, spec.shape[1:])
    reduction = _begin(group, "reduce_scatter", tensor, spec, call, in_place=False)
    out_target = target(result)
    return reduction.plan(result, lambda: reduction.write_part(group.rank, out_target), out_target)


def _begin(
    group: Group, collective: str, tensor: Any, spec: TensorSpec, call: Collective, *, in_place: bool
) -> Sum | Extreme:
    if call.op not in REDUCE_OPS:
        raise ValueError(f"op={call.op!r}: accepted are {', '.join(REDUCE_OPS)}")
    return (Extreme if call.op in FOLDS else Sum)(group, collective, tensor, spec, call, in_place=in_place)
