# SPDX-License-Identifier: Apache-2.0
"""Nothing of a call is left to the garbage collector, which large trainings switch off."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from in_process import error_of, together

from p4reduce import Communicator, MismatchError

Call = Callable[[Communicator, Any], Any]
CALLS: dict[str, Call] = {
    "allreduce": lambda each, tensor: each.allreduce(tensor),
    "average": lambda each, tensor: each.allreduce(tensor, "average", factor=0.5),
    "maximum": lambda each, tensor: each.allreduce(tensor, "max"),
    "by elements": lambda each, tensor: each.allreduce(tensor, layout="elements"),
    "async": lambda each, tensor: each.allreduce_async(tensor).result(),
    "callback": lambda each, tensor: _with_callback(each.allreduce_async(tensor)),
    "reduce": lambda each, tensor: each.reduce(tensor, 0),
    "reduce_scatter": lambda each, tensor: each.reduce_scatter(tensor.reshape(2, -1)),
    "broadcast": lambda each, tensor: each.broadcast(tensor, 1),
    "all_gather": lambda each, tensor: each.all_gather(tensor),
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
    """Whether a tensor that a rank gives to a call stays when it has returned and threads have let go of it."""
    known: list[weakref.ref[Any]] = []

    def run(each: Communicator) -> BaseException | None:
        tensor = make(each.rank)
        known.append(weakref.ref(tensor))
        return without_traceback(error_of(lambda: call(each, tensor)))

    together(pair, run)
    deadline = time.monotonic() + 10
    while any(reference() is not None for reference in known) and time.monotonic() < deadline:
        time.sleep(0.001)
    return any(reference() is not None for reference in known)


def without_traceback(error: BaseException | None) -> None:
    """As when a program has handled it."""
    del error


@pytest.mark.parametrize("size", [64, 1 << 15])
def test_calls(each_pair: list[Communicator], size: int) -> None:
    with without_collector():
        for name, call in CALLS.items():
            for _ in range(2):
                assert not is_left(each_pair, lambda _: np.ones(size, np.float32), call), name


def test_sparse_tensors(each_pair: list[Communicator]) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    with without_collector():
        for rows in (4, 4000):
            assert not is_left(
                each_pair,
                lambda rank: torch.eye(rows).to_sparse() * (rank + 1),  # noqa: B023
                lambda each, tensor: each.allreduce(tensor),
            )


@pytest.mark.parametrize("call", ["allreduce", "async", "by elements"])
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
