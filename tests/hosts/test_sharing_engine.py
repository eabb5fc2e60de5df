# SPDX-License-Identifier: Apache-2.0
"""Sums of hosts with one stream are those of the reference, bit for bit; and what goes wrong is said."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from udp_switch import UdpSwitch, udp_switch
from waiting import wait_until

from p4reduce.errors import CollectiveTimeout, JobAborted, MismatchError, P4ReduceError
from p4reduce.local.sharing import SharingEngine
from p4reduce.protocol import Operation
from p4reduce.protocol.fingerprint import fingerprint
from p4reduce.protocol.halves import narrowed
from p4reduce.protocol.numbers import Wire, reference_allreduce
from p4reduce.transport import open_transport

from ..local.engines import Ending
from ..local.sums import check_random_sums, check_residuals, random_array
from .job import job, memberships

SEED = int(os.environ.get("P4REDUCE_SEED", "1"))
SIZES = (0, 1, 63, 64, 65, 256, 5000, 8193, 20_000)
FLOAT32 = np.dtype(np.float32)
PART = 8 << 20
"""Values that one task has at most: PART_VALUES in host_memory.h."""


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 1, 0, 2, 0), (5, 5, 5)])
def test_sums_are_the_references(hosts: tuple[int, ...]) -> None:
    with job(hosts) as running:
        check_random_sums(running, 10, SEED, sizes=SIZES)
        leaders = running.memberships[0].leaders
        for rank, engine in enumerate(running.engines):
            stats = engine.stats
            assert stats.operations == 10
            assert (stats.packets_sent > 0) == (rank in leaders)
            assert ("one stream of its host" in engine.link()) == (rank in leaders)
            assert engine.link().startswith(f"the stream of rank {hosts.index(hosts[rank])}") == (rank not in leaders)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=9), st.integers(0, 2**31))
@settings(max_examples=6, deadline=None)
def test_ranks_are_on_any_hosts(hosts: list[int], seed: int) -> None:
    with job(hosts) as running:
        check_random_sums(running, 2, seed, sizes=(0, 1, 65, 3000, 9000))


@pytest.mark.slow
@given(st.lists(st.integers(0, 12), min_size=1, max_size=40), st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_many_jobs(hosts: list[int], seed: int) -> None:
    with job(hosts) as running:
        check_random_sums(running, 6, seed, sizes=(*SIZES, 70_001))


@pytest.mark.parametrize("block_size", [1, 7, 1024])
def test_blocks_of_any_size(block_size: int) -> None:
    with job((0, 0, 1), block_size=block_size) as running:
        check_random_sums(running, 4, SEED + block_size, block_size, sizes=(0, 1, 300, 2048, 5001))


@pytest.mark.parametrize("wire", ["int32", "int8"])
@pytest.mark.parametrize(("size", "density"), [(100, 1.0), (20_000, 0.2), (20_000, 1.0)])
def test_residuals(size: int, density: float, wire: Wire) -> None:
    with job((0, 0, 1)) as running:
        check_residuals(running, size, density, wire, SEED)


@pytest.mark.parametrize("wire", ["int32", "int8"])
def test_operations_of_several_tasks(wire: Wire) -> None:
    """What is random in rounding is as in one; and values beside the borders are in the right ones."""
    size = 2 * PART + 777
    near = [0, 5000, PART - 1, PART, PART + 64, 2 * PART - 1, 2 * PART, size - 1]
    arrays = [np.zeros(size, np.float32) for _ in range(3)]
    for rank, array in enumerate(arrays):
        for at in near:
            values = np.random.default_rng((rank, at)).standard_normal(400)
            array[max(0, at - 200) : at + 200] = values[: array[max(0, at - 200) : at + 200].size]
    residuals = [np.zeros(size, np.float32) for _ in arrays]
    operations = [
        Operation(array.copy(), wire=wire, residual=residual) for array, residual in zip(arrays, residuals, strict=True)
    ]
    with job((0, 0, 1), slots=64) as running:
        check_random_sums(running, 1, SEED, sizes=(300,))
        running.reduce(operations)
        check_random_sums(running, 2, SEED, sizes=(300,))
        assert [engine.stats.operations for engine in running.engines] == [4] * 3
    expected = reference_allreduce(arrays, "sum", 64, wire, _called(operations[0], 1))
    assert all(operation.data.tobytes() == expected.tobytes() for operation in operations)
    lost = [np.flatnonzero(residual).size for residual in residuals]
    assert min(lost) > (1000 if wire == "int8" else 0)


def _called(operation: Operation, number: int) -> int:
    return fingerprint(number, operation.numbers, "sum", operation.data.size)


def test_ranks_may_have_16_bit_floats_and_float32() -> None:
    """Of the same tensor: who multiplies it with a factor has it as float32."""
    generator = np.random.default_rng(SEED)
    narrow = [random_array(generator, np.dtype(np.float16), 5000, 0.5) for _ in range(4)]
    with np.errstate(all="ignore"):
        wide = [each.astype(np.float32) for each in narrow]
        expected = reference_allreduce(wide, "sum", 64, "int16")
    values = [narrow[0], wide[1], wide[2], narrow[3]]
    with job((0, 0, 1, 1)) as running:
        running.reduce([Operation(each, dtype="float16", wire="int16") for each in values])
    for each in values:
        wanted = expected if each.dtype == np.float32 else narrowed(expected, np.dtype(np.float16))
        assert each.tobytes() == wanted.tobytes()


def test_ranks_may_want_other_things_of_a_sum() -> None:
    """One only gives its values, one sends its zeros, one wants the average of what it calls by the same name."""
    arrays = [random_array(np.random.default_rng(rank), FLOAT32, 10_000, 0.3) for rank in range(4)]
    given_up = [array.copy() for array in arrays]
    given_up[1].flags.writeable = False
    with job((0, 0, 1, 1)) as running:
        running.reduce(
            [
                Operation(given_up[0], zeros="sent"),
                Operation(given_up[1], read_only=True),
                Operation(given_up[2], zeros="first"),
                Operation(given_up[3], divisor=4),
            ]
        )
        blocks = -(-10_000 // 64)
        for engine in running.engines:
            assert engine.stats.blocks_sent + engine.stats.blocks_skipped == blocks
        assert running.engines[0].stats.blocks_sent == blocks
    with np.errstate(all="ignore"):
        expected = reference_allreduce(arrays)
        average = expected / np.float32(4)
    assert given_up[1].tobytes() == arrays[1].tobytes()
    assert given_up[0].tobytes() == given_up[2].tobytes() == expected.tobytes()
    assert given_up[3].tobytes() == average.tobytes()


def test_a_host_sends_what_any_of_its_ranks_has_once() -> None:
    arrays = [np.zeros(64 * 64, np.float32) for _ in range(4)]
    for rank, array in enumerate(arrays):
        array[64 * rank] = array[64 * 20] = 1
    with job((0, 0, 0, 1)) as running:
        running.reduce([Operation(array) for array in arrays])
        assert [engine.stats.blocks_sent for engine in running.engines] == [4, 2, 2, 2]
        assert [engine.stats.blocks_received for engine in running.engines] == [5] * 4


def test_many_at_once_from_several_threads() -> None:
    """Operations go in the order of their submission, whoever submits them."""
    sizes = [(37 * number) % 9_000 for number in range(40)]
    arrays = [[np.full(size, rank + 1, np.float32) for size in sizes] for rank in range(4)]
    with job((0, 0, 0, 1)) as running:

        def submit(rank: int) -> None:
            endings = [running.begin(rank, Operation(array)) for array in arrays[rank]]
            assert [ending.wait() for ending in endings] == [None] * len(sizes)

        threads = [threading.Thread(target=submit, args=(rank,)) for rank in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert all(engine.progress() for engine in running.engines)
            time.sleep(0.01)
        assert [engine.stats.operations for engine in running.engines] == [len(sizes)] * 4
    assert all((array == 10).all() for own in arrays for array in own)


def test_who_waits_may_carry() -> None:
    """Of the leader, whose thread rests meanwhile."""
    with job((0, 0, 1)) as running:

        def carry(rank: int) -> None:
            for number in range(50):
                array, ending = np.full(100, rank + number, np.float32), Ending()
                running.engines[rank].carry(Operation(array), name="carried", timeout=30, on_end=ending)
                assert ending.wait() is None
                assert (array == 3 + 3 * number).all()

        threads = [threading.Thread(target=carry, args=(rank,)) for rank in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [engine.stats.operations for engine in running.engines] == [50] * 3


class LossySwitch(UdpSwitch):
    def __init__(self, share: float) -> None:
        self._random, self._share = random.Random(SEED), share
        super().__init__()

    def _take(self, payload: bytes, address: tuple[str, int]) -> None:
        if payload[0] & 0xF == 8 or self._random.random() >= self._share:
            super()._take(payload, address)


def test_what_is_lost_is_sent_again() -> None:
    with job((0, 0, 1, 1), LossySwitch(0.1)) as running:
        check_random_sums(running, 6, SEED, sizes=(300, 5000))
        assert sum(engine.stats.retransmissions for engine in running.engines) > 0


def shared_kib() -> int:
    """What this process has of the memory of its ranks, in KiB; each of them maps it."""
    found, ours = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if line[0].isdigit() or (line[0].islower() and "-" in line.split()[0]):
            ours = "memfd:p4reduce" in line
        elif ours and line.startswith("Rss:"):
            found += int(line.split()[1])
    return found


def test_large_memory_is_given_back() -> None:
    """A while after the last operation; and is there for the next."""
    with job((0, 0, 1)) as running:
        check_random_sums(running, 1, SEED, sizes=(100,))
        little = shared_kib()
        running.reduce([Operation(np.ones(300_000, np.float32)) for _ in range(3)])
        assert shared_kib() > little + 2000
        wait_until(lambda: shared_kib() < little + 200, "memory to be given back", 20)
        check_random_sums(running, 2, SEED, sizes=(300, 9000))


# What goes wrong.


@pytest.mark.parametrize("late", [0, 1, 3])
def test_ranks_of_a_host_that_call_other_things_are_named(late: int) -> None:
    """Though one has not come, the leader even, or one of another host."""
    other = 2 if late != 2 else 1
    with job((0, 0, 0, 1)) as running:
        early = [rank for rank in range(4) if rank not in (late, other)]
        endings = {rank: running.begin(rank, Operation(np.ones(100, np.float32))) for rank in early}
        endings[other] = running.begin(other, Operation(np.ones(20_000_000, np.float32)))
        here_too = range(3)
        here = [rank for rank in endings if rank in here_too]
        errors = {rank: endings[rank].wait() for rank in here}
        assert all(isinstance(error, MismatchError) for error in errors.values()), errors
        first = next(rank for rank in here if rank != other)
        assert f"rank {other} has <sum of 20000000 float32>" in str(errors[first])
        assert f"on this rank, {first}, it is <sum of 100 float32>" in str(errors[first])
        if late in here_too:
            assert isinstance(running.begin(late, Operation(np.ones(100, np.float32))).wait(), MismatchError)


def test_hosts_that_call_other_things_are_named() -> None:
    with job((0, 0, 1, 1)) as running:
        sizes = (3000, 3000, 4000, 4000)
        endings = [running.begin(rank, Operation(np.ones(size, np.float32))) for rank, size in enumerate(sizes)]
        errors = [ending.wait() for ending in endings]
    assert all(isinstance(error, MismatchError) for error in errors), errors
    assert any("a rank of rank 2's host sent" in str(error) for error in errors) or any(
        "a rank of rank 0's host sent" in str(error) for error in errors
    )


def test_who_of_the_host_has_not_come_is_named_after_the_time_limit() -> None:
    with job((0, 0, 0, 1)) as running:
        began = time.monotonic()
        ending = running.begin(0, Operation(np.ones(100, np.float32)), timeout=0.5)
        other = running.begin(1, Operation(np.ones(100, np.float32)))
        error = ending.wait()
        assert 0.4 < time.monotonic() - began < 5
        assert isinstance(error, CollectiveTimeout)
        assert error.awaited == (2,)
        assert str(error) == "operation of 0 did not end within 0.5 s: waiting for rank 2 on this host"
        told = other.wait()
        assert isinstance(told, JobAborted)
        assert told.rank == 0
        assert str(told).startswith("rank 0 has failed: operation of 0 did not end within 0.5 s")
        with pytest.raises(P4ReduceError):
            running.begin(0, Operation(np.ones(1, np.float32)))


def test_a_leader_that_has_not_come_is_named() -> None:
    with job((0, 0, 1)) as running:
        error = running.begin(1, Operation(np.ones(100, np.float32)), timeout=0.5).wait()
        assert isinstance(error, CollectiveTimeout)
        assert error.awaited == (0,)
        assert "waiting for rank 0 on this host" in str(error)


@pytest.mark.parametrize("impatient", [0, 1])
def test_of_another_host_all_ranks_are_awaited(impatient: int) -> None:
    with job((0, 0, 1, 1)) as running:
        limits = [1.5 if rank == impatient else 30.0 for rank in range(2)]
        endings = [running.begin(rank, Operation(np.ones(100, np.float32)), limits[rank]) for rank in range(2)]
        error = endings[impatient].wait()
        assert isinstance(error, CollectiveTimeout)
        assert error.awaited == (2, 3)
        assert "waiting for ranks 2, 3" in str(error)
        assert isinstance(endings[1 - impatient].wait(), JobAborted)


@pytest.mark.parametrize("fails", [0, 2])
def test_a_failure_from_outside_ends_what_the_host_waits_for(fails: int) -> None:
    with job((0, 0, 0, 1)) as running:
        endings = [running.begin(rank, Operation(np.ones(100, np.float32))) for rank in range(3)]
        assert running.engines[0].progress()
        began = time.monotonic()
        running.engines[fails].fail(P4ReduceError("its program wants no more"))
        errors = [ending.wait() for ending in endings]
        assert time.monotonic() - began < 2
        assert str(errors[fails]) == "its program wants no more"
        others = [error for rank, error in enumerate(errors) if rank != fails]
        assert [str(error) for error in others] == [f"rank {fails} has failed: its program wants no more"] * 2


@pytest.mark.parametrize("leaves", [0, 1])
def test_a_rank_that_has_left_is_missed_by_the_next_operation_alone(leaves: int) -> None:
    with job((0, 0, 1)) as running:
        check_random_sums(running, 1, SEED, sizes=(300,))
        running.engines[leaves].close(P4ReduceError("done"))
        time.sleep(0.2)
        assert running.engines[1 - leaves].failure is None
        error = running.begin(1 - leaves, Operation(np.ones(100, np.float32))).wait()
        assert isinstance(error, JobAborted)
        assert error.rank == leaves
        assert str(error) == f"rank {leaves} has failed: done"


@pytest.mark.parametrize(("comes", "missing"), [(0, 1), (1, 0)])
def test_a_rank_that_does_not_come_to_the_meeting_is_named(comes: int, missing: int) -> None:
    membership = memberships((0, 0, 1))[comes]
    with udp_switch() as switch:
        transport = open_transport("udp", switch.place)
        with pytest.raises(CollectiveTimeout, match=f"rank {missing} has not"):
            SharingEngine(transport, membership, switch="", timeout=0.3)
        transport.close()
