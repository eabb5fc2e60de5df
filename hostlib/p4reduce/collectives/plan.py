# SPDX-License-Identifier: Apache-2.0
"""What a collective comes down to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from p4reduce import settings
from p4reduce.protocol import Operation

if TYPE_CHECKING:
    from p4reduce.tensors.cuda import Crossing, Wait

T = TypeVar("T")


@dataclass(frozen=True)
class Group:
    """The ranks of a job, as one of them sees them."""

    rank: int
    size: int

    def member(self, name: str, rank: int) -> int:
        """The argument `rank`, checked."""
        return settings.integer(name, rank, 0, self.size - 1)


def nothing(_: object = None) -> None:
    """What there is left to do where all is there already."""


@dataclass(slots=True)
class Plan(Generic[T]):
    """A collective that is staged: making a plan checks the arguments, and leaves the input as it is.

    name: for error messages. operation: the sum over all ranks; None where nothing is left to add.
    result: what the caller is given in the end.
    finish: called when the sums are there, from the carrier's thread or one that waits for the collective; what it
        raises is the collective's error. Where a wait is interrupted it may be called again.
    fetch: called before the operation is begun, to fill its memory; with what waits for devices.
    crossings: of all CUDA tensors that it reads or writes.
    finished_once: `finish` is the carrier's thread's alone, which nothing interrupts.
    """

    name: str
    operation: Operation | None
    result: T
    finish: Callable[[], None] = nothing
    fetch: Callable[[Wait], None] = nothing
    crossings: Sequence[Crossing] = ()
    finished_once: bool = False
