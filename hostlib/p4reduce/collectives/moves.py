# SPDX-License-Identifier: Apache-2.0
"""Collectives that bring bits from rank to rank as they are, of any dtype: sums of words with the zeros of others."""

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
    """What `src` has is only read. What others have stays as it is until all of the result is there."""
    name = f"broadcast from {group.member('src', src)}"
    spec = describe(tensor)
    spec.check_movable(tensor)
    if group.rank == src:
        return move(name, words(tensor, spec), tensor)
    spec.check_writable(tensor)
    staging = zeros(tensor)
    return move(name, staging, tensor, staging.write_back)


def all_gather(group: Group, tensor: T, out: T | None) -> Plan[T]:
    """`out` is where the sum is made, if its memory allows."""
    spec = describe(tensor)
    spec.check_movable(tensor)
    result: T = output_for(out, tensor, spec, (group.size, *spec.shape))
    staging = gathered(result, describe(result), (group.rank, ...), tensor)
    return move("all_gather", staging, result, staging.write_back)


def all_gather_apart(group: Group, tensor: Any, outs: Sequence[Any]) -> Plan[Sequence[Any]]:
    """Return the tensor of rank i into `outs[i]`, of its shape: all of the same dtype, wherever their memory is."""
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
    """Return a sum of nothing."""
    return Plan("barrier", Operation(np.zeros(0, np.int32), reduce_op="barrier"), None)


def move(
    collective: str,
    staging: Staging,
    result: T,
    finish: Callable[[], None] = nothing,
    targets: Iterable[Target] = (),
) -> Plan[T]:
    """Add the words of all ranks, of which no two have the same bit set: so there are no carries.

    targets: into which `finish` writes, besides the staging's own.
    """
    size, dtype = staging.host.nbytes, describe(staging.host).dtype
    # How many bytes the last word holds is not to be seen in the number of words.
    what = f"{collective} +{size % 4}"
    operation = Operation(staging.work, dtype=dtype, reduce_op=what, read_only=staging.read_only)
    name = f"{collective} of {size} bytes of {dtype}"
    return Plan(name, operation, result, finish, staging.fetch, transfers(staging, *targets))
