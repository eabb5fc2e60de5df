# SPDX-License-Identifier: Apache-2.0
"""Threads that begin collectives: one at a time, in the order in which they ask."""

from __future__ import annotations

import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
import torch
from fake_session import FakeController
from in_process import join, together
from waiting import wait_until

from p4reduce import Communicator
from p4reduce.submit.turns import Turns


def test_who_asks_first_comes_first_and_who_has_it_may_ask_again() -> None:
    turns = Turns()
    came: list[int] = []

    def come(number: int) -> None:
        with turns, turns:
            came.append(number)

    threads = [threading.Thread(target=come, args=(number,)) for number in range(6)]
    with turns:
        for number, thread in enumerate(threads):
            thread.start()
            wait_until(lambda: len(turns._waiting) == number + 1, "it waits")  # noqa: B023 # it is called at once
        with turns:
            assert not came
    for thread in threads:
        thread.join(20)
    assert came == list(range(6))


def interrupt(*_: object) -> None:
    raise InterruptedError


def test_who_is_interrupted_while_it_waits_leaves_the_line() -> None:
    turns = Turns()
    taken, done = threading.Event(), threading.Event()

    def hold() -> None:
        with turns:
            taken.set()
            done.wait(20)

    def interrupt_main() -> None:
        wait_until(lambda: len(turns._waiting) == 1, "main waits")
        main = threading.main_thread().ident
        assert main is not None
        signal.pthread_kill(main, signal.SIGUSR1)

    threads = [threading.Thread(target=each) for each in (hold, interrupt_main)]
    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        threads[0].start()
        taken.wait(20)
        threads[1].start()
        with pytest.raises(InterruptedError), turns:
            pass
    finally:
        signal.signal(signal.SIGUSR1, before)
        done.set()
    for thread in threads:
        thread.join(20)
    with turns:
        assert not turns._waiting


@pytest.mark.parametrize("repeated", [False, True], ids=["new", "repeated"])
@pytest.mark.parametrize("layout", ["coo", "elements", "auto"])
def test_a_sum_of_several_operations_has_no_other_threads_in_between(
    controller: FakeController, layout: Any, repeated: bool
) -> None:
    """Though its rank comes to it before the other does, and its other thread calls meanwhile, also for a small sum
    like one before."""
    assert controller is not None
    pair = join(2, link="1mbit")
    dense = torch.zeros(40_000)
    dense[::37] = 1.0

    def sparse(each: Communicator) -> Any:
        if layout == "coo":
            return each.allreduce(dense.to_sparse()).to_dense()
        return each.allreduce(dense.clone(), layout=layout)

    few = np.ones(10, np.float32)
    if repeated:
        together(pair, lambda each: each.allreduce(few.copy()))
    if layout == "auto":
        together(pair, sparse)  # from which is learnt

    def rank(each: Communicator) -> tuple[Any, Any]:
        time.sleep(0.3 * each.rank)
        results: list[Any] = []
        first = threading.Thread(target=lambda: results.append(sparse(each)))
        first.start()
        wait_until(lambda: each._submission.turns._owner is not None or bool(results), "it has begun")
        other = each.allreduce(few.copy())
        first.join(20)
        return results[0], other

    for one, other in together(pair, rank):
        assert torch.equal(one, 2 * dense)
        assert other.tolist() == [2.0] * 10
    for each in pair:
        each.close()
