# SPDX-License-Identifier: Apache-2.0
"""Calls that an exception leaves before their collective has ended, as a signal's handler raises one.

Their caller has the tensor back. So what it holds from then on is not added, and nothing is written to it.
"""

from __future__ import annotations

import concurrent.futures
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

from p4reduce import Communicator, JobAborted, P4ReduceError
from p4reduce.ddp import AllreduceState, allreduce_hook
from p4reduce.engine.waiting import ends_within
from tests.support.hostlib import calls
from tests.support.hostlib.buckets import Bucket
from tests.support.hostlib.fake_session import FakeController
from tests.support.hostlib.in_process import Join, error_of, together
from tests.support.waiting import wait_until

LARGE = 100_000
SOON = 10.0


class Left(ValueError):
    """The exception that the handler raises, of a kind that collectives raise, too."""


def leave(*_: object) -> None:
    raise Left


def leave_the_library(_: int, frame: FrameType | None) -> None:
    """Raise Left if the signal interrupts the library, and not the test's code around the call."""
    while frame is not None:
        if frame.f_globals["__name__"].startswith("p4reduce."):
            raise Left
        frame = frame.f_back


@contextlib.contextmanager
def left_when(ready: Callable[[], bool], every: float = 0.0) -> Iterator[None]:
    """Interrupt the block by a signal's exception once `ready` returns true. every: seconds between further signals."""

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
    """Interrupt the block when the rank has a collective under way."""
    return left_when(lambda: each._engine.busy, every)


@pytest.fixture(params=["c", "python", "memory"])
def two(
    request: pytest.FixtureRequest, controller: FakeController, join: Join, monkeypatch: pytest.MonkeyPatch
) -> list[Communicator]:
    controller.in_memory = request.param == "memory"
    monkeypatch.setenv("P4REDUCE_BACKEND", "python" if request.param == "python" else "c")
    pair = join(2, local="auto")
    assert all(each.local == controller.in_memory for each in pair)
    return pair


SMALL = ("sum", "max", "reduce", "reduce_scatter", "broadcast", "all_gather")
CALLS: dict[str, tuple[int, Callable[[Communicator, Any], Any]]] = {
    **{name: (16, calls.CALLS[name]) for name in SMALL},
    "elements": (LARGE, calls.CALLS["elements"]),
    "chosen": (LARGE, calls.CALLS["sum"]),
    "blocks": (LARGE, lambda each, tensor: each.allreduce(tensor, layout="blocks")),
    "sparse": (LARGE, lambda each, tensor: each.allreduce(torch.as_tensor(tensor).to_sparse())),
    "barrier": (2, lambda each, _: each.barrier()),
}


def is_over(pair: list[Communicator], call: Callable[[Communicator], Any], by: str = "Left") -> None:
    """Check that the interrupted rank cannot go on, and that the other one gets an abort."""
    begun = time.monotonic()
    other = error_of(lambda: call(pair[1]))
    assert isinstance(other, JobAborted), other
    assert other.rank == 0
    assert re.search(f"was interrupted while it was under way, by {by}", str(other))
    with pytest.raises(P4ReduceError, match=f"was interrupted while it was under way, by {by}"):
        call(pair[0])
    assert time.monotonic() - begun < SOON


@pytest.mark.parametrize(
    ("name", "kind", "before"),
    [
        *((name, "numpy", 0) for name in CALLS),
        *((name, "torch", 0) for name in ("chosen", "all_gather")),
        ("sum", "numpy", 1),  # a call like one before
    ],
)
def test_a_call_that_is_left_fails(two: list[Communicator], name: str, kind: str, before: int) -> None:
    size, call = CALLS[name]

    def make() -> Any:
        ones = np.ones((2, size // 2), np.float32)
        return ones if kind == "numpy" else torch.from_numpy(ones)

    for _ in range(before):
        together(two, lambda each: call(each, make()))
    tensor = make()
    with left(two[0]):
        call(two[0], tensor)
    tensor[:] = 1000
    is_over(two, lambda each: call(each, make()))
    assert bool((tensor == 1000).all())


@pytest.mark.parametrize("before", [0, 1])
def test_signals_that_come_all_the_time_leave_nothing_under_way(two: list[Communicator], before: int) -> None:
    for _ in range(before):
        together(two, lambda each: each.allreduce(np.ones(16, np.float32)))
    with left(two[0], every=0.01):
        two[0].allreduce(np.ones(16, np.float32))
    assert not two[0]._engine.busy
    assert not two[0]._engine.handles


def test_what_others_wait_for_has_ended_too(two: list[Communicator]) -> None:
    """The other waits are those of asynchronous collectives of the same rank."""
    handles = [two[0].allreduce_async(np.ones(size, np.float32)) for size in (16, LARGE)]
    engine: Any = two[0]._engine
    with left_when(lambda: len(getattr(engine, "_under_way", engine.handles)) == 3):
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
        with two[0]._submission.lock:
            has_turn.set()
            go_on.wait(SOON)

    thread = threading.Thread(target=hold)
    thread.start()
    assert has_turn.wait(SOON)
    with left_when(lambda: bool(two[0]._submission.lock._waiting)):
        two[0].broadcast(np.ones(16, np.float32), 0)
    go_on.set()
    thread.join(SOON)
    assert not two[0]._engine.handles
    assert [sums.tolist() for sums in together(two, lambda each: each.allreduce(np.ones(1, np.float32)))] == [[2], [2]]


@pytest.mark.parametrize("when", ["at its end", "between buckets"])
def test_a_backward_pass_that_is_left_fails(two: list[Communicator], when: str) -> None:
    """Two buckets are under way when the first wait is interrupted, or one is, and the exception is in other code."""
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
    """After an interrupted wait, an asynchronous collective goes on, and its handle can be waited for again."""
    tensor = np.ones(16, np.float32)
    handle = two[0].allreduce_async(tensor)
    waits = threading.Event()
    with left_when(waits.is_set):
        waits.set()
        handle.wait()
    assert not handle.done()
    two[1].allreduce(np.ones(16, np.float32))
    assert handle.result(SOON).tolist() == [2] * 16


Future = concurrent.futures.Future[int]


def test_a_lock_that_a_handlers_exception_left_held_is_released(monkeypatch: pytest.MonkeyPatch) -> None:
    future: Future = concurrent.futures.Future()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Condition, "__exit__", leave)
        with pytest.raises(Left):
            future.done()
    thread = threading.Thread(target=future.set_result, args=[1], daemon=True)
    thread.start()
    assert ends_within(future, 10.0)
    thread.join(10.0)
    assert not thread.is_alive()


def raise_failure() -> None:
    raise P4ReduceError("the engine has failed")


def test_a_call_that_cannot_begin_leaves_no_handle_while_an_earlier_one_has_its_tensor(
    pair: list[Communicator], monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = [np.ones(64, np.float32) for _ in pair]
    for _ in range(2):  # the second is like the first, and is started as it was prepared
        together(pair, lambda each: each.allreduce_async(arrays[each.rank]).wait())
    first, other = pair
    earlier = first.allreduce_async(arrays[0])
    with monkeypatch.context() as patched:
        patched.setattr(first._engine, "check", raise_failure)
        with pytest.raises(P4ReduceError, match="has failed"):
            first.allreduce_async(arrays[0])
    assert first._engine.handles == {earlier}
    other.allreduce(arrays[1])
    earlier.wait()
    assert not first._engine.handles
