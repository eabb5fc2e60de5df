# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from p4reduce.errors import CollectiveTimeout, JobAborted, MismatchError, P4ReduceError
from p4reduce.transport import open_transport
from tests.support.forking import said_by_child
from tests.support.hostlib.engines import CLOSED, FaultySwitch, Ranks, SharedUdpSwitch, reduce, sparse
from tests.support.hostlib.in_process import error_of
from tests.support.hostlib.udp_switch import UdpSwitch, members
from tests.support.waiting import pass_time, stays, wait_until

LONG_WITH_THREADS = [pytest.param(name, marks=pytest.mark.slow) for name in ("2 threads", "3 threads")]
FAULTY = [(1, 5000), (2, 5000), (0, 20_000), (1, 20_000), (2, 20_000)]
in_python = pytest.mark.parametrize("kind", ["python"], indirect=True)
"""For a test that looks into the Python engine, or puts a Python transport under it."""


@pytest.fixture
def switch() -> Iterator[UdpSwitch]:
    """Yield a switch that has jobs for ranks of several threads, too."""
    with contextlib.closing(SharedUdpSwitch()) as switch:
        yield switch


def test_operations_of_any_size_may_be_queued(ranks: Ranks, switch: UdpSwitch) -> None:
    """Threads of one rank are at several of them at once."""
    sizes = [0, 1, 63, 64, 5000, 100, 3000, 25_600] * 4
    with ranks(switch, 3) as everyone:
        reduce(everyone, *([sparse(number * 3 + rank, size) for rank in range(3)] for number, size in enumerate(sizes)))


@pytest.mark.parametrize(
    ("seed", "size"), [(0, 5000), *(pytest.param(seed, size, marks=pytest.mark.slow) for seed, size in FAULTY)]
)
def test_faults_of_the_network_change_nothing(ranks: Ranks, seed: int, size: int) -> None:
    """Packets are lost, duplicated and late, to the switch and from it."""
    switch = FaultySwitch(seed)
    with contextlib.closing(switch), ranks(switch, 3, heard=False) as everyone:
        for number in range(5):
            reduce(everyone, [sparse(seed * 100 + number * 3 + rank, size) for rank in range(3)])
        assert sum(rank.engine.stats.retransmissions for rank in everyone) > 0


def test_a_timeout_names_the_ranks_that_are_awaited(ranks: Ranks, switch: UdpSwitch) -> None:
    with ranks(switch, 4) as everyone:
        for rank in everyone[:2]:
            rank.submit(sparse(1), "allreduce of mine", timeout=1.0)
        for rank in everyone[:2]:
            error = rank.error()
            assert isinstance(error, CollectiveTimeout)
            assert error.awaited == (2, 3)
            assert "allreduce of mine did not end within 1 s: waiting for ranks 2, 3" in str(error)
            assert str(rank.engine.failure) == str(error)
            with pytest.raises(CollectiveTimeout) as raised:
                rank.submit(sparse(1))
            assert (str(raised.value), raised.value.awaited) == (str(error), (2, 3))


def test_a_timeout_says_that_the_switch_is_silent(ranks: Ranks, switch: UdpSwitch) -> None:
    with ranks(switch, 1) as [rank]:
        switch.deaf = True
        rank.submit(sparse(1), timeout=0.3)
        error = rank.error()
        assert isinstance(error, CollectiveTimeout)
        assert error.awaited == ()
        assert re.search(rf"the switch at {switch.endpoint} has not answered for \d\.\d s", str(error))


def test_a_timeout_says_what_the_kernel_knows_of_the_switch(ranks: Ranks, switch: UdpSwitch) -> None:
    endpoint = switch.endpoint
    with ranks(switch, 1) as [rank]:
        switch.close()
        rank.submit(sparse(1), timeout=1.0)
        said = rf"the switch at {endpoint} has not answered for \d\.\d s \(Connection refused\)"
        assert re.search(said, str(rank.error()))


def test_time_limits_run_one_after_the_other(ranks: Ranks, switch: UdpSwitch) -> None:
    """Operations that together take longer than one's time limit are no failure, though they wait for one another.

    A machine that stands still meanwhile needs a try of longer limits.
    """
    each = 0.25
    for limit in (2.0, 8.0):
        count = int(limit / each) + 1
        with ranks(switch, 2) as [early, late]:
            for _ in range(count):
                early.submit(sparse(1), timeout=limit)
            for number in range(count):
                pass_time(each)
                late.submit(sparse(2))
                early.wait(number + 1)
            if early.ended == [("sum", None)] * count:
                return
    raise AssertionError(early.ended)


def test_an_abort_through_the_switch_ends_everything(ranks: Ranks, switch: UdpSwitch) -> None:
    with ranks(switch, 3) as everyone:
        for rank in everyone[:2]:
            rank.submit(sparse(1))
            rank.submit(sparse(2))
        switch.abort(members(3)[0], rank=2)
        for rank in everyone[:2]:
            rank.wait(2)
            for _, error in rank.ended:
                assert isinstance(error, JobAborted)
                assert error.rank == 2


def test_an_idle_engine_hears_of_an_abort_too(ranks: Ranks, switch: UdpSwitch) -> None:
    with ranks(switch, 2) as everyone:
        switch.abort(members(2)[0], rank=1)
        wait_until(lambda: everyone[0].engine.failure is not None, "the abort to arrive")
        with pytest.raises(JobAborted):
            everyone[0].submit(sparse(1))


def test_a_failure_from_outside_ends_everything(ranks: Ranks, switch: UdpSwitch) -> None:
    with ranks(switch, 2) as everyone:
        rank = everyone[0]
        rank.submit(sparse(1))
        cause = JobAborted("rank 1 went", rank=1)
        rank.engine.fail(cause)
        rank.engine.fail(P4ReduceError("later, and so not the cause"))
        rank.wait()
        assert repr(rank.ended) == repr([("sum", cause)])
        with pytest.raises(JobAborted, match="rank 1 went"):
            rank.submit(sparse(1))


def test_ranks_that_differ_all_learn_of_it(ranks: Ranks, switch: UdpSwitch) -> None:
    with ranks(switch, 3) as everyone:
        for rank, size in zip(everyone, (100, 100, 101), strict=True):
            rank.submit(sparse(1, size))
        for rank in everyone:
            assert isinstance(rank.error(), MismatchError)


def test_close_fails_what_is_under_way_and_ends_the_thread(ranks: Ranks, switch: UdpSwitch) -> None:
    with ranks(switch, 2) as [rank, _]:
        rank.submit(sparse(1))
        rank.engine.close(CLOSED)
        assert repr(rank.ended) == repr([("sum", CLOSED)])
        assert not rank.engine._thread.is_alive()
        rank.engine.close(CLOSED)
        with pytest.raises(P4ReduceError, match="closed by the test"):
            rank.submit(sparse(1))


@in_python
def test_an_error_of_the_worker_ends_everything(
    ranks: Ranks, switch: UdpSwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ranks(switch, 2) as [rank, _]:

        def broken(*_: object) -> None:
            raise ZeroDivisionError("a bug")

        rank.submit(sparse(1))
        wait_until(lambda: rank.engine.stats.packets_sent > 1, "the operation to be under way")
        monkeypatch.setattr(rank.worker, "receive", broken)
        rank.wait()
        for _, error in rank.ended:
            assert isinstance(error, P4ReduceError)
            assert "thread failed: ZeroDivisionError: a bug" in str(error)
            assert isinstance(error.__cause__, ZeroDivisionError)


def test_waits_without_being_busy(ranks: Ranks, switch: UdpSwitch) -> None:
    """Idle, it sleeps; while a straggler is awaited, it only asks now and then."""
    with ranks(switch, 2) as [rank, straggler]:
        before = time.process_time()
        pass_time(0.5)
        assert time.process_time() - before < 0.2
        rank.submit(sparse(1, 100))
        pass_time(1.0)
        assert rank.engine.stats.packets_sent < 100
        straggler.submit(sparse(2, 100))
        rank.wait()


@in_python
def test_packets_wait_while_the_kernels_buffer_is_full(
    ranks: Ranks, switch: UdpSwitch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The transport takes one packet a call."""
    transports = [open_transport("udp", switch.endpoint) for _ in range(2)]
    for transport in transports:
        monkeypatch.setattr(transport, "send", lambda payloads, send=transport.send: send(payloads[:1]))
    with ranks(switch, 2, transports) as everyone:
        reduce(everyone, [sparse(rank) for rank in range(2)])


def test_many_threads_may_submit(ranks: Ranks, switch: UdpSwitch) -> None:
    """There is one rank alone, because its threads may call in any order."""
    with ranks(switch, 1) as [rank]:
        arrays = [sparse(number, 300) for number in range(64)]
        expected = [array.copy() for array in arrays]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda start: [rank.submit(array) for array in arrays[start::8]], range(8)))
        rank.wait(64)
        assert all(error is None for _, error in rank.ended)
        for array, own in zip(arrays, expected, strict=True):
            np.testing.assert_allclose(array, own, rtol=1e-6)


def test_a_forked_process_is_told_that_it_has_no_engine(ranks: Ranks, switch: UdpSwitch) -> None:
    with ranks(switch, 1) as [rank]:

        def submit_and_close() -> str:
            error = error_of(lambda: rank.submit(sparse(1)))
            rank.engine.close(CLOSED)
            return f"process {os.getpid()}: {error}"

        belongs = rf"process (\d+): .*belongs to process {os.getpid()} and cannot be used in process \1"
        assert re.search(belongs, said_by_child(submit_and_close))
        rank.submit(sparse(1))
        rank.wait()
        assert rank.ended == [("sum", None)]


@pytest.mark.parametrize("kind", ["python", "c", *LONG_WITH_THREADS], indirect=True)
def test_a_half_without_an_answer_is_told_of(ranks: Ranks, switch: UdpSwitch, monkeypatch: pytest.MonkeyPatch) -> None:
    """And when the answer is that a rank has gone ahead, the job fails with that; not with what may be so."""
    monkeypatch.setattr("p4reduce.engine.engine.SILENCE_S", 0.5)
    with ranks(switch, 2) as everyone:
        asked: list[int] = []
        engine, seq = everyone[0].engine, members(2)[0].first_seq
        engine.on_silence = asked.append
        everyone[0].submit(np.ones(64, np.float32))
        pass_time(0.2)
        switch.deaf = True
        wait_until(lambda: asked, "the engine to ask", 30)
        assert asked[0] == 0
        engine.counted(0, seq + 1, MismatchError("cannot be known"))
        engine.counted(0, seq, MismatchError("is no news"))
        stays(lambda: engine.failure is None, "what cannot be known fails nothing", 0.1)
        engine.counted(0, seq + 2, MismatchError("rank 1 went ahead"))
        error = everyone[0].error()
        assert isinstance(error, MismatchError)
        assert str(error) == "rank 1 went ahead"
