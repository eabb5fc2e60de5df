# SPDX-License-Identifier: Apache-2.0
"""The allreduce of a sparse tensor, in three operations: of the number of rows of each rank, of these rows' numbers,
and of the values of all rows that anybody has."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np

from p4reduce.collectives.moves import all_gather, move
from p4reduce.collectives.plan import Group, Plan
from p4reduce.collectives.sums import Sum
from p4reduce.tensors.dense import WireChoice
from p4reduce.tensors.staging import gathered

T = TypeVar("T")


class Run(Protocol):
    """Carries out a plan and gives its result, when it has ended."""

    def __call__(self, plan: Plan[T], /) -> T: ...


def allreduce_rows(group: Group, tensor: Any, op: str, factor: float, wire: WireChoice, run: Run) -> Plan[Any]:
    """The plan of the last operation; `run` carries out those before."""
    from p4reduce.tensors.sparse import SparseRows

    if op not in ("sum", "average"):
        raise ValueError(f"op={op!r} of a sparse tensor: accepted are sum, average")
    rows = SparseRows(tensor)
    counts = rows.counts(run(all_gather(group, rows.description(), None)))
    start = sum(counts[: group.rank])
    numbers = np.empty(sum(counts), rows.numbers.dtype)
    staging = gathered(numbers, slice(start, start + rows.numbers.size), rows.numbers)
    union = np.unique(run(move("rows", staging, numbers, staging.write_back)))
    packed = rows.pack(union)
    reduction = Sum(group, "allreduce", packed, op, factor, wire, in_place=True)

    def finish() -> None:
        reduction.write_back()
        rows.write_back(union, packed)

    return reduction.plan(tensor, finish, *rows.crossings)
