# SPDX-License-Identifier: Apache-2.0
"""Sums stay exact when the switches of an aggregator are lost at any moment, and its slots go on at other ones."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p4reduce.protocol import Membership, Operation
from p4reduce.protocol.constants import Op
from p4reduce.protocol.packet import Codec
from tests.support.protocol.moving import LOSSES, Loss, LyingSimulation, run_losses
from tests.support.protocol.scenarios import random_calls, random_membership, random_network
from tests.support.protocol.simulator import Network, Simulation
from tests.support.protocol.worker_pair import new_worker

pytestmark = [pytest.mark.filterwarnings("error::RuntimeWarning"), pytest.mark.usefixtures("each_worker")]


@pytest.mark.parametrize("examples", [40, pytest.param(500, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_sums_are_the_references_whenever_aggregators_are_lost(examples: int) -> None:
    @given(st.integers(0, 2**32), st.integers(1, 4), LOSSES, st.booleans())
    @settings(max_examples=examples)
    def check(seed: int, aggregators: int, losses: list[Loss], tree: bool) -> None:
        run_losses(seed, aggregators, losses, tree=tree)

    check()


@pytest.mark.parametrize("examples", [30, pytest.param(400, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_a_rank_that_tells_false_rounds_makes_no_wrong_sum(examples: int) -> None:
    """Operations end with the right sum, or fail, or wait for ever."""
    ends = set()

    @given(st.integers(0, 2**32), st.integers(1, 3), LOSSES)
    @settings(max_examples=examples)
    def check(seed: int, aggregators: int, losses: list[Loss]) -> None:
        random = Random(seed)
        membership = random_membership(random)
        losses = [replace(one, aggregator=one.aggregator % aggregators, abandoned=frozenset()) for one in losses]
        simulation = LyingSimulation(
            membership, aggregators=aggregators, losses=losses, seed=seed, network=random_network(random)
        )
        calls = random_calls(random, membership)
        operations = [operation for one in calls for operation in one.operations]
        for one in calls:
            simulation.submit_all(one.operations)
        simulation.run(lambda: simulation.now > 100 or all(one.done for one in operations))
        for one in calls:
            for operation, own in zip(one.operations, one.inputs, strict=True):
                ends.add("waits" if not operation.done else "fails" if operation.error else "well")
                if operation.done and operation.error is None:
                    expected = own if operation.read_only else one.expected
                    assert operation.data.tobytes() == expected.tobytes()

    check()
    assert ends >= {"fails", "well"}


@pytest.mark.parametrize("tree", [True, False])
def test_ranks_that_have_ended_all_operations_send_packets_again(tree: bool) -> None:
    """So a rank may leave, if it lingers."""
    assert sum(run_losses(seed, 2, [Loss(seed, 0, late=True)], tree=tree).lost_late for seed in range(40)) > 10


def test_ranks_that_are_ahead_send_packets_of_the_round_before() -> None:
    """The schedules would prove little if no rank ever did."""
    repeated = sum(run_losses(seed, 1, [Loss(0, 30, spread=0.0005)]).repeated for seed in range(40))
    assert repeated > 0


def pair(aggregators: int = 1) -> tuple[Simulation, Membership]:
    """Return the simulation of a job of two ranks with three slots, and its membership."""
    membership = Membership(job=1, generation=1, rank=0, world_size=2, slots=3, lanes=1, block_size=4, first_seq=0)
    simulation = Simulation(membership, seed=1, network=Network(latency=0.001))
    for worker in simulation.workers:
        worker.set_aggregators(aggregators)
    return simulation, membership


def seqs(payloads: list[bytes]) -> list[tuple[int, int]]:
    """Return slot and round of packets."""
    packets = [Codec(1, 4).decode(payload) for payload in payloads]
    assert {packet.op for packet in packets} <= {Op.DATA}
    return [(packet.slot >> 1, packet.seq) for packet in packets]


def test_an_idle_rank_repeats_its_last_packet_before_it_begins_the_next_operation() -> None:
    simulation, _ = pair(2)
    worker = simulation.workers[0]
    simulation.reduce([[Operation(np.ones(12, np.float32))] for _ in range(2)])
    simulation.drain()
    assert worker.suspend(1) == [2]  # an announcement and a block
    former = [payload for payload in simulation.sent[0] if seqs([payload]) == [(1, 1)]]
    worker.rewind(1, [1], 1.0)
    assert worker.take_packets() == former[:1]
    data = np.ones(12, np.float32)
    worker.submit(Operation(data), 1.0)
    assert seqs(worker.take_packets()) == [(0, 2), (2, 2)]
    [answer] = [payload for payload in simulation.received[0] if Codec(1, 4).decode(payload).slot == 3]
    worker.receive(answer, 1.001)
    assert seqs(worker.take_packets()) == [(1, 2)]
    assert data.tolist() == [1.0] * 12  # sums of before are not written again
    worker.receive(answer, 1.002)
    assert worker.stats.stale == 1


def test_a_suspended_slot_sends_nothing_and_takes_no_answer() -> None:
    simulation, membership = pair()
    worker = new_worker(membership)
    worker.set_aggregators(3)
    worker.submit(Operation(np.ones(12, np.float32)), 0.0)
    first = worker.take_packets()
    assert worker.suspend(0) == [0]
    simulation.switch.receive(0, first[0])
    other = new_worker(replace(membership, rank=1))
    other.submit(Operation(np.ones(12, np.float32)), 0.0)
    _, result = simulation.switch.receive(1, other.take_packets()[0]) or ((), b"")
    worker.receive(result, 0.001)
    assert worker.stats.stale == 1
    for now in (0.02, 1.0, 2.0, 3.0):
        worker.tick(now)
        assert 0 not in {slot for slot, _ in seqs(worker.take_packets())}
    assert worker.suspend(0) == [0]
    assert worker.unanswered(10.0, 3.0) in (2, 4)
    worker.rewind(0, [0], 10.0)
    assert worker.take_packets() == first[:1]


def test_rounds_that_cannot_be_are_refused() -> None:
    simulation, membership = pair()
    worker = new_worker(membership)
    worker.set_aggregators(2)
    for rounds in ([], [0, 0, 0]):
        with pytest.raises(ValueError, match=f"rounds are {len(rounds)}: accepted are 2, one for each of the slots"):
            worker.rewind(0, rounds, 0.0)
    for seq in (1, 2**32 - 1):  # it has sent no packet yet
        with pytest.raises(ValueError, match=f"the round of slot 2 is {seq}: accepted are 0 and the round before"):
            worker.rewind(0, [0, seq], 0.0)
    worker = simulation.workers[0]
    simulation.reduce([[Operation(np.ones(4, np.float32))] for _ in range(2)])
    assert worker.suspend(0) == [2, 0, 0]
    for seq in (0, 3):
        with pytest.raises(ValueError, match=f"the round of slot 0 is {seq}: accepted are 2 and the round before"):
            worker.rewind(0, [seq, 0, 0], 0.0)
    worker.rewind(0, [1, 0, 0], 0.0)


def test_an_aggregator_without_slots_has_no_rounds() -> None:
    simulation, _ = pair(4)
    worker = simulation.workers[0]
    assert worker.suspend(3) == []
    worker.rewind(3, [], 0.0)


def test_slots_that_change_forget_the_rounds_before() -> None:
    simulation, _ = pair()
    worker = simulation.workers[0]
    simulation.reduce([[Operation(np.ones(12, np.float32))] for _ in range(2)])
    worker.suspend(0)
    worker.begin_anew(2, 2)
    assert worker.suspend(0) == [2, 2]
    with pytest.raises(ValueError, match="the round of slot 0 is 1: accepted are 2 and"):
        worker.rewind(0, [1, 2], 0.0)


def test_the_path_is_measured_anew() -> None:
    """The time-out is the initial one again, not that of the former path or of the wait for it."""
    simulation, _ = pair()
    worker = simulation.workers[0]
    simulation.reduce([[Operation(np.ones(12, np.float32))] for _ in range(2)])
    now = simulation.now
    worker.submit(Operation(np.ones(12, np.float32)), now)
    worker.take_packets()
    for _ in range(8):
        now = worker.next_deadline()
        worker.tick(now)
        worker.take_packets()
    worker.suspend(0)
    assert worker.next_deadline() is None
    worker.rewind(0, [2, 2, 2], now)
    assert worker.next_deadline() == pytest.approx(now + 0.02)
