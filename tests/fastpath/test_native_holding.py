# SPDX-License-Identifier: Apache-2.0
"""Operations are held in C as in Python, also those that a caller's thread carries."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import test_engine
from test_engine import sparse
from test_holding import *  # noqa: F403
from test_holding import change, hold
from test_native_engine import NativeRank
from udp_switch import UdpSwitch
from waiting import pass_time, wait_until

from p4reduce.errors import CollectiveTimeout
from p4reduce.fastpath.engine import NativeEngine
from p4reduce.protocol import Operation
from p4reduce.protocol.numbers import reference_allreduce

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

TIMES = 100


@pytest.fixture(autouse=True)
def _native(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_engine, "Rank", NativeRank)


def carry_again(rank: test_engine.Rank, arrays: list[np.ndarray]) -> None:
    engine = rank.engine
    prepared = engine.prepare(Operation(arrays[0].copy()), "again")
    assert prepared is not None
    for array in arrays:
        engine.carry_again(prepared, array, 30.0)


@pytest.mark.parametrize("size", [10, 3000])
def test_slots_change_while_callers_carry(switch: UdpSwitch, size: int) -> None:
    with test_engine.ranks(switch, 2) as everyone:
        arrays = [[sparse(number * 2 + rank, size) for number in range(TIMES)] for rank in range(2)]
        expected = [reference_allreduce([arrays[0][number], arrays[1][number]]) for number in range(TIMES)]
        threads = [threading.Thread(target=carry_again, args=pair) for pair in zip(everyone, arrays, strict=True)]
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
    with test_engine.ranks(switch, 1) as everyone:
        rank = everyone[0]
        hold([rank.engine])[0].wait(0, quiet=True)
        values = np.ones(1000, np.float32)
        caller = threading.Thread(target=carry_again, args=(rank, [values]))
        caller.start()
        wait_until(lambda: "the controller has paused operations" in rank.engine.progress(), "the caller to wait")
        pass_time(0.2)
        assert caller.is_alive()
        rank.engine.go_on(0, 0)
        caller.join(10)
        assert not caller.is_alive()


def test_the_time_limit_of_a_caller_runs(switch: UdpSwitch) -> None:
    with test_engine.ranks(switch, 1) as everyone:
        engine = everyone[0].engine
        hold([engine])[0].wait(0, quiet=True)
        prepared = engine.prepare(Operation(np.ones(4, np.float32)), "again")
        assert prepared is not None
        with pytest.raises(
            CollectiveTimeout, match=r"again did not end within 0\.3 s: the controller has paused operations"
        ):
            engine.carry_again(prepared, np.ones(4, np.float32), 0.3)


def test_threads_that_tell_end(switch: UdpSwitch) -> None:
    def holding() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name.endswith("hold")]

    with test_engine.ranks(switch, 1) as everyone:
        engine = everyone[0].engine
        assert isinstance(engine, NativeEngine)
        for _ in range(5):
            hold([engine])
        wait_until(lambda: len(holding()) == 1, "the others to end")
        engine.go_on(0, 0)
        wait_until(lambda: not holding(), "the last to end")
        hold([engine])
    wait_until(lambda: not holding(), "the one of the closed engine to end")
