# SPDX-License-Identifier: Apache-2.0
"""A worker sends its own non-zero blocks once and one header a round, and receives the union once.

Where blocks are long (MAX_GROWTH), it also fills some of its absent lanes with zeros.
"""

from __future__ import annotations

from random import Random
from typing import get_args

import numpy as np
import pytest

from p4reduce.protocol import Membership
from p4reduce.protocol.operation import Zeros
from tests.support.protocol.scenarios import call, random_calls, random_membership, reduce_calls
from tests.support.protocol.simulator import Network, Simulation
from tests.support.protocol.traffic import check_traffic

pytestmark = pytest.mark.usefixtures("each_worker")


LOSSY = Network(loss=0.1, duplicates=0.1, delay=0.01, duplicate_delay=0.1)


@pytest.mark.parametrize("network", [Network(), LOSSY], ids=["lossless", "lossy"])
@pytest.mark.parametrize("zeros", get_args(Zeros))
def test_random_tensors(network: Network, zeros: Zeros) -> None:
    """Some ranks, or all, skip blocks of zeros or send them."""
    for seed in range(20):
        random = Random(seed)
        membership = random_membership(random)
        calls = random_calls(random, membership)
        for one in calls:
            for operation in one.operations[: random.choice([None, 1])]:
                operation.zeros = zeros
        simulation = Simulation(membership, seed=seed, network=network)
        reduce_calls(simulation, calls)
        check_traffic(simulation, membership, calls, lossless=network == Network())


@pytest.mark.parametrize(
    ("blocks", "rounds"),
    [
        ([[0] * 16, [0] * 16], 2),  # all zeros: one round trip a slot
        ([[1] * 16, [1] * 16], 2 + 2 * 2),  # dense: two blocks in each of eight streams
        ([[1] * 8 + [0] * 8, [0] * 8 + [1] * 8], 2 + 2 * 2),  # no overlap
        ([[1] + [0] * 15, [0] * 15 + [1]], 2 + 1 + 1),  # one block in each slot
        ([[1] + [0] * 15, [0] * 8 + [1] + [0] * 7], 2 + 2),  # two blocks of one stream
    ],
)
def test_known_tensors(blocks: list[list[int]], rounds: int) -> None:
    membership = Membership(1, 1, 0, 2, slots=2, lanes=4, block_size=32, first_seq=0)
    one = call([np.repeat(np.array(own, np.float32), 32) for own in blocks], 32)
    simulation = Simulation(membership, seed=0)
    reduce_calls(simulation, [one])
    assert simulation.workers[0].stats.rounds == rounds
    check_traffic(simulation, membership, [one], lossless=True)


def test_small_tensors_use_few_slots() -> None:
    membership = Membership(1, 1, 0, 2, slots=32, lanes=4, block_size=64, first_seq=0)
    for size, slots in [(0, 1), (1, 1), (4 * 64, 1), (4 * 64 + 1, 2), (10**5, 32)]:
        one = call([np.zeros(size, np.float32)] * 2, 64)
        simulation = Simulation(membership, seed=0)
        reduce_calls(simulation, [one])
        assert simulation.workers[0].stats.packets_sent == slots


def test_slots_run_ahead() -> None:
    """A slot that is done with an operation begins the next one while others still work on the former."""
    membership = Membership(1, 1, 0, 1, slots=2, lanes=1, block_size=1, first_seq=0)
    long_in_slot_1 = np.tile(np.array([0, 1], np.float32), 50)
    calls = [call([long_in_slot_1], 1), call([np.ones(1, np.float32)], 1)]
    simulation = Simulation(membership, seed=0)
    former, latter = calls[0].operations[0], calls[1].operations[0]
    simulation.submit(0, former)
    simulation.submit(0, latter)
    simulation.run(lambda: latter.done)
    assert not former.done
    simulation.run(lambda: former.done)
    for one in calls:
        one.check()
