# SPDX-License-Identifier: Apache-2.0
"""Calls that an exception leaves before their collective has ended, as a signal's handler raises one.

Their caller has the tensor back. So what it holds from then on is not added, and nothing is written to it.
"""

from __future__ import annotations

import contextlib
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from fake_session import FakeController
from in_process import error_of, join, together
from waiting import wait_until

from p4reduce import Communicator, JobAborted, P4ReduceError
from p4reduce.ddp import AllreduceState, allreduce_hook
from tests.ddp.buckets import Bucket

LARGE = 100_000
SOON = 10.0


class Left(ValueError):
    """Raised by the handler: a kind that collectives raise, too."""


def leave(*_: object) -> None:
    raise Left


def leave_the_library(_: int, frame: FrameType | None) -> None:
    """A handler that interrupts the library alone, not the code of the test around the call."""
    while frame is not None:
        if frame.f_globals["__name__"].startswith("p4reduce."):
            raise Left
        frame = frame.f_back


@contextlib.contextmanager
def left_when(ready: Callable[[], bool], every: float = 0.0) -> Iterator[None]:
    """The block is left by a signal's exception when it is so; every so many seconds another one comes."""

    def send() -> None:
        wait_until(ready, "the call waits")
        signal.setitimer(signal.ITIMER_REAL, 0.001, every)

    before = signal.signal(signal.SIGALRM, leave_the_library if every else leave)
    sender = threading.Thread(target=send)
    sender.start()
    begun = time.monotonic()
    try:
        yield
    except Left:
        pass
    else:
        pytest.fail("nothing was left")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sender.join()
    assert time.monotonic() - begun < SOON


def left(each: Communicator, every: float = 0.0) -> contextlib.AbstractContextManager[None]:
    """The block is left when the rank has a collective under way."""
    return left_when(lambda: each._engine.busy, every)


@pytest.fixture(params=["c", "python", "memory"])
def two(
    request: pytest.FixtureRequest, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Communicator]]:
    controller.in_memory = request.param == "memory"
    monkeypatch.setenv("P4REDUCE_BACKEND", "python" if request.param == "python" else "c")
    pair = join(2, local="auto")
    assert all(each.local == controller.in_memory for each in pair)
    yield pair
    for each in pair:
        each.close()


def sparse(tensor: Any) -> Any:
    return torch.as_tensor(tensor).to_sparse()


Call = Callable[[Communicator, Any], Any]
CALLS: dict[str, tuple[int, Call]] = {
    "allreduce": (16, lambda each, tensor: each.allreduce(tensor)),
    "blocks": (LARGE, lambda each, tensor: each.allreduce(tensor, layout="blocks")),
    "chosen": (LARGE, lambda each, tensor: each.allreduce(tensor)),
    "elements": (LARGE, lambda each, tensor: each.allreduce(tensor, layout="elements")),
    "sparse": (LARGE, lambda each, tensor: each.allreduce(sparse(tensor))),
    "max": (16, lambda each, tensor: each.allreduce(tensor, "max")),
    "reduce": (16, lambda each, tensor: each.reduce(tensor, 0)),
    "broadcast": (16, lambda each, tensor: each.broadcast(tensor, 1)),
    "reduce_scatter": (16, lambda each, tensor: each.reduce_scatter(tensor.reshape(2, 8))),
    "all_gather": (16, lambda each, tensor: each.all_gather(tensor)),
    "barrier": (1, lambda each, _: each.barrier()),
}


def is_over(pair: list[Communicator], call: Callable[[Communicator], Any], by: str = "Left") -> None:
    """The rank that was left cannot go on, and the other one hears of it as of an abort."""
    begun = time.monotonic()
    other = error_of(lambda: call(pair[1]))
    assert isinstance(other, JobAborted), other
    assert other.rank == 0
    assert re.search(f"was interrupted while it was under way, by {by}", str(other))
    with pytest.raises(P4ReduceError, match=f"was interrupted while it was under way, by {by}"):
        call(pair[0])
    assert time.monotonic() - begun < SOON


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, "numpy") for name in CALLS), *((name, "torch") for name in ("chosen", "all_gather"))]
)
def test_a_call_that_is_left_fails(two: list[Communicator], name: str, kind: str) -> None:
    size, call = CALLS[name]
    make = np.ones if kind == "numpy" else torch.ones
    tensor: Any = make(size, dtype=np.float32 if kind == "numpy" else torch.float32)  # type: ignore[operator]
    with left(two[0]):
        call(two[0], tensor)
    tensor[:] = 1000
    is_over(two, lambda each: call(each, make(size, dtype=tensor.dtype)))  # type: ignore[operator]
    assert bool((tensor == 1000).all())


def test_a_call_like_one_before_that_is_left_fails(two: list[Communicator]) -> None:
    together(two, lambda each: each.allreduce(np.ones(16, np.float32)))
    tensor = np.ones(16, np.float32)
    with left(two[0]):
        two[0].allreduce(tensor)
    tensor[:] = 1000
    is_over(two, lambda each: each.allreduce(np.ones(16, np.float32)))
    assert tensor.tolist() == [1000] * 16


@pytest.mark.parametrize("before", [0, 1])
def test_signals_that_come_all_the_time_leave_nothing_under_way(two: list[Communicator], before: int) -> None:
    for _ in range(before):
        together(two, lambda each: each.allreduce(np.ones(16, np.float32)))
    with left(two[0], every=0.01):
        two[0].allreduce(np.ones(16, np.float32))
    assert not two[0]._engine.busy
    assert not two[0]._engine.handles


def test_what_others_wait_for_has_ended_too(two: list[Communicator]) -> None:
    """Of the same rank: asynchronous collectives."""
    handles = [two[0].allreduce_async(np.ones(size, np.float32)) for size in (16, LARGE)]
    with left_when(lambda: len(two[0]._engine.handles) == 3):
        two[0].allreduce(np.ones(16, np.float32))
    assert all(handle.done() for handle in handles)


def test_who_is_left_when_the_result_is_there_goes_on(two: list[Communicator], monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that comes while C waits is heard when C returns, maybe with the result."""
    engine: Any = two[0]._engine
    if hasattr(engine, "_library"):
        library = engine._library
        run = library.p4reduce_run

        def run_and_leave(engine: Any, request: Any, _: float, *results: Any) -> None:
            run(engine, request, SOON, *results)
            leave()

        def call(each: Communicator) -> Any:
            return error_of(lambda: each.allreduce(np.ones(16, np.float32)))

        for _ in range(2):
            monkeypatch.setattr(library, "p4reduce_run", run_and_leave)
            monkeypatch.setattr(two[1]._engine, "_library", type(library)(**{**vars(library), "p4reduce_run": run}))
            errors = together(two, call)
            assert isinstance(errors[0], Left)
            assert errors[1] is None
            monkeypatch.undo()
            for sums in together(two, lambda each: each.allreduce(np.ones(1, np.float32))):
                assert sums.tolist() == [2]


def test_a_call_whose_turn_has_not_come_begins_nothing(two: list[Communicator]) -> None:
    """Another thread has the turn."""
    has_turn, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with two[0]._submission.turns:
            has_turn.set()
            go_on.wait(SOON)

    thread = threading.Thread(target=hold)
    thread.start()
    assert has_turn.wait(SOON)
    with left_when(lambda: bool(two[0]._submission.turns._waiting)):
        two[0].broadcast(np.ones(16, np.float32), 0)
    go_on.set()
    thread.join(SOON)
    assert not two[0]._engine.handles
    assert [sums.tolist() for sums in together(two, lambda each: each.allreduce(np.ones(1, np.float32)))] == [[2], [2]]


@pytest.mark.parametrize("when", ["at its end", "between buckets"])
def test_a_backward_pass_that_is_left_fails(two: list[Communicator], when: str) -> None:
    """Two buckets are under way when the first is waited for; or one, and the exception comes in other code."""
    state, buffers = AllreduceState(two[0]), [torch.ones(16), torch.ones(16)]
    parameter = torch.ones(1, requires_grad=True)

    def hook(_: torch.Tensor) -> None:
        for buffer in buffers:
            allreduce_hook(state, Bucket(buffer, []))  # type: ignore[arg-type]
            if when == "between buckets":
                leave()

    parameter.register_hook(hook)
    loss = (2 * parameter).sum()
    with pytest.raises(Left) if when == "between buckets" else left_when(lambda: len(two[0]._engine.handles) == 2):
        loss.backward()
    for buffer in buffers:
        buffer[:] = 1000
    by = "an exception in the backward pass"
    if when == "at its end":
        by = f"(Left|{by})"  # the signal may come just before the wait
    is_over(two, lambda each: each.allreduce(torch.ones(16), "average"), by)
    assert all(buffer.eq(1000).all() for buffer in buffers)


def test_the_wait_of_a_handle_goes_on(two: list[Communicator]) -> None:
    """Who has begun a collective asynchronously still has its handle, and waits again."""
    tensor = np.ones(16, np.float32)
    handle = two[0].allreduce_async(tensor)
    waits = threading.Event()
    with left_when(waits.is_set):
        waits.set()
        handle.wait()
    assert not handle.done()
    two[1].allreduce(np.ones(16, np.float32))
    assert handle.result(SOON).tolist() == [2] * 16
