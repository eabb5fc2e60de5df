# SPDX-License-Identifier: Apache-2.0
"""Threads that begin collectives: one at a time, in the order in which they ask."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch

from p4reduce import Communicator
from p4reduce.submit.fifo_lock import FifoLock
from tests.support.hostlib.in_process import Join, together
from tests.support.waiting import pass_time, wait_until


def test_who_asks_first_comes_first_and_who_has_it_may_ask_again() -> None:
    lock = FifoLock()
    came: list[int] = []

    def come(number: int) -> None:
        with lock, lock:
            came.append(number)

    threads = [threading.Thread(target=come, args=(number,)) for number in range(6)]
    with lock:
        for number, thread in enumerate(threads):
            thread.start()
            wait_until(lambda: len(lock._waiting) == number + 1, "it waits")  # noqa: B023 # it is called at once
        with lock:
            assert not came
    for thread in threads:
        thread.join(20)
    assert came == list(range(6))


class InterruptedGuard:
    """A lock after whose first release the handler of a signal raises."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._raises = True

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if self._raises:
            self._raises = False
            raise InterruptedError


@pytest.mark.parametrize("state", ["free", "held by this thread", "held by another"])
def test_an_interrupt_as_soon_as_it_is_asked_for_leaves_it_as_it_was(state: str) -> None:
    lock = FifoLock()
    if state == "held by this thread":
        lock.__enter__()
    elif state == "held by another":
        thread = threading.Thread(target=lock.__enter__)
        thread.start()
        thread.join(20)
    before = lock._owner, lock._depth
    lock._guard = InterruptedGuard()  # type: ignore[assignment]
    with pytest.raises(InterruptedError):
        lock.__enter__()
    assert (lock._owner, lock._depth, list(lock._waiting)) == (*before, [])


@pytest.mark.parametrize("repeated", [False, True], ids=["new", "repeated"])
@pytest.mark.parametrize("layout", ["coo", "elements", "auto"])
def test_a_sum_of_several_operations_has_no_other_threads_in_between(join: Join, layout: Any, repeated: bool) -> None:
    """The order of operations holds although one rank begins first and its other thread calls meanwhile.

    That other call is a small sum, new or like an earlier one.
    """
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
        pass_time(0.3 * each.rank)
        results: list[Any] = []
        first = threading.Thread(target=lambda: results.append(sparse(each)))
        first.start()
        wait_until(lambda: each._submission.lock._owner is not None or bool(results), "it has begun")
        other = each.allreduce(few.copy())
        first.join(20)
        return results[0], other

    for one, other in together(pair, rank):
        assert torch.equal(one, 2 * dense)
        assert other.tolist() == [2.0] * 10
