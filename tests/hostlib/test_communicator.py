# SPDX-License-Identifier: Apache-2.0
"""Communicators over a model of the switch and a model of the controller, all in this process."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
from fake_session import FakeController, FakeSession
from in_process import error_of, join, together
from waiting import wait_until

from p4reduce import CollectiveTimeout, Communicator, JobAborted, JoinError, MismatchError, P4ReduceError
from p4reduce import UnsupportedDtype as Unsupported
from p4reduce.control.client import Ready, Tls
from p4reduce.engine import carrier
from p4reduce.engine.handle import Handle
from p4reduce.protocol.numbers import reference_allreduce


def session_of(communicator: Communicator) -> FakeSession:
    session = communicator._seat.session
    assert isinstance(session, FakeSession)
    return session


def test_allreduce_works_in_place_and_returns_the_tensor(pair: list[Communicator]) -> None:
    arrays = [np.random.default_rng(rank).standard_normal((7, 33)).astype(np.float32) for rank in range(2)]
    expected = reference_allreduce(arrays)
    results = together(pair, lambda each: each.allreduce(arrays[each.rank]))
    for array, result in zip(arrays, results, strict=True):
        assert result is array
        np.testing.assert_array_equal(array.view(np.int32), expected.view(np.int32))


def test_average_divides_by_the_number_of_ranks(pair: list[Communicator]) -> None:
    arrays = [np.full(100, value, np.float32) for value in (1, 4)]
    together(pair, lambda each: each.allreduce(arrays[each.rank], op="average"))
    assert (np.array(arrays) == 2.5).all()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32"])
def test_torch_tensors_of_every_dtype(pair: list[Communicator], dtype: str) -> None:
    torch = pytest.importorskip("torch", reason="needs torch")
    tensors = [torch.arange(12).reshape(3, 4).to(getattr(torch, dtype)).t() for _ in range(2)]
    together(pair, lambda each: each.allreduce(tensors[each.rank]))
    for tensor in tensors:
        assert tensor.dtype == getattr(torch, dtype)
        assert tensor.t().reshape(-1).tolist() == list(range(0, 24, 2))


def test_a_tensor_too_long_for_the_job_is_refused(
    controller: FakeController, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    assert controller is not None
    monkeypatch.setenv("P4REDUCE_BACKEND", "python")  # whose limit can be changed
    pair: list[Communicator] = request.getfixturevalue("pair")
    arrays = [np.ones(64 * 64, np.float32) for _ in pair]
    with monkeypatch.context() as patch:
        patch.setattr("p4reduce.protocol.scanning.MAX_STREAM_LENGTH", 1)
        for communicator, array in zip(pair, arrays, strict=True):
            with pytest.raises(ValueError, match="tensor has 64 blocks"):
                communicator.allreduce(array)
    together(pair, lambda each: each.allreduce(arrays[each.rank]))
    assert arrays[0].tolist() == [2.0] * 64 * 64


def test_an_average_of_integers_is_refused(pair: list[Communicator]) -> None:
    with pytest.raises(Unsupported, match="op='average' of int32"):
        pair[0].allreduce(np.ones(3, np.int32), op="average")


def test_wrong_calls_are_refused_and_change_nothing(pair: list[Communicator]) -> None:
    with pytest.raises(ValueError, match="op='product': accepted are sum, average"):
        pair[0].allreduce(np.ones(3, np.float32), op="product")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="timeout=0: must be a positive number of seconds"):
        pair[0].allreduce(np.ones(3, np.float32), timeout=0)
    with pytest.raises(Unsupported, match="float64"):
        pair[0].allreduce(np.ones(3))
    arrays = [np.ones(3, np.float32) for _ in pair]
    together(pair, lambda each: each.allreduce(arrays[each.rank]))
    assert arrays[0].tolist() == [2, 2, 2]


def test_handles(pair: list[Communicator]) -> None:
    arrays = [np.ones(100, np.float32) for _ in pair]
    called: list[object] = []
    early = pair[0].allreduce_async(arrays[0])
    early.add_done_callback(called.append)
    assert not early.done()
    assert "under way" in repr(early)
    with pytest.raises(TimeoutError, match=r"has not ended after waiting 0.3 s: .*rank 1"):
        early.wait(0.3)
    late = pair[1].allreduce_async(arrays[1])
    assert early.result(20) is arrays[0]
    assert late.result(20) is arrays[1]
    assert early.done()
    assert early.exception() is None
    wait_until(lambda: called == [early], "the callback")
    late.add_done_callback(called.append)
    wait_until(lambda: called == [early, late], "the callback at once")
    assert arrays[0].tolist() == [2.0] * 100


def test_a_callback_may_start_the_next_operation(pair: list[Communicator]) -> None:
    arrays = [np.ones(10, np.float32) for _ in pair]
    done = [threading.Event() for _ in pair]
    for communicator, array, event in zip(pair, arrays, done, strict=True):

        def again(_: object, communicator: Communicator = communicator, array: Any = array, event: Any = event) -> None:
            communicator.allreduce_async(array).add_done_callback(lambda _: event.set())

        communicator.allreduce_async(array).add_done_callback(again)
    for array, event in zip(arrays, done, strict=True):
        assert event.wait(20)
        assert array.tolist() == [4.0] * 10


def test_threads_may_share_a_communicator(controller: FakeController) -> None:
    assert controller is not None
    with join(1)[0] as communicator:

        def work(seed: int) -> bool:
            array = np.random.default_rng(seed).integers(-1000, 1000, 500).astype(np.int32)
            before = array.copy()
            for _ in range(5):
                communicator.allreduce(array)
            return bool((array == before).all())

        with ThreadPoolExecutor(16) as pool:
            assert all(pool.map(work, range(64)))
        assert communicator.stats().operations == 320


def test_who_is_waited_for_is_logged_long_before_the_time_limit(
    controller: FakeController, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Again whenever as much time has passed once more, so that a limit of minutes is no hundred lines."""
    assert controller is not None
    monkeypatch.setattr(carrier, "REMIND_AFTER_S", 0.5)
    one, other = join(2)
    for _ in range(2):
        caplog.clear()
        early = one.allreduce_async(np.ones(3, np.float32))
        wait_until(lambda: len(caplog.messages) == 3, "the third warning")
        for record in caplog.records:
            assert (record.name, record.levelname) == ("p4reduce.carrier", "WARNING")
            assert re.match(r"allreduce .* has not ended for \d s: waiting for rank 1", record.message), record.message
        ages = [record.created - caplog.records[0].created for record in caplog.records]
        assert 1.2 < ages[2] < 5
        other.allreduce(np.ones(3, np.float32))
        early.wait(20)
    for communicator in (one, other):
        communicator.close()


@pytest.mark.parametrize("engine", ["c", "python"])
def test_a_warning_that_cannot_be_logged_fails_collectives_and_leaves_none_waiting(
    engine: str, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> bool:
        raise ValueError("mine")

    assert controller is not None
    monkeypatch.setenv("P4REDUCE_BACKEND", engine)
    monkeypatch.setattr(carrier, "REMIND_AFTER_S", 0.1)
    one, other = join(2)
    carrier.log.addFilter(refuse)
    try:
        handle = one.allreduce_async(np.ones(3, np.float32))
        assert str(handle.exception(10)) == "the communicator's thread failed: ValueError: mine"
    finally:
        carrier.log.removeFilter(refuse)
    for communicator in (one, other):
        communicator.close()


def test_a_timeout_names_the_awaited_ranks_and_stays(controller: FakeController) -> None:
    assert controller is not None
    communicators = join(4)
    first = communicators[0]
    with pytest.raises(CollectiveTimeout, match=r"did not end within 0.5 s: waiting for ranks 1, 2, 3") as raised:
        first.allreduce(np.ones(3, np.float32), timeout=0.5)
    assert raised.value.awaited == (1, 2, 3)
    for call in (lambda: first.allreduce(np.ones(3, np.float32)), first.barrier):
        again = error_of(call)
        assert isinstance(again, CollectiveTimeout)
        assert (str(again), again.awaited) == (str(raised.value), (1, 2, 3))
    assert "did not end within" in repr(first)
    for communicator in communicators:
        communicator.close()
    assert session_of(first).job is not None
    assert 0 not in session_of(first).job.left, "a rank that failed does not leave as if all were well"  # type: ignore[union-attr]


def refused(communicator: Communicator) -> Handle[Any]:
    """A collective whose result this rank cannot take."""
    out = np.zeros(3, np.float32)
    handle = communicator.reduce_scatter_async(np.ones((2, 3), np.float32), out=out)
    out.flags.writeable = False
    return handle


def test_a_block_that_ends_waits_for_all_of_its_collectives_before_it_raises(pair: list[Communicator]) -> None:
    one, other = pair
    good: list[Handle[Any]] = []
    failed = threading.Event()

    def block() -> None:
        with one:
            for _ in range(8):
                refused(one).add_done_callback(lambda _: failed.set())
            good.append(one.allreduce_async(np.ones(3, np.float32)))

    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(error_of, block)
        for _ in range(8):
            other.reduce_scatter(np.ones((2, 3), np.float32), timeout=5)
        assert failed.wait(10)
        error = error_of(lambda: other.allreduce(np.ones(3, np.float32), timeout=5))
        assert error is None or isinstance(error, JobAborted)  # `one` had its result, and has ended the job
        assert str(ended.result(20)) == "assignment destination is read-only"
    assert good[0].exception() is None
    job = session_of(one).job
    assert job is not None
    assert one.rank not in job.left, "an exception ends the job for all ranks"


def test_a_group_goes_on_to_its_next_job_though_a_collective_ended_badly(controller: FakeController) -> None:
    """Its own work raises that, and on this rank alone."""
    torch = pytest.importorskip("torch", reason="needs torch")
    from p4reduce.distributed.options import Options
    from p4reduce.distributed.seats import LARGE_BYTES, Seats

    assert controller is not None
    store = torch.distributed.HashStore()
    seats = [Seats(store, rank, 2, "group", Options()) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda seat: seat.communicator(4, 5.0), seats)
        handle = refused(one)
        grown = pool.submit(seats[0].communicator, LARGE_BYTES, 5.0)
        other.reduce_scatter(np.ones((2, 3), np.float32))
        assert seats[1].communicator(LARGE_BYTES, 5.0) is not other
        assert grown.result(20) is not one
    assert isinstance(handle.exception(20), ValueError)
    for seat in seats:
        seat.close()


def test_an_abort_raises_in_every_call_under_way(controller: FakeController) -> None:
    assert controller is not None
    communicators = join(3)
    handles = [each.allreduce_async(np.ones(3, np.float32)) for each in communicators[:2]]
    session_of(communicators[0]).abort(rank=2)
    for handle in handles:
        with pytest.raises(JobAborted, match="rank 2 went") as raised:
            handle.wait()
        assert raised.value.rank == 2
        assert isinstance(handle.exception(), JobAborted)
    for communicator in communicators:
        with pytest.raises(JobAborted, match="rank 2 went"):
            communicator.allreduce(np.ones(3, np.float32))
        communicator.close()


def test_an_abort_while_joining_is_not_missed(controller: FakeController, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes after the job is ready and before the engine is there."""
    ready = FakeSession.wait_ready

    def ready_and_dead(session: FakeSession, hello: Callable[[], None], **_: object) -> Ready:
        told = ready(session, hello)
        session.abort(rank=0)
        return told

    assert controller is not None
    monkeypatch.setattr(FakeSession, "wait_ready", ready_and_dead)
    with join(1)[0] as communicator, pytest.raises(JobAborted):
        communicator.allreduce(np.ones(3, np.float32))


def test_ranks_that_call_different_things_are_told(pair: list[Communicator]) -> None:
    arrays = [np.ones(10, np.float32), np.ones(11, np.float32)]
    errors = together(pair, lambda each: error_of(lambda: each.allreduce(arrays[each.rank])))
    assert [type(error) for error in errors] == [MismatchError, MismatchError]


def test_sum_and_average_are_different_things(pair: list[Communicator]) -> None:
    ops = ("sum", "average")
    errors = together(pair, lambda each: error_of(lambda: each.allreduce(np.ones(9, np.float32), ops[each.rank])))  # type: ignore[arg-type]
    assert [type(error) for error in errors] == [MismatchError, MismatchError]


def test_barrier(pair: list[Communicator]) -> None:
    for _ in range(3):
        together(pair, lambda each: each.barrier())
    with pytest.raises(CollectiveTimeout) as raised:
        pair[0].barrier(timeout=0.1)
    assert raised.value.awaited == (1,)
    with pytest.raises(CollectiveTimeout):
        pair[0].allreduce(np.ones(3, np.float32))


def test_leaving_the_block_waits_for_what_is_under_way(controller: FakeController) -> None:
    assert controller is not None
    communicators = join(2)
    arrays = [np.ones(1000, np.float32) for _ in communicators]

    def work(communicator: Communicator) -> None:
        with communicator:
            communicator.allreduce_async(arrays[communicator.rank])

    together(communicators, work)
    assert arrays[0].tolist() == [2.0] * 1000
    assert session_of(communicators[0]).job.left == {0, 1}  # type: ignore[union-attr]


def test_an_error_in_the_block_ends_the_job_for_all(pair: list[Communicator]) -> None:
    with pytest.raises(ZeroDivisionError), pair[0]:
        raise ZeroDivisionError
    job = session_of(pair[0]).job
    assert job is not None
    assert (job.left, job.closed) == (set(), {0})
    with pytest.raises(JobAborted, match="rank 0 has failed: it ended the job"):
        pair[1].allreduce(np.ones(3, np.float32))
    for communicator in pair:
        communicator.close()
    assert (job.left, job.closed) == (set(), {0, 1})


def test_a_program_that_ends_well_leaves_well(pair: list[Communicator]) -> None:
    with pytest.raises(SystemExit), pair[1]:
        raise SystemExit(0)
    job = session_of(pair[1]).job
    assert job is not None
    assert (job.left, job.closed) == ({1}, {1})


def test_close_fails_what_is_under_way(pair: list[Communicator]) -> None:
    handle = pair[0].allreduce_async(np.ones(3, np.float32))
    pair[0].close()
    pair[0].close()
    with pytest.raises(P4ReduceError, match="the communicator is closed"):
        handle.wait()
    with pytest.raises(P4ReduceError, match="the communicator is closed"):
        pair[0].allreduce(np.ones(3, np.float32))
    assert "the communicator is closed" in repr(pair[0])


def test_an_interrupt_leaves_the_communicator_closable(pair: list[Communicator]) -> None:
    def interrupt() -> None:
        wait_until(lambda: pair[0].stats().packets_sent > 0, "the allreduce to begin")
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt), pair[0]:
        pair[0].allreduce(np.ones(3, np.float32))
    thread.join()
    assert not pair[0]._engine._thread.is_alive()


def test_a_forgotten_communicator_leaves(controller: FakeController) -> None:
    assert controller is not None
    communicator = join(1)[0]
    communicator.allreduce(np.ones(3, np.float32))
    session, thread, gone = session_of(communicator), communicator._engine._thread, weakref.ref(communicator)
    del communicator
    gc.collect()
    assert gone() is None
    wait_until(lambda: not thread.is_alive(), "the thread to end")
    assert session.job.left == {0}  # type: ignore[union-attr]


def test_a_forked_child_neither_uses_nor_ends_its_parents_place(pair: list[Communicator]) -> None:
    child = os.fork()
    if child == 0:
        error = error_of(lambda: pair[0].allreduce(np.ones(3, np.float32)))
        pair[0].close()
        left = session_of(pair[0]).job.left  # type: ignore[union-attr]
        os._exit(0 if isinstance(error, P4ReduceError) and "forked" in str(error) and not left else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    arrays = [np.ones(3, np.float32) for _ in pair]
    together(pair, lambda each: each.allreduce(arrays[each.rank]))
    assert arrays[0].tolist() == [2, 2, 2]


def test_an_error_of_the_users_tensor_is_its_own(pair: list[Communicator]) -> None:
    """The engine lives on: the memory of a tensor that is copied was taken away between call and result."""
    torch = pytest.importorskip("torch", reason="needs torch")
    tensors = [torch.ones(6, dtype=torch.float16) for _ in pair]
    handle = pair[0].allreduce_async(tensors[0], factor=2)
    tensors[0].untyped_storage().resize_(0)
    pair[1].allreduce(tensors[1])
    with pytest.raises(RuntimeError):
        handle.wait()
    arrays = [np.ones(3, np.float32) for _ in pair]
    together(pair, lambda each: each.allreduce(arrays[each.rank]))
    assert arrays[0].tolist() == [2, 2, 2]


def test_stats_count_what_was_done(pair: list[Communicator]) -> None:
    arrays = [np.zeros(64 * 100, np.float32) for _ in pair]
    arrays[0][:64] = 1
    arrays[1][64:192] = 1
    together(pair, lambda each: each.allreduce(arrays[each.rank]))
    first, second = (each.stats() for each in pair)
    assert (first.operations, first.blocks_sent, first.blocks_skipped) == (1, 1, 99)
    assert (second.operations, second.blocks_sent, second.blocks_skipped) == (1, 2, 98)
    assert first.blocks_received == second.blocks_received == 3
    assert 0 < first.seconds < 20
    assert first.rounds > 0
    assert first.bytes_sent > 256
    assert first.packets_sent > 0
    with pytest.raises(FrozenInstanceError):
        first.rounds = 0  # type: ignore[misc]


@pytest.mark.parametrize(("prompt", "well"), [(False, False), (True, True)])
def test_a_program_that_an_exception_has_ended_does_not_leave_well(
    pair: list[Communicator], monkeypatch: pytest.MonkeyPatch, prompt: bool, well: bool
) -> None:
    monkeypatch.setattr(sys, "last_value", ValueError("a fault of the program's"), raising=False)
    if prompt:
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    pair[0]._finalizer()  # as at the interpreter's exit
    job = session_of(pair[0]).job
    assert job is not None
    assert (0 in job.left, 0 in job.closed) == (well, True)


def test_says_who_it_is(pair: list[Communicator]) -> None:
    assert repr(pair[1]) == "<Communicator: rank 1 of 2 in job 'default' at 127.0.0.1:7700, udp>"
    assert (pair[1].rank, pair[1].world_size, pair[1].block_size, pair[1].stats().threads) == (1, 2, 64, 1)


def test_says_how_many_threads_it_has(pair: list[Communicator]) -> None:
    seat = pair[1]._seat
    pair[1]._seat = replace(seat, membership=replace(seat.membership, slots=4, more_jobs=((2, 1), (3, 1))))
    assert repr(pair[1]).endswith("at 127.0.0.1:7700, udp, 3 threads>")
    assert pair[1].stats().threads == 3
    pair[1]._seat = replace(pair[1]._seat, local=True)
    assert repr(pair[1]).endswith("at 127.0.0.1:7700, in its host's memory>")
    assert pair[1].stats().threads == 1


def test_jobs_do_not_meet(controller: FakeController) -> None:
    assert controller is not None
    jobs = {name: join(2, job=name) for name in ("one", "two")}
    arrays = {name: [np.full(500, number, np.float32) for _ in range(2)] for number, name in enumerate(jobs, 1)}
    everyone = [(name, each) for name, communicators in jobs.items() for each in communicators]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda pair: pair[1].allreduce(arrays[pair[0]][pair[1].rank]), everyone))
    assert arrays["one"][0].tolist() == [2.0] * 500
    assert arrays["two"][0].tolist() == [4.0] * 500
    for _, communicator in everyone:
        communicator.close()


def test_settings_come_from_the_environment(controller: FakeController, monkeypatch: pytest.MonkeyPatch) -> None:
    assert controller is not None
    environment = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "P4REDUCE_CONTROLLER": "10.0.0.9:7700",
        "P4REDUCE_TRANSPORT": "udp",
        "P4REDUCE_TOKEN": "secret",
        "P4REDUCE_TLS_CA": "/etc/ca.pem",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with Communicator() as communicator:
        session = session_of(communicator)
        assert (communicator.rank, communicator.world_size) == (0, 1)
        assert session.address == "10.0.0.9:7700"
        assert session.options["token"] == "secret"
        assert session.options["tls"] == Tls(ca="/etc/ca.pem")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 4, "world_size": 4}, r"rank=4: must be an integer from 0 to 3"),
        ({"rank": -1, "world_size": 4}, r"rank=-1: must be an integer from 0 to 3"),
        ({"rank": True, "world_size": 4}, r"rank=True: must be an integer from 0 to 3"),
        ({"rank": 0, "world_size": 256}, r"world_size=256: must be an integer from 1 to 255"),
        ({"rank": 0, "world_size": "2"}, r"world_size='2': must be an integer from 1 to 255"),
        ({"world_size": 2}, r"rank is not given, and neither is the environment variable RANK"),
        ({"rank": 0, "world_size": 1, "slots": -1}, r"slots=-1: must be an integer from 0 to 32768"),
        ({"rank": 0, "world_size": 1, "job": ""}, r"job='': must be a non-empty string"),
        ({"rank": 0, "world_size": 1, "transport": "tcp"}, r"transport='tcp': accepted are udp, raw, scapy"),
        ({"rank": 0, "world_size": 1, "timeout": float("nan")}, r"timeout=nan: must be a positive number of seconds"),
        ({"rank": 0, "world_size": 1, "controller": ""}, r"controller='': must be a non-empty string"),
    ],
)
def test_wrong_arguments_are_named(
    options: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch, controller: FakeController
) -> None:
    for variable in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(variable, raising=False)
    with pytest.raises(ValueError, match=message):
        Communicator(**options)
    assert not controller.jobs


def test_a_number_in_the_environment_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "zero")
    with pytest.raises(ValueError, match="RANK='zero': must be an integer from 0 to 3"):
        Communicator(world_size=4)


def test_a_failed_join_gives_everything_back(controller: FakeController) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(JoinError, match="rank 1 never came"):
        Communicator(rank=0, world_size=2, timeout=0.2)
    assert controller.jobs["default"].closed == {0}
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_closing_gives_everything_back(controller: FakeController) -> None:
    assert controller is not None
    descriptors = len(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    for communicator in join(2):
        communicator.close()
    assert len(os.listdir("/proc/self/fd")) == descriptors
    wait_until(lambda: threading.active_count() == threads, "the threads to end")


def test_statistics_cost_no_memory(pair: list[Communicator]) -> None:
    """A monitor may ask for them for weeks."""
    communicator = pair[0]
    communicator.stats()
    before = sys.getallocatedblocks()
    for _ in range(1000):
        communicator.stats()
    assert sys.getallocatedblocks() - before < 100
