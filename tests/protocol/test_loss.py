# SPDX-License-Identifier: Apache-2.0
"""Limits on the virtual time that losses cost. Packets that are only late are not sent again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median

import numpy as np
import pytest

from p4reduce.protocol import Membership, Operation
from tests.support.protocol.simulator import Network, Simulation

WORKERS, ROUNDS = 3, 20
SEEDS = 3


def ones(slots: int, rounds: int = ROUNDS) -> list[list[Operation]]:
    return [[Operation(np.ones(4 * slots * rounds, np.float32))] for _ in range(WORKERS)]


def job(slots: int) -> Membership:
    return Membership(1, 1, 0, WORKERS, slots=slots, lanes=1, block_size=4, first_seq=0)


def seconds(slots: int, loss: float, seed: int) -> float:
    """Return the virtual seconds that an operation takes after another one, which has measured the path."""
    simulation = Simulation(job(slots), seed=seed)
    simulation.reduce(ones(slots, 2))
    simulation.network = Network(loss=loss)
    begin = simulation.now
    simulation.reduce(ones(slots))
    return simulation.now - begin


@pytest.mark.parametrize(
    ("slots", "loss", "most"),
    [(slots, loss, most) for slots in (32, 8) for loss, most in ((0.01, 1.7), (0.05, 3.0), (0.1, 5.0))]
    + [(1, 0.01, 1.5), (1, 0.05, 3.5), (1, 0.1, 6.5)],  # where nothing later is under way
)
def test_a_loss_costs_about_a_round_trip(slots: int, loss: float, most: float) -> None:
    """The operation takes 21 round trips without loss. The slot that loses most packets decides how long it takes."""
    without = seconds(slots, 0.0, 0)
    seeds = range(SEEDS if slots > 1 else 3 * SEEDS)
    assert median(seconds(slots, loss, seed) for seed in seeds) < most * without


class Pauses(Simulation):
    """A simulation in which now and then a worker stands still for 50 round trips, while its packets wait."""

    def __init__(self, slots: int, seed: int) -> None:
        super().__init__(job(slots), seed=seed)
        self.awake = [0.0] * WORKERS
        self.pauses = 0

    def _receive(self, rank: int, payload: bytes) -> None:
        if self.random.random() < 0.01 and self.now >= self.awake[rank]:
            self.awake[rank] = self.now + 0.01
            self.pauses += 1
        if self.now < self.awake[rank]:
            self.at(self.awake[rank], partial(super()._receive, rank, payload))
        else:
            super()._receive(rank, payload)

    def _tick(self, rank: int) -> None:
        if self.now < self.awake[rank]:
            self._timers[rank] = self.awake[rank]
            self.at(self.awake[rank], partial(self._tick, rank))
        else:
            super()._tick(rank)


def test_who_stands_still_now_and_then_makes_few_packets_be_sent_again() -> None:
    simulation = Pauses(32, seed=1)
    simulation.reduce(ones(32, 200))
    assert simulation.pauses > 100
    a_pause = sum(worker.stats.retransmissions for worker in simulation.workers) / simulation.pauses
    assert a_pause < 2 * 2 * 5, "two others, two packets at a time, and twice the time before the next"
    assert simulation.resent < 0.05


def test_who_begins_an_operation_late_is_seldom_asked_after() -> None:
    """Meanwhile another operation goes on in a few slots, whose packets overtake those that wait in all others."""
    busy, slots, rounds = 4, 32, 400
    simulation = Simulation(job(slots), seed=1)
    simulation.reduce(ones(slots, 2))
    before = [worker.stats.retransmissions for worker in simulation.workers]
    data = np.zeros((rounds, slots, 4), np.float32)
    data[:, :busy] = 1.0
    first = [[Operation(data.ravel().copy())] for _ in range(WORKERS)]
    second = [own[0] for own in ones(slots, 1)]
    begin = simulation.now
    for rank, operation in enumerate(second):
        simulation.submit(rank, operation, when=begin + (0.06 if rank == 1 else 0.001))
    simulation.reduce(first)
    assert simulation.now > begin + 0.06, "the first took longer, and went on all the time"
    simulation.finish(second)
    for worker, had in zip(simulation.workers, before, strict=True):
        assert worker.stats.retransmissions - had <= (slots - busy) * 8


class Bursts(Simulation):
    """A network in which all ranks but rank 0 share a link, which other traffic fills for 10 ms at a time.

    The link carries 10,000 packets a second each way.
    """

    def __init__(self, slots: int, seed: int) -> None:
        super().__init__(job(slots), seed=seed)
        self.free_at = {"up": 0.0, "down": 0.0}
        self.next_burst = {"up": 0.0, "down": 0.0}

    def _cross(self, way: str, arrive: Callable[[], None]) -> None:
        while self.next_burst[way] <= self.now:
            self.free_at[way] = max(self.free_at[way], self.next_burst[way]) + 0.01
            self.next_burst[way] += 0.02 * self.random.uniform(0.6, 1.7)
        self.free_at[way] = max(self.free_at[way], self.now) + 1 / 10_000
        self.at(self.free_at[way], arrive)

    def to_switch(self, rank: int, payload: bytes) -> None:
        arrive = partial(super().to_switch, rank, payload)
        arrive() if rank == 0 else self._cross("up", arrive)

    def to_worker(self, rank: int, payload: bytes) -> None:
        arrive = partial(super().to_worker, rank, payload)
        arrive() if rank == 0 else self._cross("down", arrive)


def test_what_stands_in_a_queue_is_not_sent_again() -> None:
    """The queue grows to 50 round trips, and again a moment later. Nothing is lost, and only a few probes are sent."""
    simulation = Bursts(64, seed=1)
    for _ in range(4):
        simulation.reduce(ones(64, 10))
    assert simulation.resent < 0.05
    assert max(worker.stats.slowdowns for worker in simulation.workers) <= 1
