# SPDX-License-Identifier: Apache-2.0
"""Tests of ranks that share memory, both in jobs of one host, which sends nothing, and in jobs of several hosts."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import p4reduce
from p4reduce.errors import CollectiveTimeout, JobAborted, MismatchError, P4ReduceError
from p4reduce.protocol import Operation
from p4reduce.protocol.fingerprint import fingerprint
from p4reduce.protocol.halves import narrowed
from p4reduce.protocol.numbers import Wire, reference_allreduce
from tests.support.hostlib.hosts_job import together
from tests.support.hostlib.local_engines import PendingOperation, without_standstill
from tests.support.hostlib.memory import PLACEMENTS, shared_kib
from tests.support.hostlib.sums import SEED, check_random_sums, check_residuals, random_array
from tests.support.waiting import wait_until

HOSTS = [pytest.param((0, 0, 0), id="one host"), pytest.param((0, 0, 0, 1), id="hosts")]


@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("placement", ["copied", "shared"])
@pytest.mark.parametrize("block_size", [1, 7, 32, 1024])
def test_blocks_of_any_size(block_size: int, placement: str, hosts: tuple[int, ...]) -> None:
    with together(hosts[1:], block_size) as job:
        sizes: Any = {"sizes": (0, 1, 300, 2048, 5001)} if len(hosts) == 4 else {}
        check_random_sums(job, 5, SEED + block_size, block_size, placement=PLACEMENTS[placement], **sizes)


@pytest.mark.parametrize("wire", ["int32", "int8"])
@pytest.mark.parametrize(
    ("hosts", "size", "density"),
    [
        *[((0, 0, 0), *of) for of in [(1000, 1.0), (200_000, 0.2), (200_000, 1.0)]],
        *[((0, 0, 1), *of) for of in [(100, 1.0), (20_000, 0.2), (20_000, 1.0)]],
    ],
)
def test_residuals(hosts: tuple[int, ...], size: int, density: float, wire: Wire) -> None:
    with together(hosts) as job:
        check_residuals(job, size, density, wire)


@pytest.mark.parametrize(
    ("hosts", "wide", "size", "density"),
    [
        *[((0, 0, 0), {0}, size, density) for size in (100, 100_000) for density in (0.1, 1.0)],
        ((0, 0, 1, 1), {1, 2}, 5000, 0.5),
    ],
)
def test_ranks_may_have_16_bit_floats_and_float32(
    hosts: tuple[int, ...], wide: set[int], size: int, density: float
) -> None:
    """A rank that multiplies its float16 tensor by a factor has it as float32."""
    generator = np.random.default_rng(SEED)
    narrow = [random_array(generator, np.dtype(np.float16), size, density) for _ in hosts]
    with np.errstate(all="ignore"):
        as_added = [each.astype(np.float32) for each in narrow]
        called = fingerprint(0, "float16:int16", "sum", size)
        expected = reference_allreduce(as_added, "sum", 64, "int16")
        values = [as_added[rank] if rank in wide else narrow[rank] for rank in range(len(hosts))]
        sums = {each.dtype: narrowed(expected, each.dtype) for each in narrow} | {expected.dtype: expected}
    operations = [Operation(each, dtype="float16", wire="int16") for each in values]
    assert all(called == fingerprint(0, each.numbers, "sum", size) for each in operations)
    with together(hosts) as job:
        job.reduce(operations)
    assert all(each.tobytes() == sums[each.dtype].tobytes() for each in values)


@pytest.mark.parametrize("hosts", HOSTS)
def test_many_at_once_from_several_threads(hosts: tuple[int, ...]) -> None:
    """Operations run in the order of their submission, whichever threads submit them."""
    one_host = len(set(hosts)) == 1
    sizes = [(37 * number) % 20_000 for number in range(60 if one_host else 40)]
    arrays = [[np.full(size, rank + 1, np.float32) for size in sizes] for rank in range(len(hosts))]
    with together(hosts) as job:

        def submit(rank: int) -> None:
            pending = [job.begin(rank, Operation(array)) for array in arrays[rank]]
            assert [each.wait() for each in pending] == [None] * len(sizes)

        with ThreadPoolExecutor(len(hosts)) as pool:
            submitting = [pool.submit(submit, rank) for rank in range(len(hosts))]

            def are_done() -> bool:
                assert not (one_host and job.engines[0].stats.packets_sent)
                assert all(engine.progress() for engine in job.engines)
                return all(one.done() for one in submitting)

            wait_until(are_done, "all operations to end", 120)
            assert [one.result() for one in submitting] == [None] * len(hosts)
        assert [engine.stats.operations for engine in job.engines] == [len(sizes)] * len(hosts)
    total = len(hosts) * (len(hosts) + 1) // 2
    assert all((array == total).all() for own in arrays for array in own)


@pytest.mark.parametrize(
    ("hosts", "missing", "named"),
    [((0, 0, 0), (2,), "rank 2"), ((0, 0, 0, 1), (2,), "rank 2"), ((0, 0, 0, 0), (2, 3), "ranks 2, 3")],
)
def test_who_has_not_come_is_named_after_the_time_limit(
    hosts: tuple[int, ...], missing: tuple[int, ...], named: str
) -> None:
    with together(hosts) as job:
        began = time.monotonic()
        other = job.begin(1, Operation(np.ones(100, np.float32)))
        pending = job.begin(0, Operation(np.ones(100, np.float32)), timeout=0.5)
        error = pending.wait()
        assert 0.4 < time.monotonic() - began < 5
        assert isinstance(error, CollectiveTimeout)
        assert error.awaited == missing
        assert without_standstill(error) == f"operation of 0 did not end within 0.5 s: waiting for {named} on this host"
        told = other.wait()
        assert isinstance(told, JobAborted)
        assert told.rank == 0
        assert str(told).startswith("rank 0 has failed: operation of 0 did not end within 0.5 s")
        with pytest.raises(CollectiveTimeout):
            job.begin(0, Operation(np.ones(1, np.float32)))


@pytest.mark.parametrize(("hosts", "late"), [((0, 0, 0), 1), *(((0, 0, 0, 1), late) for late in (0, 1, 3))])
def test_ranks_of_a_host_that_call_other_things_are_named(hosts: tuple[int, ...], late: int) -> None:
    """They are named although one rank is late, be it the leader or a rank of another host."""
    with together(hosts) as job:
        pending = {
            rank: job.begin(rank, Operation(np.ones(20_000_000 if rank == 2 else 100, np.float32)))
            for rank in range(len(hosts))
            if rank != late
        }
        errors = {rank: each.wait() for rank, each in pending.items() if rank < 3}
        assert all(isinstance(error, MismatchError) for error in errors.values()), errors
        first = min(errors)
        assert "rank 2 has <sum of 20000000 float32>" in str(errors[first])
        assert f"on this rank, {first}, it is <sum of 100 float32>" in str(errors[first])
        assert "has <sum of 100 float32>" in str(errors[2])
        if late < 3:
            assert isinstance(job.begin(late, Operation(np.ones(100, np.float32))).wait(), MismatchError)


@pytest.mark.parametrize(
    ("hosts", "fails", "allocate"),
    [((0, 0, 0), 0, np.ones), ((0, 0, 0), 0, p4reduce.shared_empty)]
    + [((0, 0, 0, 1), fails, np.ones) for fails in (0, 2)],
)
def test_a_failure_of_one_rank_ends_what_its_host_waits_for(hosts: tuple[int, ...], fails: int, allocate: Any) -> None:
    """They end even if no controller tells them."""
    with together(hosts) as job:
        here = range(2 if len(hosts) == 3 else 3)  # the third, or the other host, does not come
        pending = [job.begin(rank, Operation(allocate(100_000, np.float32))) for rank in here]
        assert job.engines[0].progress()
        began = time.monotonic()
        job.engines[fails].fail(P4ReduceError("it was left"))
        errors = [each.wait() for each in pending]
        assert time.monotonic() - began < 10
    assert str(errors.pop(fails)) == "it was left"
    for error in errors:
        assert isinstance(error, JobAborted)
        assert (error.rank, str(error)) == (fails, f"rank {fails} has failed: it was left")


@pytest.mark.parametrize("hosts", HOSTS)
def test_memory_is_given_back_when_an_engine_is_closed(hosts: tuple[int, ...]) -> None:
    with together(hosts) as job:
        job.reduce([Operation(np.ones(300_000, np.float32)) for _ in hosts])
        assert shared_kib() > 100
    assert shared_kib() == 0
    for engine in job.engines:
        assert engine.stats.operations == 1


@pytest.mark.parametrize("hosts", HOSTS)
def test_what_is_asked_after_the_end_is_answered(hosts: tuple[int, ...]) -> None:
    """Threads get answers even if they have the id that the engine's thread had."""
    with together(hosts) as job:
        job.reduce([Operation(np.ones(100, np.float32)) for _ in hosts])
    answers: list[str] = []
    barrier = threading.Barrier(20)

    def ask(_: int) -> None:
        barrier.wait()  # so that each has a number of its own
        for engine in job.engines:
            answers.append(engine.progress() + engine.link())
            with pytest.raises(P4ReduceError):
                engine.submit(Operation(np.ones(1, np.float32)), name="", timeout=1, on_end=PendingOperation())

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(ask, range(20)))
    assert len(answers) == 20 * len(hosts)
