# SPDX-License-Identifier: Apache-2.0
"""Packets of different aggregators overtake each other without a loss; those of one aggregator do not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from p4reduce.protocol import Membership, Operation, header
from p4reduce.protocol.constants import MAX_AGGREGATORS
from tests.support.protocol.simulator import Simulation
from tests.support.protocol.worker_pair import new_worker

pytestmark = pytest.mark.usefixtures("each_worker")

WORKERS, SLOTS, ROUNDS = 3, 16, 40
MEMBERSHIP = Membership(1, 1, 0, WORKERS, slots=SLOTS, lanes=1, block_size=4, first_seq=0)


class Spines(Simulation):
    """A network with a path for each aggregator. Packets take 0.1 ms on the first, and 0.05 ms more on each next one.

    told: the number of aggregators that the workers know of.
    """

    def __init__(self, aggregators: int, told: int) -> None:
        super().__init__(MEMBERSHIP, seed=1)
        self.aggregators = aggregators
        self.loses: Callable[[int, int], bool] = lambda *_: False
        for worker in self.workers:
            worker.set_aggregators(told)

    def to_switch(self, rank: int, payload: bytes) -> None:
        slot = int.from_bytes(payload[header.SLOT], "big") >> 1
        if not self.loses(rank, slot):
            self.at(self.now + slot % self.aggregators * 0.05e-3, partial(super().to_switch, rank, payload))


def operations() -> list[Operation]:
    return [Operation(np.ones(4 * SLOTS * ROUNDS, np.float32)) for _ in range(WORKERS)]


def reduced(simulation: Simulation) -> Simulation:
    made = operations()
    simulation.reduce([[own] for own in made])
    for own in made:
        np.testing.assert_array_equal(own.data, np.full(own.data.size, WORKERS, np.float32))
    return simulation


@pytest.mark.parametrize("aggregators", [2, 3])
def test_packets_to_other_aggregators_do_not_count_as_later(aggregators: int) -> None:
    assert reduced(Spines(aggregators, told=aggregators)).resent == 0
    assert reduced(Spines(aggregators, told=1)).resent > 0


@pytest.mark.parametrize("slot", [0, 3])
def test_a_loss_is_found_by_a_later_packet_to_its_aggregator(slot: int) -> None:
    """Probes are sent only when no round has ended for a while, and here the other slots go on for 8 ms."""
    simulation, times = Spines(2, told=2), []

    def loses(rank: int, its_slot: int) -> bool:
        found = rank == 0 and its_slot == slot and simulation.workers[0].stats.rounds > 5 * SLOTS and len(times) < 2
        if found:
            times.append(simulation.now)
        return found and len(times) == 1

    simulation.loses = loses
    reduced(simulation)
    lost_at, sent_again_at = times
    assert sent_again_at - lost_at < 1e-3


def test_probes_are_the_oldest_packets_to_any_aggregator() -> None:
    """If one aggregator never answers, packets to the others are probed, too."""
    simulation = Spines(2, told=2)
    simulation.loses = lambda _, slot: slot % 2 == 0 or simulation.now < 0.01
    simulation.submit_all(operations())
    simulation.run(lambda: simulation.now > 2)
    assert [worker.stats.rounds for worker in simulation.workers] == [SLOTS // 2 * (ROUNDS + 1)] * WORKERS


@pytest.mark.parametrize("aggregators", [0, MAX_AGGREGATORS + 1])
def test_numbers_that_are_refused(aggregators: int) -> None:
    with pytest.raises(ValueError, match=f"aggregators are {aggregators}: accepted are 1 to 32"):
        new_worker(MEMBERSHIP).set_aggregators(aggregators)


def test_after_an_operation_the_number_is_final() -> None:
    worker = new_worker(MEMBERSHIP)
    worker.submit(operations()[0], 0.0)
    with pytest.raises(ValueError, match="aggregators are 2 after an operation: accepted before the first one"):
        worker.set_aggregators(2)
