# SPDX-License-Identifier: Apache-2.0
"""Sums in shared memory are those of the reference, bit for bit; and what goes wrong is said."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

import p4reduce
from p4reduce import settings
from p4reduce.errors import CollectiveTimeout, JobAborted, MismatchError, P4ReduceError
from p4reduce.local.engine import LocalEngine
from p4reduce.local.host import COPIES, digest
from p4reduce.protocol import Operation
from p4reduce.protocol.fingerprint import fingerprint
from p4reduce.protocol.halves import narrowed
from p4reduce.protocol.numbers import Wire, reference_allreduce

from .engines import NoTransport, memberships, ranks
from .starving import Reuses, starved, thread_of
from .sums import DTYPES, SEED, check_random_sums, check_residuals, random_array


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_sums_are_the_references(world_size: int) -> None:
    with ranks(world_size) as job:
        assert "process_vm_readv" in job.engines[0].link()
        check_random_sums(job, 10, SEED)


@pytest.mark.parametrize("block_size", [1, 7, 32, 1024])
def test_blocks_of_any_size(block_size: int) -> None:
    with ranks(2, block_size) as job:
        check_random_sums(job, 5, SEED + block_size, block_size)


def test_by_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COPIES, "1")
    with ranks(3) as job:
        assert "copies" in job.engines[0].link()
        check_random_sums(job, 8, SEED + 100)
        arrays = [random_array(np.random.default_rng(rank), DTYPES[0], 1_500_001, 0.5) for rank in range(3)]
        operations = [Operation(array.copy()) for array in arrays]
        job.reduce(operations)
        with np.errstate(all="ignore"):
            expected = reference_allreduce(arrays)
        assert all(operation.data.tobytes() == expected.tobytes() for operation in operations)


@pytest.mark.parametrize("begin", [0, 1, 4, 15])
def test_large_tensors_wherever_they_begin_in_a_cache_line(begin: int) -> None:
    """Their sums are written past the caches, and nothing beside them is."""
    size, line, beside = (8 << 20) // 4 + 77, 16, np.float32(7)
    arrays = [random_array(np.random.default_rng(rank), np.dtype(np.float32), size, 0.1) for rank in range(3)]
    with np.errstate(all="ignore"):
        expected = reference_allreduce(arrays)
    rooms = [np.full(size + 3 * line, beside) for _ in arrays]
    places = [-room.ctypes.data // 4 % line + begin for room in rooms]
    given = [room[place : place + size] for room, place in zip(rooms, places, strict=True)]
    for own, array in zip(given, arrays, strict=True):
        own[:] = array
    with ranks(3) as job:
        job.reduce([Operation(own) for own in given])
    for room, place, own in zip(rooms, places, given, strict=True):
        assert own.ctypes.data % 64 == 4 * begin
        assert own.tobytes() == expected.tobytes()
        assert (room[:place] == beside).all()
        assert (room[place + size :] == beside).all()


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("world_size", [2, 4, 17, 40])
def test_many_sums(world_size: int, seed: int) -> None:
    with ranks(world_size) as job:
        check_random_sums(job, 15, SEED + 1000 * seed)


@pytest.mark.parametrize("size", [100, 100_000])
@pytest.mark.parametrize("density", [0.1, 1.0])
def test_ranks_may_have_16_bit_floats_and_float32(size: int, density: float) -> None:
    """Of the same tensor: who multiplies it with a factor has it as float32."""
    random = np.random.default_rng(SEED)
    narrow = [random_array(random, np.dtype(np.float16), size, density) for _ in range(3)]
    with np.errstate(all="ignore"):
        wide = narrow[0].astype(np.float32)
        called = fingerprint(0, "float16:int16", "sum", size)
        expected = reference_allreduce([wide, *(each.astype(np.float32) for each in narrow[1:])], "sum", 64, "int16")
    with ranks(3) as job:
        operations = [Operation(each, dtype="float16", wire="int16") for each in (wide, narrow[1], narrow[2])]
        assert called == fingerprint(0, operations[0].numbers, "sum", size)
        job.reduce(operations)
    assert wide.tobytes() == expected.tobytes()
    with np.errstate(all="ignore"):
        for other in narrow[1:]:
            assert other.tobytes() == narrowed(expected, np.dtype(np.float16)).tobytes()


@pytest.mark.parametrize("wire", ["int32", "int8"])
@pytest.mark.parametrize(("size", "density"), [(1000, 1.0), (200_000, 0.2), (200_000, 1.0)])
def test_residuals(size: int, density: float, wire: Wire) -> None:
    with ranks(3) as job:
        check_residuals(job, size, density, wire, SEED)


@pytest.mark.parametrize("size", [500, 200_000])
def test_what_is_only_read_stays_as_it_is(size: int) -> None:
    arrays = [np.random.default_rng(rank).standard_normal(size).astype(np.float32) for rank in range(3)]
    given = [array.copy() for array in arrays]
    given[1].flags.writeable = False
    with ranks(3) as job:
        job.reduce([Operation(array, read_only=rank == 1) for rank, array in enumerate(given)])
    expected = reference_allreduce(arrays)
    assert given[1].tobytes() == arrays[1].tobytes()
    assert given[0].tobytes() == given[2].tobytes() == expected.tobytes()


@pytest.mark.parametrize("zeros", ["first", "sent"])
def test_zeros_that_count(zeros: Any) -> None:
    arrays = [np.zeros(100_000, np.float32) for _ in range(2)]
    arrays[0][64 * 100] = 1
    with ranks(2) as job:
        job.reduce([Operation(array, zeros=zeros) for array in arrays])
        blocks = -(-100_000 // 64)
        stats = job.engines[1].stats
        assert stats.blocks_sent == (blocks if zeros == "sent" else 32)
        assert stats.blocks_sent + stats.blocks_skipped == blocks
    assert arrays[0].tobytes() == arrays[1].tobytes()
    assert np.flatnonzero(arrays[0]).tolist() == [6400]


def test_many_at_once_from_several_threads() -> None:
    """Operations go in the order of their submission, whoever submits them."""
    sizes = [(37 * number) % 20_000 for number in range(60)]
    arrays = [[np.full(size, rank + 1, np.float32) for size in sizes] for rank in range(3)]
    with ranks(3) as job:

        def submit(rank: int) -> None:
            endings = [job.begin(rank, Operation(array)) for array in arrays[rank]]
            assert [ending.wait() for ending in endings] == [None] * len(sizes)

        threads = [threading.Thread(target=submit, args=(rank,)) for rank in range(3)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert job.engines[0].stats.packets_sent == 0
            assert job.engines[1].progress()
            time.sleep(0.001)
        assert job.engines[2].stats.operations == len(sizes)
    assert all((array == 6).all() for own in arrays for array in own)


def test_ranks_that_call_other_things_are_named() -> None:
    with ranks(3) as job:
        endings = [
            job.begin(0, Operation(np.ones(100, np.float32))),
            job.begin(2, Operation(np.ones(2_000_000, np.float32))),
        ]
        errors = [ending.wait() for ending in endings]  # though rank 1 has not come
        late = job.begin(1, Operation(np.ones(100, np.float32))).wait()
    assert all(isinstance(error, MismatchError) for error in [*errors, late])
    assert "rank 2 has <sum of 2000000 float32>" in str(errors[0])
    assert "on this rank, 0, it is <sum of 100 float32>" in str(errors[0])
    assert "rank 0 has <sum of 100 float32>" in str(errors[1])


@pytest.mark.parametrize("_", range(8))
def test_a_disagreement_is_told_also_where_a_rank_has_left_for_it(_: int) -> None:
    with ranks(2) as job:
        waits = job.begin(0, Operation(np.ones(100, np.float32)))
        assert "waiting for rank 1" in job.engines[0].progress()
        assert isinstance(job.begin(1, Operation(np.ones(101, np.float32))).wait(), MismatchError)
        job.engines[0].fail(P4ReduceError("rank 1 has left"))
        assert isinstance(waits.wait(), MismatchError)


def test_who_has_not_come_is_named_after_the_time_limit() -> None:
    with ranks(4) as job:
        began = time.monotonic()
        ending = job.begin(0, Operation(np.ones(100, np.float32)), timeout=0.5)
        job.begin(2, Operation(np.ones(100, np.float32)))
        error = ending.wait()
        assert 0.4 < time.monotonic() - began < 5
        assert isinstance(error, CollectiveTimeout)
        assert error.awaited == (1, 3)
        assert str(error) == "operation of 0 did not end within 0.5 s: waiting for ranks 1, 3 on this host"
        with pytest.raises(CollectiveTimeout):
            job.begin(0, Operation(np.ones(1, np.float32)))


def test_a_failure_from_outside_ends_what_waits() -> None:
    with ranks(2) as job:
        ending = job.begin(0, Operation(np.ones(100, np.float32)))
        assert "waiting for rank 1" in job.engines[0].progress()
        job.engines[0].fail(P4ReduceError("the other rank has gone"))
        began = time.monotonic()
        assert str(ending.wait()) == "the other rank has gone"
        assert time.monotonic() - began < 2


@pytest.mark.parametrize("place", [np.ones, p4reduce.shared_empty])
def test_a_failure_of_one_rank_ends_what_others_wait_for(place: Any) -> None:
    """Also where no controller tells them."""
    with ranks(3) as job:
        waits = [job.begin(rank, Operation(place(100_000, np.float32))) for rank in range(2)]
        began = time.monotonic()
        job.engines[0].fail(P4ReduceError("it was left"))
        assert str(waits[0].wait()) == "it was left"
        error = waits[1].wait()
        assert isinstance(error, JobAborted)
        assert (error.rank, str(error)) == (0, "rank 0 has failed in operation of 1")
        assert time.monotonic() - began < 20


def test_a_rank_that_does_not_come_to_the_meeting_is_named() -> None:
    first, second, _ = memberships(3)
    errors: list[BaseException] = []

    def come(membership: Any) -> None:
        try:
            LocalEngine(NoTransport(), membership, switch="", timeout=0.5)
        except P4ReduceError as error:
            errors.append(error)

    threads = [threading.Thread(target=come, args=(membership,)) for membership in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(errors) == 2
    assert all(isinstance(error, CollectiveTimeout) for error in errors)
    assert any("rank 2 has not" in str(error) for error in errors)


def test_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("P4REDUCE_LOCAL")
    assert settings.local(None) == "auto"
    monkeypatch.setenv("P4REDUCE_LOCAL", "off")
    assert settings.local(None) == "off"
    assert settings.local("auto") == "auto"
    with pytest.raises(ValueError, match="local='on': accepted are auto, off"):
        settings.local("on")


def test_the_digest_is_this_hosts() -> None:
    assert digest() == digest()
    assert len(digest()) == 64


def test_what_a_rank_that_fails_does_with_its_tensor_is_in_no_sum() -> None:
    """The others read it until they have all sums, though its caller has it back, and uses it."""
    given_up = 0
    for attempt in range(20):
        with ranks(2) as pair:
            ours, theirs = np.ones(1 << 21, np.float32), np.full(1 << 21, 2, np.float32)
            gives_up = Reuses(ours)
            with starved(thread_of("rank 1")):
                late = 0.03 * (1 + attempt % 5)
                pair.engines[0].submit(Operation(ours), name="it", timeout=late, on_end=gives_up)
                slow = pair.begin(1, Operation(theirs))
                failed = gives_up.wait() is not None
            if failed:
                given_up += 1
                time.sleep(0.2)
                pair.engines[1].fail(P4ReduceError("rank 0 has gone"))
            if slow.wait() is None:
                assert (theirs == 3).all()
        if given_up == 8:
            break
    if not given_up:
        pytest.skip("no operation took rank 0 too long: this machine does not starve a thread")
