# SPDX-License-Identifier: Apache-2.0
"""Sums of hosts with one stream are those of the reference, bit for bit; and what goes wrong is said."""

from __future__ import annotations

import contextlib
import random
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p4reduce.errors import CollectiveTimeout, JobAborted, MismatchError, P4ReduceError
from p4reduce.local.engine import SharingEngine
from p4reduce.protocol import Operation
from p4reduce.protocol.fingerprint import fingerprint
from p4reduce.protocol.numbers import Wire, reference_allreduce
from p4reduce.transport import open_transport
from tests.support.hostlib.hosts_job import job, memberships
from tests.support.hostlib.memory import shared_kib
from tests.support.hostlib.sums import SEED, check_random_sums, random_array
from tests.support.hostlib.udp_switch import UdpSwitch
from tests.support.waiting import stays, wait_until

SIZES = (0, 1, 63, 64, 65, 256, 5000, 8193, 20_000)
FLOAT32 = np.dtype(np.float32)
PART = 8 << 20
"""Values that one task has at most: PART_VALUES in staging.h."""


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
@settings(max_examples=25, deadline=None)
def test_many_jobs(hosts: list[int], seed: int) -> None:
    with job(hosts) as running:
        check_random_sums(running, 6, seed, sizes=(*SIZES, 70_001))


@pytest.mark.parametrize("wire", ["int32", "int8"])
def test_operations_of_several_tasks(wire: Wire) -> None:
    """Random rounding is the same as in one task, and values beside a border are in the right task."""
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


def test_ranks_may_want_other_things_of_a_sum() -> None:
    """One rank only gives its values, one sends its zeros, and one wants the average of the same operation."""
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


def test_a_thread_that_waits_does_the_work() -> None:
    """The leader's own thread sleeps meanwhile."""
    with job((0, 0, 1)) as running:

        def run(rank: int) -> None:
            for number in range(50):
                array = np.full(100, rank + number, np.float32)
                operation = Operation(array)
                prepared = running.engines[rank].prepare(operation, "inline")
                assert prepared is not None
                assert running.engines[rank].run_inline(prepared, operation, 30) is None
                assert (array == 3 + 3 * number).all()

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(run, range(3)))
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


def test_large_memory_is_given_back() -> None:
    """A while after the last operation; and is there for the next."""
    with job((0, 0, 1)) as running:
        check_random_sums(running, 1, SEED, sizes=(100,))
        little = shared_kib()

        def much() -> bool:
            running.reduce([Operation(np.ones(300_000, np.float32)) for _ in range(3)])
            return shared_kib() > little + 2000

        wait_until(much, "memory to be there after an operation")  # a busy machine may look too late
        wait_until(lambda: shared_kib() < little + 200, "memory to be given back", 20)
        check_random_sums(running, 2, SEED, sizes=(300, 9000))


# Failures.


def test_hosts_that_call_other_things_are_named() -> None:
    with job((0, 0, 1, 1)) as running:
        sizes = (3000, 3000, 4000, 4000)
        pending = [running.begin(rank, Operation(np.ones(size, np.float32))) for rank, size in enumerate(sizes)]
        errors = [each.wait() for each in pending]
    assert all(isinstance(error, MismatchError) for error in errors), errors
    assert any("a rank of rank 2's host sent" in str(error) for error in errors) or any(
        "a rank of rank 0's host sent" in str(error) for error in errors
    )


@pytest.mark.parametrize("impatient", [0, 1])
def test_of_another_host_all_ranks_are_awaited(impatient: int) -> None:
    with job((0, 0, 1, 1)) as running:
        limits = [1.5 if rank == impatient else 30.0 for rank in range(2)]
        pending = [running.begin(rank, Operation(np.ones(100, np.float32)), limits[rank]) for rank in range(2)]
        error = pending[impatient].wait()
        assert isinstance(error, CollectiveTimeout)
        assert error.awaited == (2, 3)
        assert "waiting for ranks 2, 3" in str(error)
        assert isinstance(pending[1 - impatient].wait(), JobAborted)


@pytest.mark.parametrize("leaves", [0, 1])
def test_a_rank_that_has_left_is_missed_by_the_next_operation_alone(leaves: int) -> None:
    with job((0, 0, 1)) as running:
        check_random_sums(running, 1, SEED, sizes=(300,))
        running.engines[leaves].close(P4ReduceError("done"))
        stays(lambda: running.engines[1 - leaves].failure is None, "the rank that left is not missed yet", 0.2)
        error = running.begin(1 - leaves, Operation(np.ones(100, np.float32))).wait()
        assert isinstance(error, JobAborted)
        assert error.rank == leaves
        assert str(error) == f"rank {leaves} has failed: done"


@pytest.mark.parametrize(("comes", "missing"), [(0, 1), (1, 0)])
def test_a_rank_that_does_not_come_to_the_rendezvous_is_named(comes: int, missing: int) -> None:
    membership = memberships((0, 0, 1))[comes]
    with contextlib.closing(UdpSwitch()) as switch:
        transport = open_transport("udp", switch.endpoint)
        with pytest.raises(CollectiveTimeout, match=f"rank {missing} has not"):
            SharingEngine(transport, membership, switch="", timeout=0.3)
        transport.close()
