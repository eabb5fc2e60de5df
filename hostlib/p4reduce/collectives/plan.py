# SPDX-License-Identifier: Apache-2.0
"""The arguments of a collective, and the plan that they lead to."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeAlias, TypeVar, get_args

from p4reduce import settings
from p4reduce.protocol import Operation
from p4reduce.tensors.spec import WireChoice

if TYPE_CHECKING:
    from p4reduce.engine.engine import Prepared
    from p4reduce.tensors.cuda import DeviceTransfer, Wait

T = TypeVar("T")

ReduceOp: TypeAlias = Literal["sum", "average", "max", "min"]
REDUCE_OPS: tuple[str, ...] = get_args(ReduceOp)
SUMS = ("sum", "average")
"""Reduce operations that switches carry out by adding values."""
Taken: TypeAlias = Literal["blocks", "elements"]
Layout: TypeAlias = Literal["auto", Taken]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)


class Collective(NamedTuple):
    """The arguments of a reduction, made once a call; see `Communicator.allreduce` for the values."""

    op: str = "sum"
    factor: float = 1.0
    wire: WireChoice = "auto"
    layout: Layout = "auto"
    residual: Any = None
    limit: float = math.inf
    """Seconds."""


@dataclass(frozen=True)
class Group:
    """A rank's index and the number of ranks of its job."""

    rank: int
    size: int

    def member(self, name: str, rank: int) -> int:
        """Return `rank` if the group has it, else raise ValueError for the argument `name`."""
        return settings.integer(name, rank, 0, self.size - 1)


def nothing(_: object = None) -> None:
    """Do nothing: the `finish` or `fetch` of a plan that needs none."""


@dataclass(slots=True)
class Plan(Generic[T]):
    """A collective that is staged: its arguments are checked, and its input is as it was.

    name: for error messages. operation: the sum over all ranks; None where nothing is left to add.
    result: the value that the caller gets in the end.
    finish: called when the sums are there, from the engine's thread or one that waits for the collective. An exception
        of it is the collective's error. It may be called again after an interrupt.
    fetch: called before the operation begins, to fill its memory; its argument waits for devices.
    transfers: those of all CUDA tensors that it reads or writes.
    prepared: the operation as the engine has prepared it, if a thread that waits for the plan has executed it before.
    """

    name: str
    operation: Operation | None
    result: T
    finish: Callable[[], None] = nothing
    fetch: Callable[[Wait], None] = nothing
    transfers: Sequence[DeviceTransfer] = ()
    prepared: Prepared | None = None
