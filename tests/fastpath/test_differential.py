# SPDX-License-Identifier: Apache-2.0
"""The C and the Python worker send the same packets, given the same events: any schedule, and any datagram."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4reduce.protocol import Membership, Operation
from p4reduce.protocol.constants import NO_KEY, Op
from p4reduce.protocol.fingerprint import fingerprint
from p4reduce.protocol.job_errors import REASONS
from p4reduce.protocol.packet import Codec, Packet
from tests.support.protocol import c_numbers, simulator, worker_pair
from tests.support.protocol.scenarios import random_calls, random_membership
from tests.support.protocol.schedules import BATCHES, SCHEDULES, batches, run_schedule
from tests.support.protocol.worker_pair import Pair

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

SEEDS = max(20, SCHEDULES // 4)


@pytest.fixture(autouse=True)
def _pairs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pair, "both", True)


@batches
def test_same_packets_in_any_schedule(batch: int) -> None:
    for seed in range(batch, SEEDS, BATCHES):
        try:
            run_schedule(seed, tree=seed % 3 == 0)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error


TWO_RACKS = ((0, 1), (2,))


@pytest.mark.parametrize(
    ("loss", "duplicates", "marks", "racks"),
    [
        pytest.param(0.05, 0.05, 0, (), id="one switch"),
        pytest.param(0.05, 0.05, 0, TWO_RACKS, id="two racks"),
        pytest.param(0.05, 0.05, 0.1, TWO_RACKS, id="two racks with marks"),
        pytest.param(0, 0, 0.1, (), id="marks"),
        *(
            pytest.param(loss, 0, 0, racks, marks=pytest.mark.slow, id=f"loss {loss}, {len(racks)} racks")
            for loss in (0, 0.05)
            for racks in ((), TWO_RACKS)
        ),
    ],
)
def test_same_pace(loss: float, duplicates: float, marks: float, racks: tuple[tuple[int, ...], ...]) -> None:
    membership = Membership(1, 1, 0, 3, slots=32, lanes=1, block_size=4, first_seq=2**32 - 4)
    network = simulator.Network(delay=0.002, loss=loss, duplicates=duplicates, duplicate_delay=0.01, marks=marks)
    simulation = simulator.Simulation(membership, seed=1, network=network, racks=racks)
    simulation.reduce([[Operation(np.ones(4 * 32 * 8, np.float32))] for _ in range(3)])
    assert sum(worker.stats.slowdowns for worker in simulation.workers) > 0
    assert bool(marks) == (sum(worker.stats.marks for worker in simulation.workers) > 0)


def mutated(payload: bytes, random: Random, membership: Membership) -> bytes:
    """Return a changed packet: with other bytes, of another length, or well-formed with other contents."""
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


@batches
def test_same_reaction_to_any_datagram(batch: int) -> None:
    """Packets of a normal run are mixed with others: wrong, old, of other ops, or slightly changed ones."""
    for seed in range(batch, SEEDS, BATCHES):
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
    """With 65 ranks or more, the largest float32 is rounded up to 2^128, and leaves no residual."""
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


@given(
    st.integers(0, 2**40),
    st.sampled_from(["bfloat16", "float16", "float32", "int32"]),
    st.sampled_from(["sum", "avg"]),
    st.integers(0, 2**64 - 1),
)
def test_any_fingerprint(counter: int, dtype: str, op: str, numel: int) -> None:
    assert c_numbers.fingerprint(counter, dtype, op, numel) == fingerprint(counter, dtype, op, numel)
