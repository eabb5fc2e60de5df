# SPDX-License-Identifier: Apache-2.0
"""Engines hold operations, so that a job's slots can change between two of them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from p4reduce.engine.python_engine import PythonEngine
from p4reduce.errors import CollectiveTimeout, MismatchError, P4ReduceError
from p4reduce.protocol import Operation
from p4reduce.protocol.numbers import reference_allreduce
from tests.support.forking import said_by_child
from tests.support.hostlib import engines
from tests.support.hostlib.engines import CLOSED, Rank, Ranks, sparse
from tests.support.hostlib.holding import Told, change, hold
from tests.support.hostlib.udp_switch import UdpSwitch
from tests.support.protocol.dealt_switch import move
from tests.support.waiting import pass_time, stays, wait_until

SLOTS = 8
FIRST_SEQ = 2**32 - 4


@pytest.fixture(params=["python", "c"])
def kind(request: pytest.FixtureRequest) -> type[Rank]:
    """Return each kind of engine that can hold operations."""
    return engines.kind_of(request.param)


def reduce(everyone: Sequence[Rank], number: int, size: int = 5000) -> None:
    """Reduce one operation, and check its sum."""
    engines.reduce(everyone, [sparse(number * 10 + rank, size) for rank in range(len(everyone))])


def test_slots_change_between_operations(ranks: Ranks, switch: UdpSwitch) -> None:
    with ranks(switch, 3) as everyone:
        engines = [rank.engine for rank in everyone]
        for number, slots in enumerate((SLOTS, 1, 3, SLOTS, 2, 2)):
            change(switch, engines, slots)
            reduce(everyone, number)
            reduce(everyone, number + 100, 100)
            assert [engine.take_most_slots() for engine in engines] == [slots] * 3
        reduce(everyone, 200, 0)
        assert [engine.take_most_slots() for engine in engines] == [1] * 3
        assert [engine.take_most_slots() for engine in engines] == [0] * 3


def test_before_the_first_operation(ranks: Ranks, switch: UdpSwitch) -> None:
    with ranks(switch, 2) as everyone:
        told = hold([rank.engine for rank in everyone])
        assert [one.wait(0, quiet=True) for one in told] == [FIRST_SEQ] * 2
        rank = everyone[0]
        rank.submit(sparse(1))
        pass_time(0.1)
        assert rank.ended == []
        assert rank.engine.stats.packets_sent == 0
        for one in everyone:
            one.engine.go_on(0, 0)
        everyone[1].submit(sparse(2))
        for one in everyone:
            one.wait()
            assert one.ended == [("sum", None)]
        assert all(len(one.states) == 1 for one in told)


def test_what_is_under_way_ends_first(ranks: Ranks, switch: UdpSwitch) -> None:
    """Operations that were submitted meanwhile follow."""
    with ranks(switch, 2) as everyone:
        first, second = everyone
        arrays = [[sparse(number * 2 + rank) for number in range(3)] for rank in range(2)]
        expected = [reference_allreduce([arrays[0][number], arrays[1][number]]) for number in range(3)]
        first.submit(arrays[0][0], "zero")
        wait_until(lambda: first.engine.stats.packets_sent > 0, "the first operation to begin")
        told = hold([rank.engine for rank in everyone])
        told[0].wait(1, quiet=False)
        told[1].wait(0, quiet=True)
        first.submit(arrays[0][1], "one")
        for number, name in enumerate(("zero", "one", "two")):
            second.submit(arrays[1][number], name)
        pass_time(0.1)
        assert not first.ended
        assert second.engine.stats.packets_sent == 0
        second.engine.hold(1, told[1])  # it is behind
        assert told[0].wait(1, quiet=True) == told[1].wait(1, quiet=True)
        for rank in everyone:
            rank.wait()
            assert rank.ended == [("zero", None)]
        assert told[0].states == [(1, False, 0), (1, True, told[0].states[-1][2])]
        [job] = switch._jobs.values()
        move(job.model, 2, told[0].states[-1][2])
        for rank in everyone:
            rank.engine.go_on(2, told[0].states[-1][2])
        first.submit(arrays[0][2], "two")
        for rank, own in zip(everyone, arrays, strict=True):
            rank.wait(3)
            assert rank.ended == [("zero", None), ("one", None), ("two", None)]
            for array, sum_ in zip(own, expected, strict=True):
                np.testing.assert_array_equal(array.view(np.int32), sum_.view(np.int32))


def test_asked_again_and_again(ranks: Ranks, switch: UdpSwitch) -> None:
    with ranks(switch, 2) as everyone:
        engines = [rank.engine for rank in everyone]
        for engine in engines:
            engine.go_on(2, 8)  # who does not hold ignores it
        reduce(everyone, 0)
        first = hold(engines)
        seqs = {one.wait(1, quiet=True) for one in first}
        second = hold(engines)  # again, which is answered again
        assert {one.wait(1, quiet=True) for one in second} == seqs
        for engine in engines:
            engine.go_on(0, 0)
            engine.go_on(1, 2)  # it does not hold any more
        third = hold(engines)
        assert {one.wait(1, quiet=True) for one in third} == seqs
        for engine in engines:
            engine.hold(0, Told())
            engine.go_on(0, 0)
            engine.hold(0, Told())
            engine.go_on(0, 0)
        reduce(everyone, 1)
        for _ in range(5):
            change(switch, engines, 3)
        reduce(everyone, 2)


def submit_all(rank: Rank, arrays: Sequence[np.ndarray]) -> None:
    for number, array in enumerate(arrays):
        rank.submit(array, str(number))
        rank.wait(number + 1 - number % 3)
    rank.wait(len(arrays))
    assert [error for _, error in rank.ended] == [None] * len(arrays)


def run_all_inline(rank: Rank, arrays: Sequence[np.ndarray]) -> None:
    """Run operations in this thread, each as the first one was prepared."""
    prepared = rank.engine.prepare(Operation(arrays[0].copy()), "again")
    assert prepared is not None
    for array in arrays:
        assert rank.engine.run_inline(prepared, array, 30.0, address=array.ctypes.data) is None


@pytest.mark.parametrize(
    ("kind", "run", "size"),
    [("python", submit_all, 2000), ("c", submit_all, 2000), ("c", run_all_inline, 10), ("c", run_all_inline, 3000)],
    indirect=["kind"],
)
def test_slots_change_while_ranks_reduce(ranks: Ranks, switch: UdpSwitch, run: Any, size: int) -> None:
    with ranks(switch, 2) as everyone, ThreadPoolExecutor(2) as pool:
        arrays = [[sparse(number * 2 + rank, size) for number in range(60)] for rank in range(2)]
        expected = [reference_allreduce(list(pair)) for pair in zip(*arrays, strict=True)]
        running = [pool.submit(run, rank, own) for rank, own in zip(everyone, arrays, strict=True)]
        slots = SLOTS
        while not all(one.done() for one in running):
            slots = 2 + slots % (SLOTS - 1)
            change(switch, [rank.engine for rank in everyone], slots)
        assert [one.result() for one in running] == [None] * 2
        for own in arrays:
            for array, sum_ in zip(own, expected, strict=True):
                np.testing.assert_array_equal(array.view(np.int32), sum_.view(np.int32))


def test_the_time_limit_runs(ranks: Ranks, switch: UdpSwitch) -> None:
    with ranks(switch, 2) as everyone:
        rank = everyone[0]
        [told] = hold([rank.engine])
        told.wait(0, quiet=True)
        rank.submit(sparse(1), "mine", timeout=0.5)
        rank.submit(sparse(2), "the next", timeout=60)
        why = "the controller has paused operations for"
        wait_until(lambda: why in rank.engine.progress() or len(rank.ended) == 2, "the reason")
        rank.wait(2)
        (_, error), (_, other) = rank.ended
        assert isinstance(error, CollectiveTimeout)
        assert str(other) == str(error)
        assert "mine did not end within 0.5 s: the controller has paused operations for" in str(error)
        assert "s to change the job's slots" in str(error)
        assert error.awaited == ()


def test_the_time_limit_goes_on_after_it(ranks: Ranks, switch: UdpSwitch) -> None:
    """One limit covers the time before and after the hold. A machine that stands still needs a try of longer times."""
    tries: list[tuple[float, str]] = []
    for limit, held in ((2.0, 1.5), (8.0, 5.0)):
        with ranks(switch, 2) as everyone:
            rank = everyone[0]
            hold([rank.engine])
            began = time.monotonic()
            rank.submit(sparse(1), timeout=limit)
            pass_time(held)
            rank.engine.go_on(0, 0)
            said = str(rank.error())
            tries.append((time.monotonic() - began, said))
            if "waiting for rank 1" in said and tries[-1][0] < limit + held:
                return
    raise AssertionError(tries)


@pytest.mark.parametrize("end", ["close", "fail"])
def test_the_end_while_it_holds(ranks: Ranks, switch: UdpSwitch, end: str) -> None:
    with ranks(switch, 2) as everyone:
        rank = everyone[0]
        [told] = hold([rank.engine])
        told.wait(0, quiet=True)
        for _ in range(3):
            rank.submit(sparse(1))
        getattr(rank.engine, end)(CLOSED)
        rank.wait(3)
        assert [repr(error) for _, error in rank.ended] == [repr(CLOSED)] * 3
        rank.engine.go_on(2, FIRST_SEQ)
        rank.engine.hold(0, told)
        with pytest.raises(P4ReduceError):
            rank.submit(sparse(1))
        assert len(told.states) == 1


@pytest.mark.parametrize(
    ("slots", "first_seq", "why"),
    [
        (SLOTS + 1, FIRST_SEQ, f"slots are {SLOTS + 1}: accepted are 1 to {SLOTS}"),
        (1, FIRST_SEQ + 1, "first_seq is 4294967293: accepted are even numbers that do not come before 4294967292"),
        (1, FIRST_SEQ - 2, "first_seq is 4294967290: accepted are even numbers that do not come before"),
    ],
)
def test_what_cannot_be_fails(ranks: Ranks, switch: UdpSwitch, slots: int, first_seq: int, why: str) -> None:
    with ranks(switch, 2) as everyone:
        rank = everyone[0]
        failures: list[BaseException] = []
        rank.engine.on_failure = failures.append
        [told] = hold([rank.engine])
        told.wait(0, quiet=True)
        rank.submit(sparse(1))
        rank.engine.go_on(slots, first_seq)
        error = rank.error()
        assert type(error) is P4ReduceError
        assert f"the controller sent slots that the job cannot have: {why}" in str(error)
        assert str(failures[0]) == str(error)
        assert rank.engine.stats.packets_sent <= 1  # no more than the HELLO


def test_slots_do_not_change_while_operations_are_under_way(ranks: Ranks, switch: UdpSwitch) -> None:
    with ranks(switch, 2) as everyone:
        rank = everyone[0]
        rank.submit(sparse(1))
        wait_until(lambda: rank.engine.stats.packets_sent > 0, "the operation to begin")
        hold([rank.engine])[0].wait(1, quiet=False)
        rank.engine.go_on(1, 64)
        assert "slots can change only between two operations" in str(rank.error())


def test_a_forked_process_leaves_it_alone(ranks: Ranks, switch: UdpSwitch) -> None:
    with ranks(switch, 2) as everyone:
        engines = [rank.engine for rank in everyone]
        told = hold(engines)
        for one in told:
            one.wait(0, quiet=True)
        assert said_by_child(lambda: everyone[0].engine.close(CLOSED)) == "None"
        for engine in engines:
            engine.go_on(0, 0)
        reduce(everyone, 1)


def test_operations_that_are_submitted_while_slots_change(ranks: Ranks, switch: UdpSwitch) -> None:
    """Other threads submit them, striped over the slots that there were before."""
    with ranks(switch, 1) as everyone:
        rank = everyone[0]
        hold([rank.engine])[0].wait(0, quiet=True)
        arrays = [np.full(SLOTS * 4 * 64 * 3 + 5, number, np.float32) for number in range(4)]
        for array in arrays:
            rank.engine.submit(
                Operation(array), name="sum", timeout=20, on_end=lambda error: rank.ended.append(("sum", error))
            )
        [job] = switch._jobs.values()
        move(job.model, 3, FIRST_SEQ)
        rank.engine.go_on(3, FIRST_SEQ)
        rank.wait(4)
        assert [error for _, error in rank.ended] == [None] * 4
        assert [set(array) for array in arrays] == [{float(number)} for number in range(4)]
        assert rank.engine.take_most_slots() == 3


def test_who_went_ahead_is_judged_in_the_slots_that_there_are(ranks: Ranks, switch: UdpSwitch) -> None:
    """An engine that has new slots judges a report that another rank went ahead by these, and does not fail."""
    with ranks(switch, 2) as everyone:
        engines = [rank.engine for rank in everyone]
        for number in range(1, 8):
            for _ in range(4):  # small, so that slot 0 alone goes on
                for rank in everyone:
                    rank.submit(np.ones(100, np.float32))
            for rank in everyone:
                rank.wait(4)
                rank.ended.clear()
            [first_seq] = {told.wait(4 * number, quiet=True) for told in hold(engines)}
            [job] = switch._jobs.values()
            move(job.model, SLOTS, first_seq)
            engines[1].go_on(SLOTS, first_seq)
            engines[1].counted(2 * SLOTS - 2, first_seq, MismatchError("rank 0 went ahead"))
            engines[0].go_on(SLOTS, first_seq)
            stays(lambda: engines[1].failure is None, "the rank that is ahead has been told", 0.02)


def test_what_is_held_back_fails_and_sends_nothing(
    ranks: Ranks, switch: UdpSwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread fails the engine just before the engine looks after the operations that it holds."""
    fails: list[PythonEngine] = []
    look_after = PythonEngine._look_after_hold

    def look(engine: PythonEngine, now: float) -> None:
        while fails:
            fails.pop().fail(CLOSED)
        look_after(engine, now)

    monkeypatch.setattr(PythonEngine, "_look_after_hold", look)
    with ranks(switch, 1) as everyone:
        rank = everyone[0]
        hold([rank.engine])[0].wait(0, quiet=True)
        rank.submit(np.ones(20_000, np.float32))
        pass_time(0.1)
        if isinstance(rank.engine, PythonEngine):
            fails.append(rank.engine)
        else:
            rank.engine.fail(CLOSED)
        with contextlib.suppress(P4ReduceError):
            rank.submit(np.ones(4, np.float32))
        rank.wait(1)
        assert {type(error) for _, error in rank.ended} == {type(CLOSED)}
        pass_time(0.1)
        assert rank.engine.stats.packets_sent == 0
