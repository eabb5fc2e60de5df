# SPDX-License-Identifier: Apache-2.0
"""Callbacks of a collective's end may wait for anything, and hold nothing up."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from p4reduce import Communicator
from p4reduce.engine.continuations import Continuations
from p4reduce.engine.handle import Handle
from tests.support.hostlib.in_process import error_of, together
from tests.support.waiting import wait_until


def ones() -> Any:
    return np.ones(3, np.float32)


def chained(communicator: Communicator, depth: int) -> threading.Event:
    """Set when `depth` callbacks, each hung on a collective that the one before waits for, have run."""
    ended = threading.Event()

    def begin(left: int) -> Handle[Any]:
        def follow(_: Handle[Any]) -> None:
            if left:
                deeper = begin(left - 1)
                communicator.allreduce(ones())
                deeper.wait(20)
                assert below[left - 1].wait(20)
            below[left].set()

        handle = communicator.allreduce_async(ones())
        handle.add_done_callback(follow)
        return handle

    below = [threading.Event() for _ in range(depth)] + [ended]
    begin(depth)
    return ended


def test_callbacks_may_wait_to_any_depth(each_pair: list[Communicator]) -> None:
    for ended in together(each_pair, lambda communicator: chained(communicator, 5)):
        assert ended.wait(20)


def test_collectives_go_on_while_a_callback_waits_for_something_else(each_pair: list[Communicator]) -> None:
    release = threading.Event()
    told: list[str] = []
    first, second = each_pair
    first.allreduce_async(ones()).add_done_callback(lambda _: (release.wait(20), told.append("late")))
    second.allreduce(ones())
    for _ in range(20):
        together(each_pair, lambda communicator: communicator.allreduce(ones()))
    assert told == []
    release.set()
    wait_until(lambda: told == ["late"], "the callback")


def test_a_handles_callbacks_are_called_in_their_order(each_pair: list[Communicator]) -> None:
    first = threading.Event()
    called: list[int] = []
    handle = each_pair[0].allreduce_async(ones())
    handle.add_done_callback(lambda _: (first.wait(20), called.append(0)))
    for number in range(1, 50):
        handle.add_done_callback(lambda _, number=number: called.append(number))  # type: ignore[misc]
    each_pair[1].allreduce(ones())
    handle.wait(20)
    handle.add_done_callback(lambda _: called.append(50))  # it has ended, but those before are under way
    assert called == []
    first.set()
    wait_until(lambda: len(called) == 51, "the callbacks")
    assert called == list(range(51))


def test_close_tells_callbacks_and_ends_their_threads(each_pair: list[Communicator]) -> None:
    errors: list[BaseException | None] = []
    before = set(threading.enumerate())
    handles = [each_pair[0].allreduce_async(ones()) for _ in range(3)]
    for handle in handles:
        # Waits for the last one, which has failed as well.
        handle.add_done_callback(lambda _: errors.append(error_of(handles[-1].wait)))
    each_pair[0].close()
    each_pair[0].close()
    assert [str(error) for error in errors] == ["the communicator is closed"] * 3
    assert "the communicator is closed" in repr(each_pair[0])
    assert not {thread for thread in set(threading.enumerate()) - before if "continuation" in thread.name}


def test_a_callback_may_close_its_communicator(each_pair: list[Communicator]) -> None:
    closed = threading.Event()
    handle = each_pair[0].allreduce_async(ones())
    handle.add_done_callback(lambda _: (each_pair[0].close(), closed.set()))
    each_pair[1].allreduce(ones())
    each_pair[1].close()
    assert closed.wait(20)


@pytest.mark.parametrize("error", [ValueError("mine"), SystemExit("mine")], ids=lambda error: type(error).__name__)
def test_an_error_in_a_callback_is_logged_and_ends_nothing(
    error: BaseException, each_pair: list[Communicator], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: object) -> None:
        raise error

    called: list[object] = []
    with caplog.at_level(logging.ERROR, "p4reduce"):
        handle = each_pair[0].allreduce_async(ones())
        handle.add_done_callback(fail)
        handle.add_done_callback(called.append)
        each_pair[1].allreduce(ones())
        wait_until(lambda: bool(called), "the callback after it")
    assert f"{type(error).__name__}: mine" in caplog.text
    together(each_pair, lambda communicator: communicator.allreduce(ones()))


def test_a_plain_wait_needs_no_thread(each_pair: list[Communicator]) -> None:
    before = set(threading.enumerate())
    for _ in range(10):
        together(each_pair, lambda communicator: communicator.allreduce(ones()))
    assert not [thread for thread in set(threading.enumerate()) - before if "continuation" in thread.name]


@pytest.fixture
def continuations() -> Iterator[Continuations]:
    made = Continuations("test")
    yield made
    made.close(10)


def after(begin: Callable[[Callable[[], object]], None]) -> None:
    """Call `begin` with a function, and wait until this function has run."""
    event = threading.Event()
    begin(event.set)
    assert event.wait(10)


def test_threads_are_used_again(continuations: Continuations) -> None:
    threads: set[int] = set()
    for _ in range(50):
        after(lambda end: continuations.run(lambda: (threads.add(threading.get_ident()), end())))
        wait_until(lambda: continuations._idle > 0, "an idle thread")
    assert len(threads) == 1


def test_where_no_thread_can_start_tasks_run_at_once(
    continuations: Continuations, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No thread can start at the interpreter's exit."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    ran: list[int] = []
    continuations.run(lambda: ran.append(threading.get_ident()))
    assert ran == [threading.get_ident()]


def test_threads_end_when_they_have_nothing_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Continuations, "IDLE_S", 0.01)
    continuations = Continuations("idle")
    for _ in range(2):
        after(lambda end: continuations.run(end))
        wait_until(lambda: not [each for each in threading.enumerate() if each.name.startswith("idle")], "the end")
    continuations.close(10)


def test_a_task_runs_though_a_signal_interrupts_the_start_of_its_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(threading.Thread):
        def start(self) -> None:
            super().start()
            raise InterruptedError

    pool, ran = Continuations("test"), threading.Event()
    with monkeypatch.context() as patched:
        patched.setattr(threading, "Thread", Interrupted)
        with pytest.raises(InterruptedError):
            pool.run(ran.set)
    assert ran.wait(20)
    pool.close(20)
