# SPDX-License-Identifier: Apache-2.0
"""Nothing of a call is left to the garbage collector, which large trainings switch off; errors keep no frames alive."""

from __future__ import annotations

import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from p4reduce import CollectiveTimeout, Communicator, JobAborted, MismatchError
from p4reduce.collectives.choice import LEAST
from p4reduce.errors import without_frames
from tests.support.hostlib import calls
from tests.support.hostlib.in_process import error_of, together
from tests.support.waiting import wait_until

Call = Callable[[Communicator, Any], Any]
CALLS: dict[str, Call] = {
    **calls.CALLS,
    "async": lambda each, tensor: each.allreduce_async(tensor).result(),
    "callback": lambda each, tensor: _with_callback(each.allreduce_async(tensor)),
    "barrier": lambda each, _: each.barrier(),
}


def _with_callback(handle: Any) -> None:
    handle.add_done_callback(lambda done: done.result())
    handle.wait()


@contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def is_left(pair: list[Communicator], make: Callable[[int], Any], call: Call) -> bool:
    """Return whether a rank's tensor stays in memory after its call has returned and threads have dropped it."""
    known: list[weakref.ref[Any]] = []

    def run(each: Communicator) -> BaseException | None:
        tensor = make(each.rank)
        known.append(weakref.ref(tensor))
        return without_traceback(error_of(lambda: call(each, tensor)))

    together(pair, run)
    with contextlib.suppress(AssertionError):
        wait_until(lambda: all(reference() is None for reference in known), "threads to let go", 10)
    return any(reference() is not None for reference in known)


def without_traceback(error: BaseException | None) -> None:
    """Drop the error, like a program that has handled it."""
    del error


@pytest.mark.parametrize("size", [64, LEAST])
def test_calls(each_pair: list[Communicator], size: int) -> None:
    with without_collector():
        for name, call in CALLS.items():
            for _ in range(2):
                assert not is_left(each_pair, lambda _: np.ones((2, size // 2), np.float32), call), name


def test_sparse_tensors(each_pair: list[Communicator]) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    with without_collector():
        for rows in (4, 4000):
            assert not is_left(
                each_pair,
                lambda rank: torch.eye(rows).to_sparse() * (rank + 1),  # noqa: B023
                lambda each, tensor: each.allreduce(tensor),
            )


@pytest.mark.parametrize("call", ["sum", "async", "elements"])
def test_a_call_that_fails(each_pair: list[Communicator], call: str) -> None:
    with without_collector():
        errors: list[str] = []

        def failing(each: Communicator, tensor: Any) -> None:
            for _ in range(2):  # the second raises the error that the communicator has stored
                error = error_of(lambda: CALLS[call](each, tensor))
                errors.append(type(error).__name__)
                del error

        assert not is_left(each_pair, lambda rank: np.ones(64 * (rank + 1), np.float32), failing)
        assert set(errors) == {MismatchError.__name__}


class Odd(Exception):
    """An exception whose constructor takes other arguments than its instances have."""

    def __new__(cls, code: int) -> Odd:
        return super().__new__(cls, code + 1)

    def __init__(self, code: int) -> None:
        super().__init__(f"bad {code}")
        self.code = code


@pytest.mark.parametrize(
    "error",
    [
        JobAborted("rank 1 went", rank=1, reason="LEFT"),
        CollectiveTimeout("late", awaited=(2, 3)),
        OSError(111, "refused", "socket"),
        UnicodeDecodeError("ascii", b"\xff", 0, 1, "no"),
        KeyError("key"),
        SystemExit(3),
        Odd(5),
    ],
)
def test_a_copy_has_all_but_the_frames(error: BaseException) -> None:
    try:
        raise error from ValueError("cause")
    except BaseException as caught:
        copied = without_frames(caught)
    assert type(copied) is type(error)
    assert (copied.args, str(copied), vars(copied)) == (error.args, str(error), vars(error))
    assert getattr(copied, "errno", None) == getattr(error, "errno", None)
    assert getattr(copied, "code", None) == getattr(error, "code", None)
    assert copied is not error
    assert repr(copied.__cause__) == "ValueError('cause')"
    assert copied.__traceback__ is None
    assert error.__traceback__ is not None


def test_what_led_to_it_has_no_frames_either() -> None:
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second") from None
    except ValueError as caught:
        caught.__context__.__context__ = caught  # type: ignore[union-attr] # errors may refer to each other
        copied = without_frames(caught)
    context = copied.__context__
    assert isinstance(context, KeyError)
    assert context.__traceback__ is None
    assert context.__context__ is copied
    assert copied.__suppress_context__
