# SPDX-License-Identifier: Apache-2.0
"""Operations are held in C as in Python, also those that a caller's thread carries."""

from __future__ import annotations

import threading
from functools import partial

import numpy as np
import pytest

from p4reduce.errors import CollectiveTimeout
from p4reduce.fastpath.engine import NativeEngine
from p4reduce.protocol import Operation
from p4reduce.protocol.numbers import reference_allreduce
from tests.support.hostlib import engines
from tests.support.hostlib.engines import NativeRank, Rank, sparse
from tests.support.hostlib.holding import change, hold
from tests.support.hostlib.udp_switch import UdpSwitch
from tests.support.waiting import pass_time, wait_until

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

TIMES = 100

ranks = partial(engines.ranks, NativeRank)


def run_again(rank: Rank, arrays: list[np.ndarray]) -> None:
    engine = rank.engine
    prepared = engine.prepare(Operation(arrays[0].copy()), "again")
    assert prepared is not None
    for array in arrays:
        assert engine.run_inline(prepared, array, 30.0, address=array.ctypes.data) is None


@pytest.mark.parametrize("size", [10, 3000])
def test_slots_change_while_callers_carry(switch: UdpSwitch, size: int) -> None:
    with ranks(switch, 2) as everyone:
        arrays = [[sparse(number * 2 + rank, size) for number in range(TIMES)] for rank in range(2)]
        expected = [reference_allreduce([arrays[0][number], arrays[1][number]]) for number in range(TIMES)]
        threads = [threading.Thread(target=run_again, args=pair) for pair in zip(everyone, arrays, strict=True)]
        for thread in threads:
            thread.start()
        slots = changes = 0
        while any(thread.is_alive() for thread in threads):
            slots, changes = slots % 8 + 1, changes + 1
            change(switch, [rank.engine for rank in everyone], slots)
        for thread in threads:
            thread.join()
        assert changes > 1
        for own in arrays:
            for array, sum_ in zip(own, expected, strict=True):
                np.testing.assert_array_equal(array.view(np.int32), sum_.view(np.int32))


def test_a_caller_waits_while_it_holds(switch: UdpSwitch) -> None:
    with ranks(switch, 1) as everyone:
        rank = everyone[0]
        hold([rank.engine])[0].wait(0, quiet=True)
        values = np.ones(1000, np.float32)
        caller = threading.Thread(target=run_again, args=(rank, [values]))
        caller.start()
        wait_until(lambda: "the controller has paused operations" in rank.engine.progress(), "the caller to wait")
        pass_time(0.2)
        assert caller.is_alive()
        rank.engine.go_on(0, 0)
        caller.join(10)
        assert not caller.is_alive()


def test_the_time_limit_of_a_caller_runs(switch: UdpSwitch) -> None:
    with ranks(switch, 1) as everyone:
        engine = everyone[0].engine
        hold([engine])[0].wait(0, quiet=True)
        operation = Operation(np.ones(4, np.float32))
        prepared = engine.prepare(operation, "again")
        assert prepared is not None
        error = engine.run_inline(prepared, operation, 0.3)
        assert isinstance(error, CollectiveTimeout)
        assert "again did not end within 0.3 s: the controller has paused operations" in str(error)


def test_threads_that_tell_end(switch: UdpSwitch) -> None:
    def holding() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.endswith("hold")]

    with ranks(switch, 1) as everyone:
        engine = everyone[0].engine
        assert isinstance(engine, NativeEngine)
        for _ in range(5):
            hold([engine])
        wait_until(lambda: len(holding()) == 1, "the others to end")
        engine.go_on(0, 0)
        wait_until(lambda: not holding(), "the last to end")
        hold([engine])
    wait_until(lambda: not holding(), "the one of the closed engine to end")
