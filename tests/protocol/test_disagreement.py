# SPDX-License-Identifier: Apache-2.0
"""Ranks that call different things are told so, all of them, however many packets are lost."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random

import numpy as np
import pytest

from p4reduce.errors import MismatchError
from p4reduce.protocol import Membership, Operation
from p4reduce.protocol.fingerprint import fingerprint
from p4reduce.protocol.numbers import reference_allreduce
from tests.support.protocol.scenarios import random_network
from tests.support.protocol.simulator import Network, Simulation

pytestmark = pytest.mark.usefixtures("each_worker")

MEMBERSHIP = Membership(1, 1, 0, 3, slots=3, lanes=2, block_size=4, first_seq=0)


def floats(size: int, value: float = 1.0) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.full(size, value, np.float32)


CASES: dict[str, Callable[[int], list[Operation]]] = {
    "number of elements": lambda rank: [Operation(floats(20 if rank != 1 else 21))],
    "number of elements, in other slots too": lambda rank: [Operation(floats(4 if rank != 1 else 400))],
    "empty and not": lambda rank: [Operation(floats(0 if rank == 2 else 50))],
    "dtype of the data": lambda rank: [Operation(floats(9) if rank else np.ones(9, np.int32))],
    "dtype of the user": lambda rank: [Operation(floats(9), dtype="float16" if rank else "bfloat16")],
    "reduction": lambda rank: [Operation(floats(9), reduce_op="avg" if rank == 2 else "sum")],
    "order": lambda rank: [Operation(floats(size)) for size in ((5, 50) if rank else (50, 5))],
    "second operation": lambda rank: [Operation(floats(30)), Operation(floats(8 + rank))],
    "one more operation": lambda rank: [Operation(floats(8)) for _ in range(2 if rank else 1)] + [Operation(floats(9))],
}


RACKS: list[tuple[tuple[int, ...], ...]] = [(), ((0, 1), (2,)), ((0,), (1,), (2,))]


@pytest.mark.parametrize("case", CASES)
def test_every_rank_is_told(case: str) -> None:
    """The ranks are at one switch, and in two and three racks."""
    for seed, racks in product(range(8), RACKS):
        network = random_network(Random(seed)) if seed else Network()
        simulation = Simulation(MEMBERSHIP, seed=seed, network=network, racks=racks)
        operations = [CASES[case](rank) for rank in range(3)]
        inputs = [[operation.data.copy() for operation in own] for own in operations]
        simulation.reduce(operations, skew=0.1, limit=10_000 if racks else 1000)

        for worker, own in zip(simulation.workers, operations, strict=True):
            assert isinstance(worker.failure, MismatchError), f"seed {seed}"
            assert own[-1].error is worker.failure
        # Operations that had ended before that are right: no wrong sum goes unnoticed.
        for index in range(min(map(len, operations))):
            for rank, own in enumerate(operations):
                if own[index].error is None:
                    expected = reference_allreduce([inputs[rank][index] for rank in range(3)], block_size=4)
                    assert own[index].data.tobytes() == expected.tobytes(), f"seed {seed} rank {rank}"


def test_the_message_says_who_and_what() -> None:
    simulation = Simulation(MEMBERSHIP, seed=0)
    operations = [Operation(floats(20 if rank != 1 else 21), reduce_op="avg") for rank in range(3)]
    for rank in (0, 2, 1):  # the odd one comes last
        simulation.submit(rank, operations[rank], when=(rank != 1 and 0.0) or 0.001)
    simulation.finish(operations)
    for rank, size in ((0, 20), (1, 21)):
        message = str(operations[rank].error)
        assert "rank 1 sent fingerprint" in message
        assert f"On this rank, {rank}," in message
        assert f"operation 0, <avg of {size} float32>, has {fingerprint(0, 'float32', 'avg', size):08x}" in message
        assert "Check that all ranks call the same collectives in the same order" in message


def both_messages(order: tuple[int, ...], extra: int, ranks: int) -> list[str]:
    """Return the errors of ranks that call in this order, of which rank `extra` makes another call than the rest."""
    simulation = Simulation(Membership(1, 1, 0, ranks, slots=3, lanes=2, block_size=4, first_seq=0), seed=0)
    operations = [Operation(floats(7 if rank == extra else 4)) for rank in range(ranks)]
    for when, rank in enumerate(order):
        simulation.submit(rank, operations[rank], when=1e-6 * when)
    simulation.finish(operations)
    return [str(operation.error) for operation in operations]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("extra", [0, 1])
def test_nobody_is_blamed_by_a_rank_that_may_be_wrong_itself(extra: int, order: tuple[int, int]) -> None:
    first, last = order
    messages = both_messages(order, extra, 2)
    assert "is wrong" not in messages[first]
    assert "agrees" not in "".join(messages)
    assert f"So this rank is wrong, or rank {first} is. " in messages[last]


def test_two_ranks_that_agree_blame_the_third() -> None:
    """The third rank, which came first, blames no rank: the switch has told it of one other rank alone."""
    messages = both_messages((2, 0, 1), 2, 3)
    assert "This rank agrees with the later one, so rank 2 is wrong. " in messages[1]
    assert "is wrong" not in messages[2]


def test_the_message_says_that_it_is_elsewhere() -> None:
    simulation = Simulation(MEMBERSHIP, seed=0, racks=((0, 1), (2,)))
    operations = [Operation(floats(20 if rank != 2 else 21)) for rank in range(3)]
    simulation.reduce([[operation] for operation in operations])
    for operation in operations:
        assert "a rank whose number is not known sent fingerprint" in str(operation.error)


def test_a_failed_worker_fails_what_comes_later() -> None:
    simulation = Simulation(MEMBERSHIP, seed=0)
    simulation.reduce([CASES["reduction"](rank) for rank in range(3)])
    for worker in simulation.workers:
        late = Operation(floats(3))
        told: list[Operation] = []
        late.on_done = told.append
        worker.submit(late, simulation.now)
        assert late.done
        assert late.error is worker.failure
        assert told == [late]
        assert worker.idle
