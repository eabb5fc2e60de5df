# SPDX-License-Identifier: Apache-2.0
"""Workers slow down when a queue overflows, and only then; and no faster path is left unused for long."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from random import Random

import numpy as np
import pytest

from p4reduce.protocol import Membership, Operation, Timing, Worker
from p4reduce.protocol.constants import Op
from p4reduce.protocol.pacing import Pace
from p4reduce.protocol.packet import Codec
from p4reduce.protocol.timing import RetransmissionTimer
from tests.support.protocol.simulator import Network, Simulation

SLOTS, WORKERS, ROUNDS = 256, 3, 8
SLOT_AND_SEQ = slice(8, 14)
MEMBERSHIP = Membership(1, 1, 0, WORKERS, slots=SLOTS, lanes=1, block_size=4, first_seq=0)


class Bottleneck(Simulation):
    """A network in which all packets to the switch cross one link.

    rate: the packets that the link carries a second.
    room: the packets that may wait in its queue.
    """

    def __init__(self, rate: float, room: int) -> None:
        super().__init__(MEMBERSHIP, seed=1)
        self.rate, self.room = rate, room
        self.dropped = 0
        self._free_at = 0.0

    def to_switch(self, rank: int, payload: bytes) -> None:
        if (self._free_at - self.now) * self.rate >= self.room:
            self.dropped += 1
            return
        self._free_at = max(self._free_at, self.now) + 1 / self.rate
        self.at(self._free_at, partial(super().to_switch, rank, payload))


class Marking(Bottleneck):
    """A bottleneck that marks packets behind `limit` others. The switch marks the RESULT of a marked packet's round."""

    def __init__(self, rate: float, room: int, limit: int) -> None:
        super().__init__(rate, room)
        self.limit = limit
        self.longest = 0.0
        self._rounds: set[bytes] = set()

    def to_switch(self, rank: int, payload: bytes) -> None:
        waiting = (self._free_at - self.now) * self.rate
        self.longest = max(self.longest, waiting)
        if waiting >= self.limit:
            self._rounds.add(payload[SLOT_AND_SEQ])
        super().to_switch(rank, payload)

    def _receive(self, rank: int, payload: bytes) -> None:
        self.workers[rank].receive(payload, self.now, payload[SLOT_AND_SEQ] in self._rounds)
        self._after(rank)


class Busy(Simulation):
    """A switch that takes `each` seconds for a packet, and hosts with little time. Nothing is lost or overtaken."""

    def __init__(self, each: float, lateness: float, seed: int) -> None:
        super().__init__(MEMBERSHIP, seed=seed, lateness=lateness)
        self.each = each
        self._free_at = 0.0

    def to_switch(self, rank: int, payload: bytes) -> None:
        self._free_at = max(self._free_at, self.now) + self.each
        self.at(self._free_at, partial(super().to_switch, rank, payload))


def operations() -> list[list[Operation]]:
    return [[Operation(np.full(4 * SLOTS * ROUNDS, rank + 1.0, np.float32))] for rank in range(WORKERS)]


def reduced(simulation: Simulation) -> Simulation:
    made = operations()
    simulation.reduce(made)
    for own in made:
        np.testing.assert_array_equal(own[0].data, np.full(own[0].data.size, 6.0, np.float32))
    return simulation


def slowdowns(simulation: Simulation) -> list[int]:
    return [worker.stats.slowdowns for worker in simulation.workers]


def twice(rate: float, room: int) -> tuple[Simulation, int, float]:
    """Run two operations, and return the simulation, and the drops and the seconds of the second one."""
    simulation = Bottleneck(rate, room)
    reduced(simulation)
    dropped, begin = simulation.dropped, simulation.now
    reduced(simulation)
    return simulation, simulation.dropped - dropped, simulation.now - begin


def test_workers_slow_down_until_a_queue_has_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three times 256 packets, and room for 100: of those that are sent, few are lost."""
    paced, dropped, seconds = twice(10_000, 100)
    assert min(slowdowns(paced)) > 0
    monkeypatch.setattr(Pace, "on_loss", lambda *_: False)
    unpaced, all_dropped, all_seconds = twice(10_000, 100)
    assert slowdowns(unpaced) == [0] * WORKERS
    assert paced.dropped < unpaced.dropped / 2
    assert dropped < all_dropped / 3
    assert paced.resent < 0.75 * unpaced.resent
    assert seconds < 1.1 * all_seconds


@pytest.mark.usefixtures("each_worker")
def test_marks_keep_the_queue_short() -> None:
    """Without marks, a thousand packets are lost here. With them none is, and the operation ends sooner."""
    unmarked, marked = reduced(Bottleneck(10_000, 200)), reduced(Marking(10_000, 200, 20))
    assert unmarked.dropped > 1000
    assert marked.dropped == 0
    assert marked.longest < 150
    assert marked.resent == 0
    assert marked.now < unmarked.now
    for worker in marked.workers:
        assert worker.stats.marks >= worker.stats.slowdowns > 0


def test_marks_halve_the_window_once_in_a_round_trip() -> None:
    timer = RetransmissionTimer(Timing())
    pace = Pace(timer, 1000)
    assert not pace.on_mark(0.0, 100, 0.0), "there is no sample of the round trip yet"
    timer.sample(0.01)
    assert pace.on_mark(1.0, 100, 1.01)
    assert pace.window == 5
    assert not pace.on_mark(1.005, 100, 1.012), "the round began before the window was halved"
    assert pace.on_mark(1.01, 100, 1.02)
    assert pace.window == 2.5
    assert pace.on_mark(1.02, 100, 1.03)
    assert not pace.on_mark(1.03, 100, 1.04)
    assert pace.window == 2


@pytest.mark.usefixtures("each_worker")
def test_the_link_stays_full() -> None:
    """And a new job does not begin with a burst of all its slots."""
    simulation = Bottleneck(10_000, 100)
    simulation.submit(0, Operation(np.ones(4 * SLOTS, np.float32)))
    simulation.run(lambda: bool(simulation.sent[0]))
    assert 10 <= len(simulation.sent[0]) <= 11
    simulation = reduced(Bottleneck(10_000, 100))
    least = WORKERS * SLOTS * (ROUNDS + 1) / simulation.rate
    assert simulation.now < 1.6 * least
    assert min(slowdowns(simulation)) > 0


@pytest.mark.usefixtures("each_worker")
def test_the_first_round_trip_ends_the_pause_that_a_longer_one_was_assumed_for() -> None:
    """Before the first answer, a round trip is taken to be 20 ms, so packets are 2 ms apart. These take 20 us."""
    simulation = reduced(Simulation(MEMBERSHIP, seed=1, network=Network(latency=10e-6)))
    assert simulation.now < 0.001
    assert simulation.resent == 0


def test_what_is_lost_by_chance_slows_nobody_down() -> None:
    """Random losses come without queues, or next to none."""
    assert slowdowns(reduced(Simulation(MEMBERSHIP, seed=1, network=Network(loss=0.02)))) == [0] * WORKERS


def test_a_queue_that_does_not_overflow_slows_nobody_down() -> None:
    simulation = reduced(Bottleneck(10_000, WORKERS * SLOTS))
    assert (simulation.dropped, slowdowns(simulation), simulation.resent) == (0, [0] * WORKERS, 0)


@pytest.mark.slow
def test_when_the_path_is_wide_again_there_is_no_limit() -> None:
    simulation = reduced(Bottleneck(10_000, 100))
    simulation.rate, simulation.room = 1e6, 10_000
    for _ in range(6):
        reduced(simulation)
    before = simulation.now
    reduced(simulation)
    assert simulation.now - before < 2 * WORKERS * SLOTS * (ROUNDS + 1) / simulation.rate


@pytest.mark.slow
@pytest.mark.usefixtures("each_worker")
def test_who_comes_late_slows_nobody_down() -> None:
    """Its packets come one after the other, which from afar looks as if all others' had been lost."""
    random = Random(1)
    simulation = Bottleneck(10_000, 2 * WORKERS * SLOTS)
    reduced(simulation)
    for _ in range(30):
        made = [Operation(np.ones(4 * SLOTS, np.float32)) for _ in range(WORKERS)]
        simulation.submit_all(made, late={2: random.uniform(0.02, 0.2)})
        simulation.finish(made)
    assert (simulation.dropped, slowdowns(simulation)) == (0, [0] * WORKERS)


@pytest.mark.parametrize(("each", "seed"), [(1e-6, 2), pytest.param(1e-5, 1, marks=pytest.mark.slow)])
def test_who_has_little_time_slows_nobody_down(each: float, seed: int) -> None:
    """Ranks that scan begin their slots in other orders: packets are sent again that were not lost."""
    random, simulation = np.random.default_rng(seed), Busy(each, lateness=1e-3, seed=seed)
    for _ in range(3):
        made = [(random.random((60 * SLOTS, 1)) < 0.1) * np.ones(4, np.float32) for _ in range(WORKERS)]
        expected = sum(made)
        reducing = [[Operation(own.astype(np.float32).reshape(-1))] for own in made]
        simulation.reduce(reducing)
        for own in reducing:
            np.testing.assert_array_equal(own[0].data, np.ravel(expected))
    assert sum(worker.stats.retransmissions for worker in simulation.workers) > 20
    assert slowdowns(simulation) == [0] * WORKERS
    assert [worker._recovery.pace.window for worker in simulation.workers] == [math.inf] * WORKERS


@pytest.mark.usefixtures("each_worker")
def test_a_loss_at_the_end_of_an_operation_says_nothing_of_the_next() -> None:
    simulation = reduced(Simulation(MEMBERSHIP, seed=1))
    deliver, lost = simulation.to_switch, []

    def to_switch(rank: int, payload: bytes) -> None:
        if rank == 0 and not lost:
            lost.append(payload)
        else:
            deliver(rank, payload)

    simulation.to_switch = to_switch  # type: ignore[method-assign]
    simulation.reduce([[Operation(np.zeros(4, np.float32))] for _ in range(WORKERS)])
    assert simulation.workers[0].stats.retransmissions > 0
    made = [Operation(np.ones(4 * SLOTS, np.float32)) for _ in range(WORKERS)]
    simulation.submit_all(made, late={1: 0.1})
    simulation.finish(made)
    assert slowdowns(simulation) == [0] * WORKERS


def pace_of(smoothed: float) -> Pace:
    """Return a pace past slow start. Round trips take `smoothed` seconds, and took 10 ms without queues."""
    timer = RetransmissionTimer(Timing())
    timer.sample(0.01)
    timer.srtt = smoothed
    pace = Pace(timer, SLOTS)
    pace._ssthresh = 1.0
    pace.window = math.inf
    return pace


@pytest.mark.parametrize(("flight", "slower"), [(5, False), (7, True)])
def test_few_packets_in_queues_do_not_overflow_them(flight: int, slower: bool) -> None:
    pace = pace_of(smoothed=0.02)
    assert pace.on_loss(1.0, flight, 1.0) is slower


def test_what_was_to_be_sent_again_and_got_a_status_is_asked_after_later() -> None:
    membership = Membership(1, 1, 0, 2, slots=1, lanes=1, block_size=4, first_seq=0)
    codec = Codec(membership.lanes, membership.block_size)
    worker = Worker(membership)
    worker.submit(Operation(np.ones(8, np.float32)), 0.0)
    (announced,) = worker.take_packets()
    worker._recovery.pace.window, worker._recovery.pace._last_turn = 2.0, 0.99  # the next turn is at 1.0
    worker.tick(0.5)
    assert worker.take_packets() == []
    status = replace(codec.decode(announced), op=Op.STATUS, keys=[1])
    worker.receive(codec.encode(status), 0.6)
    worker.tick(1.0)
    assert worker.take_packets() == [], "it was answered"
    due = worker.next_deadline()
    assert due is not None
    worker.tick(due)
    worker.tick(worker._recovery.pace.next_turn)
    assert worker.take_packets() == [announced]


def test_a_path_without_any_delay() -> None:
    timer = RetransmissionTimer(Timing())
    timer.sample(0.0)
    pace = Pace(timer, SLOTS)
    assert not pace.on_loss(1.0, 100, 1.0)
    assert all(pace.take_turn(1.0) for _ in range(100))
