# SPDX-License-Identifier: Apache-2.0
"""Stragglers, lost answers and changing paths: how soon and how often a worker sends again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from p4reduce.protocol import Membership, Operation, Timing
from tests.support.protocol.simulator import Network, Simulation

pytestmark = pytest.mark.usefixtures("each_worker")

MEMBERSHIP = Membership(1, 1, 0, 3, slots=4, lanes=1, block_size=4, first_seq=0)
DENSE = 4 * 4 * 200  # 200 rounds a slot


def ones(size: int = DENSE) -> Operation:
    return Operation(np.ones(size, np.float32))


def test_a_straggler_is_named_and_asked_after_gently() -> None:
    simulation = Simulation(MEMBERSHIP, seed=0)
    operations = [ones() for _ in range(3)]
    simulation.submit(0, operations[0])
    simulation.submit(2, operations[2])
    simulation.run(lambda: simulation.now > 0.015)
    assert simulation.workers[0].awaited() == ()  # not asked yet
    simulation.submit(1, operations[1], when=20.0)
    simulation.run(lambda: simulation.now > 19)
    assert simulation.workers[0].awaited() == (1,)
    assert simulation.workers[2].awaited() == (1,)
    assert simulation.workers[1].awaited() == ()
    a_slot = simulation.workers[0].stats.retransmissions / MEMBERSHIP.slots
    assert 19 / Timing().poll / 2 < a_slot < 20 / Timing().poll + 10  # a few packets ask each time

    simulation.finish(operations)
    assert simulation.now < 20.1
    assert simulation.workers[0].awaited() == ()


def test_a_straggler_does_not_make_the_timeout_long() -> None:
    """Waiting for a rank that computes is no round trip, so a packet lost afterwards is soon sent again."""
    simulation = Simulation(MEMBERSHIP, seed=3, network=Network(loss=0.02))
    for iteration in range(1, 11):
        operations = [ones(400) for _ in range(3)]
        for rank, operation in enumerate(operations):
            simulation.submit(rank, operation, when=iteration + (0.5 if rank == 1 else 0.0))
        simulation.finish(operations)
        assert simulation.now < iteration + 0.5 + 0.25


def test_answers_lost_after_a_straggler_came_are_soon_asked_for() -> None:
    """Once one slot hears that the straggler is back, the others do not wait for their slow polls."""
    simulation = Simulation(MEMBERSHIP, seed=0)
    operations = [ones() for _ in range(3)]
    for rank in (0, 2):
        simulation.submit(rank, operations[rank])
    simulation.run(lambda: simulation.now > 10)
    # Rank 0 loses the first result of each slot but the first.
    lost: list[int] = []
    deliver = simulation.to_worker

    def to_worker(rank: int, payload: bytes) -> None:
        slot = payload[9] >> 1
        if rank == 0 and slot and slot not in lost:
            lost.append(slot)
        else:
            deliver(rank, payload)

    simulation.submit(1, operations[1], when=10.2)
    simulation.run(lambda: simulation.now > 10.1999)
    simulation.to_worker = to_worker  # type: ignore[method-assign]
    simulation.finish(operations)
    assert len(lost) == 3
    assert simulation.now < 10.2 + 0.1


def many_slots() -> tuple[Simulation, list[Operation]]:
    """Return a simulation in which the workers know the round trip, and operations that use 256 slots."""
    simulation = Simulation(replace(MEMBERSHIP, slots=256), seed=0)
    simulation.reduce([[ones(4 * 256)] for _ in range(3)])
    return simulation, [ones(4 * 256) for _ in range(3)]


def test_few_packets_ask_after_a_straggler() -> None:
    """Few do so however many slots wait for the straggler, and all slots go on as soon as it comes."""
    simulation, operations = many_slots()
    begin = simulation.now
    simulation.submit_all(operations, late={1: 0.05})
    simulation.finish(operations)
    assert simulation.now < begin + 0.05 + Timing().margin
    for rank in (0, 2):
        assert 1 <= simulation.workers[rank].stats.retransmissions < 256 / 8


def test_a_burst_that_is_lost_is_soon_sent_again() -> None:
    """Nothing more is answered then, as with a straggler; but the first packet sent again is, at once."""
    simulation, operations = many_slots()
    begin = simulation.now
    simulation.submit_all(operations)
    simulation.network = Network(loss=1.0)
    simulation.at(begin + 0.005, lambda: setattr(simulation, "network", Network()))
    simulation.finish(operations)
    assert simulation.now < begin + 3 * 0.005


@pytest.mark.parametrize("latency", [0.05, 0.4])
@pytest.mark.parametrize("slots", [1, MEMBERSHIP.slots])
def test_a_path_that_grows_long_is_not_flooded(slots: int, latency: float) -> None:
    """Karn: with every packet sent twice nothing could be measured, so the longer timeout is kept until it can."""
    simulation = Simulation(replace(MEMBERSHIP, slots=slots), seed=0)
    simulation.reduce([[ones()] for _ in range(3)], limit=5000)
    workers = simulation.workers
    assert [worker.stats.retransmissions for worker in workers] == [0, 0, 0]
    simulation.network = replace(simulation.network, latency=latency)
    simulation.reduce([[ones()] for _ in range(3)], limit=5000)
    for worker in workers:
        assert worker.stats.retransmissions < 20 * slots
    before = [worker.stats.retransmissions for worker in workers]
    simulation.reduce([[ones()] for _ in range(3)], limit=5000)
    assert [worker.stats.retransmissions for worker in workers] == before


def test_the_switch_comes_back() -> None:
    """Nothing arrives for ten seconds; then it goes on at the next packet."""
    simulation = Simulation(MEMBERSHIP, seed=0, network=Network(loss=1.0))
    operations = [ones() for _ in range(3)]
    simulation.submit_all(operations)
    simulation.run(lambda: simulation.now > 10)
    assert simulation.workers[0].stats.retransmissions <= MEMBERSHIP.slots * (10 / Timing().ceiling + 7)
    simulation.network = Network()
    simulation.finish(operations)
    assert simulation.now < 10 + 2 * Timing().ceiling
