# SPDX-License-Identifier: Apache-2.0
"""A thread that waits for a collective of the C engine does the engine's work itself, without a Python thread."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from p4reduce import Communicator
from p4reduce.fastpath.engine import NativeEngine
from tests.support.forking import said_by_child
from tests.support.hostlib.in_process import Join, error_of, together


@pytest.fixture(autouse=True)
def _c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_BACKEND", "c")
    monkeypatch.setenv("P4REDUCE_LOCAL", "off")


@pytest.fixture
def alone(join: Join) -> Communicator:
    """Return a job's only rank."""
    return join(1)[0]


@pytest.mark.parametrize("call", ["allreduce", "wait"])
def test_who_waits_is_told_by_no_thread(pair: list[Communicator], monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """The other rank comes when this one waits."""
    told: list[threading.Thread] = []
    complete: Callable[..., None] = NativeEngine._complete

    def noted(engine: NativeEngine, *args: Any) -> None:
        if engine is pair[0]._engine:
            told.append(threading.current_thread())
        complete(engine, *args)

    monkeypatch.setattr(NativeEngine, "_complete", noted)
    # One wait in C: between two of them nobody waits for a moment, and a thread may tell.
    monkeypatch.setattr("p4reduce.fastpath.engine._SLICE_S", 30.0)
    for size in range(16, 26):  # on a busy machine, the other rank may come before this one waits
        told.clear()
        ours, theirs = np.ones(size, np.float32), np.ones(size, np.float32)  # unlike those before, or nobody is told
        late = threading.Timer(0.5, pair[1].allreduce, [theirs])
        late.start()
        if call == "allreduce":
            pair[0].allreduce(ours)
        else:
            pair[0].allreduce_async(ours).wait()
        late.join()
        if told == [threading.current_thread()]:
            return
    raise AssertionError(told)


def test_who_waits_carries_the_operation(alone: Communicator) -> None:
    """The engine's thread sleeps meanwhile."""
    array = np.ones(16, np.float32)
    task = _thread_of_c()
    alone.allreduce(array)
    for _ in range(50):  # a busy machine may stop the engine's thread while it holds the progress lock
        before = _switches(task)
        for _ in range(300):
            alone.allreduce(array)
        slept = _switches(task) - before
        if slept < 30:
            return
    raise AssertionError(f"the engine's thread slept {slept} times in 300 operations, and not fewer than 30 in any try")


def _thread_of_c() -> Path:
    """Return the engine's thread, which Python does not know."""
    known = {thread.native_id for thread in threading.enumerate()}
    tasks = [task for task in Path("/proc/self/task").iterdir() if int(task.name) not in known]
    own = []
    for task in tasks:
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            if (task / "comm").read_text().startswith("p4reduce"):
                own.append(task)
    (one,) = own
    return one


def _switches(task: Path) -> int:
    """Return how often a thread has gone to sleep."""
    (line,) = [line for line in (task / "status").read_text().splitlines() if line.startswith("voluntary")]
    return int(line.split()[1])


def test_many_threads_wait_for_one(pair: list[Communicator]) -> None:
    handle = pair[0].allreduce_async(np.ones(16, np.float32))
    waiting = [threading.Thread(target=handle.wait, args=(20,)) for _ in range(4)]
    for thread in waiting:
        thread.start()
    pair[1].allreduce(np.ones(16, np.float32))
    for thread in waiting:
        thread.join(20)
        assert not thread.is_alive()


@pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
def test_a_sum_like_one_before_is_as_that(pair: list[Communicator], dtype: str) -> None:
    random = np.random.default_rng(5)
    inputs = [(random.standard_normal((2, 100)) * 1000).astype(dtype) for _ in range(2)]

    def sums(each: Communicator) -> list[np.ndarray[Any, Any]]:
        return [each.allreduce(inputs[each.rank][row].copy()) for row in (0, 1, 0)]

    (first, _, again), others = together(pair, sums)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(again, others[2])
    for each in pair:
        (site,) = each.stats().sites
        assert site.blocks == 3


def test_a_sum_like_one_before_fails_as_any(pair: list[Communicator]) -> None:
    together(pair, lambda each: each.allreduce(np.ones(16, np.float32)))
    pair[0].close()
    with pytest.raises(RuntimeError):
        pair[0].allreduce(np.ones(16, np.float32))


@pytest.mark.parametrize("call", ["again", "first", "async"])
def test_an_interrupt_before_an_operation_leaves_none(
    alone: Communicator, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    array = np.ones(16, np.float32)
    alone.allreduce(array)
    if call == "first":
        array = np.ones(17, np.float32)
    engine: Any = alone._engine

    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    library = engine._library
    calls = {"p4reduce_run": interrupt, "p4reduce_submit": interrupt}
    monkeypatch.setattr(engine, "_library", SimpleNamespace(**{**vars(library), **calls}))
    with pytest.raises(KeyboardInterrupt):
        alone.allreduce_async(array) if call == "async" else alone.allreduce(array)
    monkeypatch.setattr(engine, "_library", library)
    assert not engine.busy
    assert not engine._under_way
    assert alone.allreduce(array) is array


def test_a_forked_process_does_not_wait(pair: list[Communicator]) -> None:
    ours, theirs = np.ones(16, np.float32), np.ones(16, np.float32)
    handle = pair[0].allreduce_async(ours)
    said = said_by_child(lambda: [str(error_of(wait)) for wait in (pair[0].drain, handle.wait)])
    assert said.count("was forked from it") == 2
    pair[1].allreduce(theirs)
    handle.wait()
    assert ours.tolist() == theirs.tolist() == [2.0] * 16
