# SPDX-License-Identifier: Apache-2.0
"""Every error that p4reduce raises on purpose."""

from __future__ import annotations

from collections.abc import Iterable


class P4ReduceError(RuntimeError):
    """Base of all errors below."""


class JoinError(P4ReduceError):
    """The job could not be joined; the message says what to do about it. `timed_out`: for other ranks did not come."""

    timed_out = False


class SlotsExhausted(JoinError):
    """No switch has as many free slots as the job wants, or the controller has no number left for it."""


class JobAborted(P4ReduceError):
    """The job is dead. `rank` is the one that went, or None when it was nobody in particular."""

    def __init__(self, message: str, *, rank: int | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.reason = reason


class MismatchError(P4ReduceError):
    """Ranks disagree on the operation: its order, shape, dtype or reduction."""


class CollectiveTimeout(P4ReduceError, TimeoutError):
    """A collective did not end in time. `awaited` are the ranks that were not heard of, as far as known."""

    def __init__(self, message: str, *, awaited: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.awaited: tuple[int, ...] = tuple(awaited)


class UnsupportedDtype(P4ReduceError, TypeError):
    """A tensor's dtype cannot be aggregated; the message names those that can."""
