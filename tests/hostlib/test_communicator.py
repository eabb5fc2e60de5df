# SPDX-License-Identifier: Apache-2.0
"""Communicators over a model of the switch and a model of the controller, all in this process."""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest

from p4reduce import CollectiveTimeout, Communicator, JobAborted, JoinError, P4ReduceError
from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.client import Tls
from p4reduce.engine import engine as base
from p4reduce.engine.handle import Handle
from tests.support.forking import said_by_child
from tests.support.hostlib import in_process
from tests.support.hostlib.fake_session import FakeController, FakeJob, FakeSession
from tests.support.hostlib.in_process import Join, error_of, together
from tests.support.hostlib.udp_switch import UdpSwitch
from tests.support.loopbacks import LOOPBACKS
from tests.support.waiting import wait_until


def session_of(communicator: Communicator) -> FakeSession:
    session = communicator._running.session
    assert isinstance(session, FakeSession)
    return session


def job_of(communicator: Communicator) -> FakeJob:
    job = session_of(communicator).job
    assert job is not None
    return job


def test_a_tensor_too_long_for_the_job_is_refused(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_BACKEND", "python")  # whose limit can be changed
    pair = join(2)
    arrays = [np.ones(64 * 64, np.float32) for _ in pair]
    with monkeypatch.context() as patch:
        patch.setattr("p4reduce.protocol.scanning.MAX_STREAM_LENGTH", 1)
        for communicator, array in zip(pair, arrays, strict=True):
            with pytest.raises(ValueError, match="tensor has 64 blocks"):
                communicator.allreduce(array)
    together(pair, lambda each: each.allreduce(arrays[each.rank]))
    assert arrays[0].tolist() == [2.0] * 64 * 64


def test_handles(pair: list[Communicator]) -> None:
    arrays = [np.ones(100, np.float32) for _ in pair]
    called: list[object] = []
    early = pair[0].allreduce_async(arrays[0])
    early.add_done_callback(called.append)
    assert not early.done()
    assert "under way" in repr(early)
    said = re.compile(r"has not ended after waiting 0.3 s: .*rank 1")
    wait_until(lambda: said.search(str(error_of(lambda: early.wait(0.3)))), "the switch to tell who is awaited")
    assert isinstance(error_of(lambda: early.wait(0.01)), TimeoutError)
    late = pair[1].allreduce_async(arrays[1])
    assert early.result(20) is arrays[0]
    assert late.result(20) is arrays[1]
    assert early.done()
    assert early.exception() is None
    wait_until(lambda: called == [early], "the callback")
    late.add_done_callback(called.append)
    wait_until(lambda: called == [early, late], "the callback at once")
    assert arrays[0].tolist() == [2.0] * 100


def test_threads_may_share_a_communicator(join: Join) -> None:
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
    join: Join, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log repeats it whenever the waiting time has doubled, so a limit of minutes gives few lines."""
    monkeypatch.setattr(base, "REMIND_AFTER_S", 0.2)
    one, other = join(2)
    for _ in range(2):
        caplog.clear()
        begun = time.time()
        early = one.allreduce_async(np.ones(3, np.float32))
        wait_until(lambda: len(caplog.messages) > 2 and "waiting for rank 1" in caplog.messages[-1], "three warnings")
        for number, record in enumerate(caplog.records):
            assert (record.name, record.levelname) == ("p4reduce.engine", "WARNING")
            # On a busy machine, the switch may take so long that the first lines name it.
            assert re.match(r"allreduce .* has not ended for \d s: (waiting for rank 1|the switch at )", record.message)
            assert record.created - begun > 0.2 * 2**number - 0.05
        other.allreduce(np.ones(3, np.float32))
        early.wait(20)


def test_a_warning_that_cannot_be_logged_fails_collectives_and_leaves_none_waiting(
    each_pair: list[Communicator], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> bool:
        raise ValueError("mine")

    monkeypatch.setattr(base, "REMIND_AFTER_S", 0.1)
    base.log.addFilter(refuse)
    try:
        handle = each_pair[0].allreduce_async(np.ones(3, np.float32))
        assert str(handle.exception(10)) == "the communicator's thread failed: ValueError: mine"
    finally:
        base.log.removeFilter(refuse)


@pytest.mark.parametrize(
    "call", [lambda each, **limit: each.allreduce(np.ones(3, np.float32), **limit), Communicator.barrier]
)
def test_a_timeout_names_the_awaited_ranks_and_stays(join: Join, call: Any) -> None:
    communicators = join(4)
    first = communicators[0]
    for _ in range(3):
        together(communicators, call)
    with pytest.raises(CollectiveTimeout, match=r"did not end within 1 s: waiting for ranks 1, 2, 3") as raised:
        call(first, timeout=1)
    assert raised.value.awaited == (1, 2, 3)
    for later in (lambda: first.allreduce(np.ones(3, np.float32)), first.barrier):
        again = error_of(later)
        assert isinstance(again, CollectiveTimeout)
        assert (str(again), again.awaited) == (str(raised.value), (1, 2, 3))
    assert "did not end within" in repr(first)
    for communicator in communicators:
        communicator.close()
    assert 0 not in job_of(first).left, "a rank that failed does not leave as if all were well"


@pytest.mark.usefixtures("each_engine")
def test_a_switch_that_is_reached_by_ipv6(controller: FakeController, join: Join) -> None:
    with closing(UdpSwitch(LOOPBACKS[1])) as switch:
        controller.switch = switch
        pair = join(2)
        arrays = [np.arange(5000, dtype=np.float32) for _ in pair]
        together(pair, lambda each: each.allreduce(arrays[each.rank]))
        for array in arrays:
            np.testing.assert_array_equal(array, 2 * np.arange(5000, dtype=np.float32))
        switch.deaf = True
        address = re.escape(f"[::1]:{switch.endpoint.udp_port}")
        with pytest.raises(CollectiveTimeout, match=rf"the switch at {address} has not answered .*this host \(::1\)"):
            pair[0].barrier(timeout=1)


def refused(communicator: Communicator) -> Handle[Any]:
    """Start a collective whose result this rank cannot store, and return its handle."""
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
    assert one.rank not in job_of(one).left, "an exception ends the job for all ranks"


@pytest.mark.usefixtures("controller")
def test_a_group_goes_on_to_its_next_job_though_a_collective_ended_badly() -> None:
    """The collective's own work raises the error, on this rank alone."""
    torch = pytest.importorskip("torch", reason="needs torch")
    from p4reduce.distributed.group_jobs import LARGE_BYTES, GroupJobs
    from p4reduce.distributed.options import Options

    store = torch.distributed.HashStore()
    jobs = [GroupJobs(store, rank, 2, "group", Options()) for rank in range(2)]
    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(lambda one: one.communicator(4, 5.0), jobs)
        handle = refused(one)
        grown = pool.submit(jobs[0].communicator, LARGE_BYTES, 5.0)
        other.reduce_scatter(np.ones((2, 3), np.float32))
        assert jobs[1].communicator(LARGE_BYTES, 5.0) is not other
        assert grown.result(20) is not one
    assert isinstance(handle.exception(20), ValueError)
    for one in jobs:
        one.close()


def test_an_abort_while_joining_is_not_missed(join: Join, monkeypatch: pytest.MonkeyPatch) -> None:
    """The abort comes after the job is ready and before the engine is there."""
    ready = FakeSession.wait_ready

    def ready_and_dead(session: FakeSession, hello: Callable[[], None], **_: object) -> pb.Ready:
        told = ready(session, hello)
        session.abort(rank=0)
        return told

    monkeypatch.setattr(FakeSession, "wait_ready", ready_and_dead)
    with join(1)[0] as communicator, pytest.raises(JobAborted):
        communicator.allreduce(np.ones(3, np.float32))


def test_leaving_the_block_waits_for_what_is_under_way(join: Join) -> None:
    communicators = join(2)
    arrays = [np.ones(1000, np.float32) for _ in communicators]

    def work(communicator: Communicator) -> None:
        with communicator:
            communicator.allreduce_async(arrays[communicator.rank])

    together(communicators, work)
    assert arrays[0].tolist() == [2.0] * 1000
    assert job_of(communicators[0]).left == {0, 1}


def test_an_error_in_the_block_ends_the_job_for_all(pair: list[Communicator]) -> None:
    with pytest.raises(ZeroDivisionError), pair[0]:
        raise ZeroDivisionError
    job = job_of(pair[0])
    assert (job.left, job.closed) == (set(), {0})
    with pytest.raises(JobAborted, match="rank 0 has failed: it ended the job"):
        pair[1].allreduce(np.ones(3, np.float32))
    for communicator in pair:
        communicator.close()
    assert (job.left, job.closed) == (set(), {0, 1})


def test_a_program_that_ends_well_leaves_well(pair: list[Communicator]) -> None:
    with pytest.raises(SystemExit), pair[1]:
        raise SystemExit(0)
    assert (job_of(pair[1]).left, job_of(pair[1]).closed) == ({1}, {1})


@pytest.mark.usefixtures("controller")
def test_a_forgotten_communicator_leaves() -> None:
    communicator = in_process.join(1)[0]  # which nobody else keeps
    communicator.allreduce(np.ones(3, np.float32))
    job, thread, gone = job_of(communicator), communicator._engine._thread, weakref.ref(communicator)
    del communicator
    gc.collect()
    assert gone() is None
    wait_until(lambda: not thread.is_alive(), "the thread to end")
    assert job.left == {0}


def test_a_forked_child_neither_uses_nor_ends_its_parents_place(pair: list[Communicator]) -> None:
    def use_and_close() -> str:
        error = error_of(lambda: pair[0].allreduce(np.ones(3, np.float32)))
        pair[0].close()
        return f"{error}; left: {job_of(pair[0]).left}"

    said = said_by_child(use_and_close)
    assert "was forked" in said
    assert said.endswith("left: set()")
    assert_sums(pair)


def assert_sums(pair: list[Communicator]) -> None:
    for result in together(pair, lambda each: each.allreduce(np.ones(3, np.float32))):
        assert result.tolist() == [2, 2, 2]


def test_a_child_forked_while_another_thread_calls_is_told_so(pair: list[Communicator]) -> None:
    """The child does not wait for the call of a thread that it does not have."""
    arrays = [np.ones(64, np.float32) for _ in pair]
    for _ in range(2):  # the second is like the first, and is executed as it was prepared
        together(pair, lambda each: each.allreduce(arrays[each.rank]))
    first, other = pair
    calling = threading.Thread(target=first.allreduce, args=[arrays[0]])
    calling.start()
    wait_until(lambda: first._engine.busy, "the call begins")
    said = said_by_child(lambda: first.allreduce(arrays[0]))
    other.allreduce(arrays[1])
    calling.join(10.0)
    assert "was forked" in said


def test_an_error_of_the_users_tensor_is_its_own(pair: list[Communicator]) -> None:
    """The engine lives on: the memory of a tensor that is copied was taken away between call and result."""
    torch = pytest.importorskip("torch", reason="needs torch")
    tensors = [torch.ones(6, dtype=torch.float16) for _ in pair]
    handle = pair[0].allreduce_async(tensors[0], factor=2)
    tensors[0].untyped_storage().resize_(0)
    pair[1].allreduce(tensors[1])
    with pytest.raises(RuntimeError):
        handle.wait()
    assert_sums(pair)


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
    assert (0 in job_of(pair[0]).left, 0 in job_of(pair[0]).closed) == (well, True)


def test_says_who_it_is_and_how_many_threads_it_has(pair: list[Communicator]) -> None:
    assert repr(pair[1]) == "<Communicator: rank 1 of 2 in job 'default' at 127.0.0.1:7700, udp>"
    assert (pair[1].rank, pair[1].world_size, pair[1].block_size, pair[1].stats().threads) == (1, 2, 64, 1)
    running = pair[1]._running
    pair[1]._running = replace(running, membership=replace(running.membership, slots=4, more_jobs=((2, 1), (3, 1))))
    assert repr(pair[1]).endswith("at 127.0.0.1:7700, udp, 3 threads>")
    assert pair[1].stats().threads == 3
    pair[1]._running = replace(pair[1]._running, local=True)
    assert repr(pair[1]).endswith("at 127.0.0.1:7700, in its host's memory>")
    assert pair[1].stats().threads == 1


@pytest.mark.usefixtures("controller")
def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "P4REDUCE_CONTROLLER": "10.0.0.9:7700",
        "P4REDUCE_TRANSPORT": "udp",
        "P4REDUCE_TOKEN": "secret",
        "P4REDUCE_TLS_CA": "/etc/ca.pem",
    }.items():
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
        ({"rank": 0, "world_size": 4097}, r"world_size=4097: must be an integer from 1 to 4096"),
        ({"rank": 0, "world_size": "2"}, r"world_size='2': must be an integer from 1 to 4096"),
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


def test_a_failed_join_gives_everything_back(controller: FakeController) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(JoinError, match="rank 1 never came"):
        Communicator(rank=0, world_size=2, timeout=0.2)
    assert controller.jobs["default"].closed == {0}
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_closing_gives_everything_back(join: Join) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    threads = threading.active_count()
    for communicator in join(2):
        communicator.close()
    wait_until(lambda: len(os.listdir("/proc/self/fd")) == descriptors, "the descriptors to be closed")
    wait_until(lambda: threading.active_count() == threads, "the threads to end")


@pytest.mark.usefixtures("each_engine")
@pytest.mark.parametrize("last", [0, 1])
def test_the_engine_goes_on_until_all_ranks_leave_but_begins_nothing(
    join: Join, monkeypatch: pytest.MonkeyPatch, last: int
) -> None:
    """Only the last rank of a process lingers, since it alone waits for others."""
    ranks = join(2)
    lingering = []

    def leave(session: FakeSession, *, lingers: bool, **how: Any) -> None:
        one = ranks[session.rank]
        lingering.append((session.rank, lingers))
        for call in (one.allreduce, one.allreduce_async):
            with pytest.raises(P4ReduceError, match="the communicator is closed"):
                call(np.ones(100, np.float32))
        assert not one.failed
        original(session, **how)

    original = FakeSession.leave
    monkeypatch.setattr(FakeSession, "leave", leave)
    for rank in (1 - last, last):
        ranks[rank].close()
        assert ranks[rank].failed
    assert lingering == [(1 - last, False), (last, True)]


def test_statistics_cost_no_memory(pair: list[Communicator]) -> None:
    """A monitor may ask for them for weeks."""
    communicator = pair[0]
    communicator.stats()
    before = sys.getallocatedblocks()
    for _ in range(1000):
        communicator.stats()
    assert sys.getallocatedblocks() - before < 100
