# SPDX-License-Identifier: Apache-2.0
"""The errors that p4reduce raises on purpose."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

MOST_RANKS_NAMED = 32
"""Most ranks that a text names; it counts the others."""

Error = TypeVar("Error", bound=BaseException)


class P4ReduceError(RuntimeError):
    """Base of all errors below."""


class JoinError(P4ReduceError):
    """The job could not be joined; the message says what to do. `timed_out`: because other ranks did not come."""

    timed_out = False


class SlotsExhausted(JoinError):
    """No switch has as many free slots as the job wants, or the controller has no number left for it."""


class JobAborted(P4ReduceError):
    """The job has ended for all its ranks. `rank` is the one that left or failed, or None if no rank did."""

    def __init__(self, message: str, *, rank: int | None = None, reason: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.reason = reason


class MismatchError(P4ReduceError):
    """Ranks disagree on the operation: its order, shape, dtype or reduction."""


class CollectiveTimeout(P4ReduceError, TimeoutError):
    """A collective did not end in time. `awaited`: the ranks whose packets are missing, as far as known."""

    def __init__(self, message: str, *, awaited: Iterable[int] = ()) -> None:
        super().__init__(message)
        self.awaited: tuple[int, ...] = tuple(awaited)


class UnsupportedDtype(P4ReduceError, TypeError):
    """A tensor's dtype cannot be aggregated; the message names those that can."""


class OperationRefused(P4ReduceError, ValueError):
    """The job cannot execute the operation, on any rank. The job goes on.

    The tensor has too many blocks for the job's slots, or the wire has too few bits for its ranks.
    """


def list_ranks(ranks: Iterable[int], most: int = MOST_RANKS_NAMED) -> str:
    """Return a text such as "rank 3", "ranks 0, 1, 5" or, with more ranks than `most`, "ranks 0, 1 and 9 more"."""
    numbers = sorted(ranks)
    return f"rank{'s' if len(numbers) != 1 else ''} {list_numbers(numbers, most)}"


def list_numbers(numbers: Sequence[int], most: int = MOST_RANKS_NAMED) -> str:
    """Return the same without "rank" or "ranks"."""
    more = f" and {len(numbers) - most} more" if len(numbers) > most else ""
    return ", ".join(map(str, numbers[:most])) + more


def without_frames(error: Error) -> Error:
    """Return a copy of an error, and of its causes, without the stack frames in which they were raised.

    An error must be copied so before it is stored, and again before a stored error is raised. Otherwise the stored
    error's traceback keeps every frame that it has passed, and with them tensors, process groups and their stores.
    """
    return _without_frames(error, {})


def _without_frames(error: Error, known: dict[int, BaseException]) -> Error:
    """Copy an error and its causes. known: copies by the `id` of the originals, as errors may refer to each other."""
    copied = _copied(error)
    known[id(error)] = copied
    for name in ("__cause__", "__context__"):
        origin = getattr(error, name)
        if origin is not None:
            setattr(copied, name, known.get(id(origin)) or _without_frames(origin, known))
    copied.__suppress_context__ = error.__suppress_context__
    return copied


def _copied(error: Error) -> Error:
    """Return a copy of an error, made by its built-in base: its class may take other arguments than `args`."""
    builtin: Any = type(error)
    while builtin.__module__ != "builtins":
        builtin = builtin.__base__
    try:
        _, args, *_ = builtin.__reduce__(error)
        copied: Error = builtin.__new__(type(error), *args)
        builtin.__init__(copied, *args)
        copied.args = error.args
        vars(copied).update(vars(error))
    except Exception:  # a class of an extension module may refuse
        return error.with_traceback(None)
    return copied
