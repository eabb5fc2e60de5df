# SPDX-License-Identifier: Apache-2.0
"""Sums stay exact when a job's slots change between two operations, and late packets of before change nothing.

The slots become fewer, or more again, and are elsewhere in the switch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p4reduce.protocol import Membership, Operation, Worker
from p4reduce.protocol.constants import Outcome
from p4reduce.protocol.packet import Codec
from tests.support.protocol.dealt_switch import DealtSwitch, move
from tests.support.protocol.scenarios import (
    Call,
    call,
    check_end,
    random_array,
    random_calls,
    random_membership,
    random_network,
    random_racks,
    reduce_calls,
)
from tests.support.protocol.simulator import Network, Simulation

pytestmark = [pytest.mark.filterwarnings("error::RuntimeWarning"), pytest.mark.usefixtures("each_worker")]


def begin_anew(simulation: Simulation, slots: int) -> None:
    """Change the job's slots as the controller does it, when all operations are done."""
    [first_seq] = {worker.next_first_seq() for worker in simulation.workers}
    for switch in (simulation.switch, *simulation.leaves):
        move(switch, slots, first_seq)
    for worker in simulation.workers:
        worker.begin_anew(slots, first_seq)


def run_changes(seed: int, changes: Sequence[float], *, tree: bool = False, aggregators: int = 1) -> Simulation:
    """Run random operations, and change the job's slots after some of them.

    changes: the shares of the assigned slots that the job has, one after the other.
    """
    random = Random(seed)
    membership = random_membership(random)
    racks = random_racks(random, membership) if tree else ()
    switch = DealtSwitch(membership, aggregators) if aggregators > 1 else None
    simulation = Simulation(membership, seed=seed, network=random_network(random), racks=racks, switch=switch)
    done: list[Call] = []
    slots = membership.slots
    for share in [1.0, *changes]:
        slots = max(1, round(share * membership.slots))
        begin_anew(simulation, slots)
        calls = random_calls(random, membership, len(done))
        reduce_calls(simulation, calls, limit=10_000 + simulation.now, skew=random.choice([0, 0.001, 1.0]))
        done += calls
    check_end(simulation, done)
    for worker in simulation.workers:
        assert worker.submitted == len(done)
        assert worker.membership.slots == slots
    return simulation


SHAPES = st.one_of(st.just({}), st.just({"tree": True}), st.fixed_dictionaries({"aggregators": st.integers(2, 5)}))


@pytest.mark.parametrize("examples", [25, pytest.param(200, marks=pytest.mark.slow)])
def test_sums_are_the_references_whatever_the_slots(examples: int) -> None:
    """The slots are on one switch, below several leaves, or striped over aggregators."""

    @given(st.integers(0, 2**32), st.lists(st.floats(0, 1), min_size=1, max_size=4), SHAPES)
    @settings(max_examples=examples)
    def check(seed: int, changes: list[float], shape: dict[str, Any]) -> None:
        run_changes(seed, changes, **shape)

    check()


def test_late_packets_reach_the_changed_slots() -> None:
    """The schedules would prove little if none did."""
    stale = bad = 0
    for seed in range(40):
        simulation = run_changes(seed, [0.3, 1.0])
        stale += simulation.switch.outcomes[Outcome.STALE]
        bad += simulation.switch.outcomes[Outcome.BAD_SLOT]
        assert simulation.switch.outcomes[Outcome.MISMATCH] == 0
        if min(stale, bad) > 0:
            return
    raise AssertionError(f"in 40 schedules, {stale} were of an older round, and {bad} of slots that are gone")


def shape(**fields: int) -> Membership:
    one = Membership(job=1, generation=1, rank=0, world_size=1, slots=8, lanes=1, block_size=4, first_seq=0)
    return replace(one, **fields)


def alone(**fields: int) -> tuple[Simulation, Worker]:
    """Return the simulation of a job of one rank, and its worker."""
    simulation = Simulation(shape(**fields), seed=1)
    return simulation, simulation.workers[0]


@pytest.mark.parametrize("first_seq", [0, 2**32 - 4, 2**31 - 6])
def test_the_next_first_seq_is_even_and_no_slot_has_come_to_it(first_seq: int) -> None:
    simulation, worker = alone(first_seq=first_seq)
    assert worker.next_first_seq() == first_seq  # before the first operation
    values = np.zeros(8 * 4 * 5, np.float32)
    values[3 * 4 :: 8 * 4] = 1  # slot 3 has five rounds with values, and the announcement
    simulation.reduce([[Operation(values)]])
    assert worker.next_first_seq() == (first_seq + 6) % 2**32
    simulation.reduce([[Operation(np.zeros(4, np.float32))]])  # slot 0 has its second
    assert worker.next_first_seq() == (first_seq + 6) % 2**32
    begin_anew(simulation, 2)
    assert worker.next_first_seq() == (first_seq + 6) % 2**32
    simulation.sent[0].clear()
    simulation.reduce([[Operation(np.ones(4 * 4, np.float32))]])
    codec = Codec(1, 4)
    sent = [codec.decode(payload) for payload in simulation.sent[0]]
    assert {packet.slot >> 1 for packet in sent} == {0, 1}
    assert min((packet.seq - first_seq) % 2**32 for packet in sent) == 6
    assert worker.next_first_seq() == (first_seq + 10) % 2**32  # 3 rounds, and one up


def test_what_cannot_be_is_refused() -> None:
    simulation, worker = alone(first_seq=2**32 - 4)
    simulation.reduce([[Operation(np.ones(4, np.float32))]])
    least = worker.next_first_seq()
    assert least == 2**32 - 2
    for slots in (0, 9):
        with pytest.raises(ValueError, match=f"slots are {slots}: accepted are 1 to 8"):
            worker.begin_anew(slots, least)
    for first_seq in (least + 1, least - 2, (least + 2**31) % 2**32):
        with pytest.raises(ValueError, match=f"first_seq is {first_seq}: accepted are even numbers"):
            worker.begin_anew(1, first_seq)
    worker.begin_anew(1, 2)
    worker.begin_anew(8, 2)  # as many as were assigned, not as there were
    worker.submit(Operation(np.ones(4, np.float32)), 0.0)
    with pytest.raises(ValueError, match="only between two operations"):
        worker.begin_anew(8, 4)


def test_late_results_of_slots_that_are_gone_are_stale() -> None:
    simulation, worker = alone(slots=4)
    simulation.reduce([[Operation(np.ones(16, np.float32))]])
    codec = Codec(1, 4)
    worker.begin_anew(1, worker.next_first_seq())
    stale = worker.stats.stale
    for payload in simulation.received[0]:
        worker.receive(payload, 1.0)
    assert worker.stats.stale == stale + len(simulation.received[0])
    assert worker.stats.foreign == 0
    packet = codec.decode(simulation.received[0][0])
    packet.slot = 8 | packet.seq & 1  # one that the job never had
    worker.receive(codec.encode(packet), 1.0)
    assert worker.stats.foreign == 1


def test_what_is_known_of_the_path_stays() -> None:
    membership = shape(world_size=2, slots=4)
    simulation = Simulation(membership, seed=1, network=Network(latency=0.003))
    for slots in (4, 2, 4):
        begin_anew(simulation, slots)
        reduce_calls(simulation, [call([random_array(Random(rank), 64, 4, np.float32) for rank in range(2)], 4)])
    assert [worker.stats.retransmissions for worker in simulation.workers] == [0, 0]


def test_each_rank_begins_anew_at_its_own_time() -> None:
    """A rank that is released first waits for the others in the new slots."""
    membership = shape(world_size=3, slots=4)
    simulation = Simulation(membership, seed=1, network=Network(loss=0.1, duplicates=0.3, duplicate_delay=3.0))
    arrays = [[random_array(Random(10 * number + rank), 200, 4, np.float32) for rank in range(3)] for number in (0, 1)]
    first, second = (call(own, 4, counter=number) for number, own in enumerate(arrays))
    simulation.reduce([[operation] for operation in first.operations])
    [first_seq] = {worker.next_first_seq() for worker in simulation.workers}
    move(simulation.switch, 2, first_seq)
    for rank, worker in enumerate(simulation.workers):
        simulation.at(simulation.now + rank, partial(worker.begin_anew, 2, first_seq))
        simulation.submit(rank, second.operations[rank], simulation.now + rank)
    simulation.finish(second.operations)
    first.check()
    second.check()
