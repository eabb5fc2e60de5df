# SPDX-License-Identifier: Apache-2.0
"""What a collective comes down to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from p4reduce import settings
from p4reduce.protocol import Operation

T = TypeVar("T")


@dataclass(frozen=True)
class Group:
    """The ranks of a job, as one of them sees them."""

    rank: int
    size: int

    def member(self, name: str, rank: int) -> int:
        """The argument `rank`, checked."""
        return settings.integer(name, rank, 0, self.size - 1)


def nothing() -> None:
    """What there is left to do where the result is there already."""


@dataclass(slots=True)
class Plan(Generic[T]):
    """A collective that is staged: making a plan checks the arguments, and leaves the input as it is.

    name: for error messages. operation: the sum over all ranks. result: what the caller is given in the end.
    finish: called when the sums are there, from the carrier's thread; what it raises is the collective's error.
    """

    name: str
    operation: Operation
    result: T
    finish: Callable[[], None] = nothing
