# SPDX-License-Identifier: Apache-2.0
"""Collectives that copy bits of any dtype from rank to rank: sums of one rank's words and the other ranks' zeros."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from p4reduce.collectives.plan import Group, Plan, nothing
from p4reduce.protocol import Operation
from p4reduce.tensors.dense import host_empty, output_for
from p4reduce.tensors.spec import describe
from p4reduce.tensors.staging import Staging, Target, gathered, target, transfers, words, zeros

T = TypeVar("T")


def broadcast(group: Group, tensor: T, src: int) -> Plan[T]:
    """Stage a broadcast: rank `src` only reads its tensor; the others write theirs when the whole result is there."""
    name = f"broadcast from {group.member('src', src)}"
    spec = describe(tensor)
    spec.check_movable(tensor)
    if group.rank == src:
        return move(name, words(tensor, spec), tensor)
    spec.check_writable(tensor)
    staging = zeros(tensor)
    return move(name, staging, tensor, staging.write_back)


def all_gather(group: Group, tensor: T, out: T | None) -> Plan[T]:
    """Stage an all_gather. The sum is made in `out`, if its memory layout allows."""
    spec = describe(tensor)
    spec.check_movable(tensor)
    result: T = output_for(out, tensor, spec, (group.size, *spec.shape))
    staging = gathered(result, describe(result), (group.rank, ...), tensor)
    return move("all_gather", staging, result, staging.write_back)


def all_gather_apart(group: Group, tensor: Any, outs: Sequence[Any]) -> Plan[Sequence[Any]]:
    """Stage an all_gather of rank i's tensor into `outs[i]`, of its shape: all of one dtype, on any devices."""
    spec = describe(tensor)
    spec.check_movable(tensor)
    ends = list(itertools.accumulate(describe(out).size for out in outs))
    own = slice(ends[group.rank] - spec.size, ends[group.rank])
    every = host_empty(tensor, (ends[-1],))
    staging = gathered(every, describe(every), own, tensor.reshape(-1))
    targets = [target(out) for out in outs]

    def finish() -> None:
        for out, to, end in zip(outs, targets, ends, strict=True):
            to.write(staging.host[end - math.prod(out.shape) : end].reshape(out.shape))

    return move("all_gather", staging, outs, finish, targets)


def barrier(_: Group) -> Plan[None]:
    """Stage a barrier, which is the sum of empty tensors."""
    return Plan("barrier", Operation(np.zeros(0, np.int32), reduce_op="barrier"), None)


def move(
    collective: str,
    staging: Staging,
    result: T,
    finish: Callable[[], None] = nothing,
    targets: Iterable[Target] = (),
) -> Plan[T]:
    """Return the plan of a sum of all ranks' words, of which no two have the same bit set: so there are no carries.

    targets: tensors that `finish` writes, besides the staging's own.
    """
    size, dtype = staging.host.nbytes, describe(staging.host).dtype
    # The fingerprint has the number of words, and so not the number of bytes in the last one.
    what = f"{collective} +{size % 4}"
    operation = Operation(staging.work, dtype=dtype, reduce_op=what, read_only=staging.read_only)
    name = f"{collective} of {size} bytes of {dtype}"
    return Plan(name, operation, result, finish, staging.fetch, transfers(staging, *targets))
