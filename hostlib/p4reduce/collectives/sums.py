# SPDX-License-Identifier: Apache-2.0
"""Sums and averages over the ranks, which switches make."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from p4reduce import settings
from p4reduce.collectives.plan import Group, Plan
from p4reduce.errors import UnsupportedDtype
from p4reduce.protocol import Operation
from p4reduce.protocol.numbers import check_ranks
from p4reduce.tensors.dense import (
    HALVES,
    WireChoice,
    check_writable,
    dtype_name,
    flat_float32,
    shares_memory,
    wire_for,
    work_dtype,
)
from p4reduce.tensors.staging import Number, Target, crossings, numbers, on_device

if TYPE_CHECKING:
    from p4reduce.tensors.cuda import Wait

T = TypeVar("T")


class Sum:
    """A rank's tensor while it is added up."""

    def __init__(
        self,
        group: Group,
        collective: str,
        tensor: Any,
        op: str,
        factor: float,
        wire: WireChoice,
        residual: Any = None,
        *,
        in_place: bool,
    ) -> None:
        """in_place: the result goes into the tensor, which must be writable. residual: for what the wire loses."""
        dtype = dtype_name(tensor)
        carried: Number = work_dtype(dtype)
        if carried is np.int32 and op == "average":
            raise UnsupportedDtype(
                "op='average' of int32, whose average may not be an integer: use op='sum' and divide"
            )
        if carried is np.int32 and factor != 1:
            raise UnsupportedDtype(
                f"factor={factor!r} of int32, whose product may not be an integer: multiply before the call"
            )
        if carried is np.int32 and residual is not None:
            raise ValueError("residual with int32, which loses nothing: pass a residual only with floats")
        form = wire_for(dtype, wire)
        check_ranks(form, group.size)
        if in_place:
            check_writable(tensor)
        self._factor = np.float32(settings.number("factor", factor))
        if factor == 1 and residual is None and not on_device(tensor):
            carried = HALVES.get(dtype, carried)
        # A product never in the tensor's own memory, which would keep it where the plan cannot be submitted.
        self._staging = numbers(tensor, carried, copy=not in_place or factor != 1)
        work = self._staging.work
        self._name = f"{collective} ({op}) of {work.size} {dtype}"
        what = op if collective == "allreduce" else f"{collective} {op}"
        lost = None if residual is None else flat_float32("residual", residual, work.size)
        if lost is not None and shares_memory(tensor, lost):
            raise ValueError("residual shares memory with tensor: accepted is memory of its own")
        divisor = group.size if op == "average" else 1
        self._operation = Operation(work, dtype=dtype, reduce_op=what, divisor=divisor, wire=form, residual=lost)

    def plan(self, result: T, finish: Callable[[], None], *targets: Target) -> Plan[T]:
        return Plan(self._name, self._operation, result, finish, self._fetch, crossings(self._staging, *targets))

    def write_back(self) -> None:
        self._staging.write_back()

    def write_part(self, index: int, out: Target) -> None:
        out.write(self._staging.host[index, ...])

    def _fetch(self, wait: Wait) -> None:
        self._staging.fetch(wait)
        if self._factor != 1:
            np.multiply(self._staging.work, self._factor, out=self._staging.work)
