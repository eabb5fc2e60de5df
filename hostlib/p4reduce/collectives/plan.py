# SPDX-License-Identifier: Apache-2.0
"""What a collective is called with, and what it comes down to."""

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
"""Operations of which switches add the values."""
Taken: TypeAlias = Literal["blocks", "elements"]
Layout: TypeAlias = Literal["auto", Taken]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)


class Collective(NamedTuple):
    """How a tensor is reduced; see `Communicator.allreduce` for the values. It is made and handed on once a call."""

    op: str = "sum"
    factor: float = 1.0
    wire: WireChoice = "auto"
    layout: Layout = "auto"
    residual: Any = None
    limit: float = math.inf
    """Seconds."""


@dataclass(frozen=True)
class Group:
    """The ranks of a job, as one of them sees them."""

    rank: int
    size: int

    def member(self, name: str, rank: int) -> int:
        """Return the argument `rank`, checked."""
        return settings.integer(name, rank, 0, self.size - 1)


def nothing(_: object = None) -> None:
    """What there is left to do where all is there already."""


@dataclass(slots=True)
class Plan(Generic[T]):
    """A collective that is staged: making a plan checks the arguments, and leaves the input as it is.

    name: for error messages. operation: the sum over all ranks; None where nothing is left to add.
    result: what the caller is given in the end.
    finish: called when the sums are there, from the engine's thread or one that waits for the collective; what it
        raises is the collective's error. It may be called again, where an interrupt ended a call.
    fetch: called before the operation is begun, to fill its memory; with what waits for devices.
    transfers: of all CUDA tensors that it reads or writes.
    prepared: what the engine has made of the operation, once the plan was executed by a thread that waits for it.
    """

    name: str
    operation: Operation | None
    result: T
    finish: Callable[[], None] = nothing
    fetch: Callable[[Wait], None] = nothing
    transfers: Sequence[DeviceTransfer] = ()
    prepared: Prepared | None = None
