# SPDX-License-Identifier: Apache-2.0
"""The C and the Python worker send the same packets, given the same events: any schedule, and any datagram."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
import simulator
import test_begin_anew
import test_disagreement
import test_pacing
import test_scanning
import test_schedules
import test_traffic
from pair import Pair
from scenarios import random_calls, random_membership
from test_schedules import run_schedule

from p4reduce.protocol import Membership, Operation
from p4reduce.protocol.constants import NO_KEY, Op
from p4reduce.protocol.endings import REASONS
from p4reduce.protocol.operation import Zeros
from p4reduce.protocol.pacing import Pace
from p4reduce.protocol.packet import Codec, Packet

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

SCHEDULES, BATCHES = max(20, test_schedules.SCHEDULES // 4), test_schedules.BATCHES


@pytest.fixture(autouse=True)
def _pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulator, "Worker", Pair)


@test_schedules.batches
def test_same_packets_in_any_schedule(batch: int) -> None:
    for seed in range(batch, SCHEDULES, BATCHES):
        try:
            run_schedule(seed, tree=seed % 3 == 0)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


def test_same_packets_whatever_the_slots() -> None:
    for seed in range(30):
        test_begin_anew.run_changes(seed, [0.3, 1.0, 0.0], tree=seed % 3 == 0)
    test_begin_anew.test_each_rank_begins_anew_at_its_own_time()
    test_begin_anew.test_late_results_of_slots_that_are_gone_are_stale()


@pytest.mark.parametrize("racks", [(), ((0, 1), (2,))], ids=["one switch", "two racks"])
@pytest.mark.parametrize("case", test_disagreement.CASES)
def test_same_errors(case: str, racks: tuple[tuple[int, ...], ...]) -> None:
    test_disagreement.test_every_rank_is_told(case, racks)


@pytest.mark.parametrize("zeros", ["first", "sent"])
def test_same_blocks_of_zeros_are_sent(zeros: Zeros) -> None:
    test_traffic.test_blocks_of_zeros_that_are_sent(zeros, all_ranks=True)


def test_same_packets_however_late_the_scan_is() -> None:
    for seed in range(100, 105):
        test_scanning.run_scanned(seed)


def test_scans_are_bounded_alike() -> None:
    for share in (0.0, 0.01, 0.1):
        test_scanning.test_first_packets_leave_after_a_bounded_scan(share)
    test_scanning.test_what_is_dense_needs_no_tick()
    test_scanning.test_operations_under_way_go_on_while_another_is_scanned()
    test_scanning.test_nothing_is_scanned_after_the_end()


@pytest.mark.parametrize("racks", [(), ((0, 1), (2,))], ids=["one switch", "two racks"])
@pytest.mark.parametrize(("loss", "duplicates"), [(0, 0), (0.05, 0), (0.05, 0.05)])
def test_same_pace(
    loss: float, duplicates: float, racks: tuple[tuple[int, ...], ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where answers to copies come late: limits are lifted, and credit is taken back."""
    lifted = []
    lift = Pace.lift
    monkeypatch.setattr(Pace, "lift", lambda pace: (lifted.append(pace), lift(pace)))
    membership = Membership(1, 1, 0, 3, slots=32, lanes=1, block_size=4, first_seq=2**32 - 4)
    network = simulator.Network(delay=0.002, loss=loss, duplicates=duplicates, duplicate_delay=0.01)
    slowdowns = 0
    for seed in (1, 2):
        simulation = simulator.Simulation(membership, seed=seed, network=network, racks=racks)
        for _ in range(2):
            simulation.reduce([[Operation(np.ones(4 * 32 * 15, np.float32))] for _ in range(3)])
        slowdowns += sum(worker.stats.slowdowns for worker in simulation.workers)
    assert slowdowns > 0
    assert lifted or loss or racks


@pytest.mark.slow
def test_same_pace_where_a_queue_overflows() -> None:
    simulation = test_pacing.Bottleneck(10_000, 100)
    test_pacing.reduced(simulation)
    assert min(test_pacing.slowdowns(simulation)) > 0


@pytest.mark.slow
def test_same_pace_where_a_rank_is_late_or_loses_the_end() -> None:
    test_pacing.test_who_comes_late_slows_nobody_down()
    test_pacing.test_a_loss_at_the_end_of_an_operation_says_nothing_of_the_next()


def mutated(payload: bytes, random: Random, membership: Membership) -> bytes:
    """Something like a packet that arrived: other bytes, another length, or well-formed with other contents."""
    kind = random.randrange(4)
    changed = bytearray(payload)
    if kind == 0 and changed:
        for _ in range(random.randint(1, 3)):
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
        return bytes(changed)
    if kind == 1:
        return bytes(changed[: random.randint(0, len(changed))])
    if kind == 2:
        return random.randbytes(random.randint(0, 200))
    codec = Codec(membership.lanes, membership.block_size)
    try:
        packet: Packet = codec.decode(payload)
    except ValueError:
        return payload
    packet.op = random.choice(list(Op))
    packet.keys = [random.choice([key, NO_KEY, key - 1 & 0xFFFFFFFF, key ^ 128, 255]) for key in packet.keys]
    packet.slot ^= random.choice([0, 0, 1, 2, 256])
    packet.seq = packet.seq + random.choice([0, 0, 0, 1, -1, 2]) & 0xFFFFFFFF
    packet.fingerprint ^= random.choice([0, 0, 0, 1])
    packet.worker = random.choice([packet.worker, membership.rank, 40])
    if packet.op == Op.ABORT and random.random() < 0.5:
        packet.seq, packet.fingerprint = divmod(membership.abort_secret, 2**32)
        packet.keys[0] = random.choice([*REASONS, 0, 99])
    return codec.encode(packet)


@test_schedules.batches
def test_same_reaction_to_any_datagram(batch: int) -> None:
    """Between the packets of a normal run come others: wrong, old, of other ops, or slightly changed ones."""
    for seed in range(batch, SCHEDULES, BATCHES):
        random = Random(seed)
        membership = random_membership(random)
        calls = random_calls(random, membership)
        simulation = simulator.Simulation(membership, seed=seed)
        receive: Any = simulation._receive

        def receive_more(rank: int, payload: bytes, random: Random = random, receive: Any = receive) -> None:
            if random.random() < 0.2:
                simulation.workers[rank].receive(mutated(payload, random, membership), simulation.now)  # noqa: B023
                simulation._after(rank)  # noqa: B023
            receive(rank, payload)

        simulation._receive = receive_more  # type: ignore[method-assign]
        for rank, operations in enumerate(zip(*(one.operations for one in calls), strict=True)):
            for operation in operations:
                simulation.submit(rank, operation)
        try:
            # Changed results are taken for true, so nothing is promised but that both workers do the same.
            simulation.run(lambda: simulation.now > 2.0 or not simulation._events, limit=3.0)  # noqa: B023
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


def test_nothing_is_left_of_what_is_infinite_for_all() -> None:
    """Of 65 ranks and more, the largest float32 is rounded up to 2^128."""
    peers = tuple(range(20))
    membership = Membership(job=1, generation=1, rank=0, world_size=100, slots=1, lanes=1, block_size=4, first_seq=0,
                            peers=peers)  # fmt: skip
    pair, codec = Pair(membership), Codec(1, 4)
    operation = Operation(np.array([3.4028235e38, 1, 0, 0], np.float32), residual=np.ones(4, np.float32))
    pair.submit(operation, 0.0)
    for _ in range(2):
        [sent] = pair.take_packets()
        answer = codec.decode(sent)
        answer.op = Op.RESULT
        pair.receive(codec.encode(answer), 0.0)
    assert operation.done
    assert operation.data.tolist() == [np.inf, 0, 0, 0]
    assert operation.residual is not None
    assert operation.residual.tolist() == [0, 1, 0, 0]
