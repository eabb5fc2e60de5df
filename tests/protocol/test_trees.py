# SPDX-License-Identifier: Apache-2.0
"""Traffic on the links between leaves and spine, and answers that reach the workers from above."""

from __future__ import annotations

import numpy as np
import pytest

from p4reduce.protocol import Membership, Operation
from p4reduce.protocol.constants import Outcome
from p4reduce.protocol.packet import Codec
from tests.support.protocol.scenarios import call, reduce_calls
from tests.support.protocol.simulator import Network, Simulation

HEADERS = 14 + 20 + 8  # of Ethernet, IPv4 and UDP
NUMEL = 64 * 4 * 32
LOSSLESS = Network()


def members(size: int, *racks: tuple[int, ...]) -> Membership:
    return Membership(1, 1, 0, size, slots=8, lanes=4, block_size=64, first_seq=0, peers=racks[0])


def reduced(racks: tuple[tuple[int, ...], ...], density: float, network: Network = LOSSLESS) -> Simulation:
    """Return the simulation after one allreduce. density: the share of each rank's blocks that is not zero."""
    size = sum(map(len, racks))
    rng = np.random.default_rng(size)
    arrays = [rng.standard_normal(NUMEL).astype(np.float32) for _ in range(size)]
    for array in arrays:
        array.reshape(-1, 64)[rng.random(NUMEL // 64) >= density] = 0
    simulation = Simulation(members(size, *racks), seed=1, network=network, racks=racks)
    reduce_calls(simulation, [call(arrays, 64)])
    return simulation


def bytes_of(packets: list[bytes]) -> int:
    return sum(HEADERS + len(packet) for packet in packets)


@pytest.mark.parametrize("per_rack", [1, 4, 12])
def test_between_racks_there_is_one_stream(per_rack: int) -> None:
    """However many workers a rack has, each way the link of its leaf carries what one worker sends or receives."""
    racks = (tuple(range(per_rack)), tuple(range(per_rack, 2 * per_rack)))
    simulation = reduced(racks, density=1)
    one_worker = bytes_of(simulation.sent[0])
    assert bytes_of(simulation.up) <= 2 * 1.05 * one_worker  # two leaves
    assert bytes_of(simulation.down) <= 2 * 1.05 * one_worker
    assert simulation.leaves[0].outcomes[Outcome.SENT_UP] == simulation.leaves[0].outcomes[Outcome.STORED]


def test_a_leaf_sends_the_union_of_its_rack_and_no_more() -> None:
    """Blocks that only the other rack has do not go up as zeros, but where the answer needs the room."""
    racks = ((0, 1), (2, 3))
    simulation = reduced(racks, density=0.1)
    codec = Codec(4, 64)
    union: dict[tuple[int, int, int], int] = {}
    for index, rack in enumerate(racks):
        for packet in (codec.decode(payload) for rank in rack for payload in simulation.sent[rank]):
            key = (index, packet.slot, packet.seq)
            union[key] = union.get(key, 0) | packet.present
    partials = [codec.decode(payload) for payload in simulation.up]
    assert {(packet.worker, packet.slot, packet.seq): packet.present for packet in partials} == union
    assert any(packet.present != packet.active for packet in partials)


def test_a_rack_that_waits_for_another_asks_with_one_voice() -> None:
    """While the other rack is not there, only the worker that completed the round has its packets sent up again."""
    simulation = Simulation(members(8, (0, 1, 2, 3)), seed=1, racks=((0, 1, 2, 3), (4, 5, 6, 7)))
    operations = [Operation(np.ones(64, np.float32)) for _ in range(8)]
    for rank in range(4):
        simulation.submit(rank, operations[rank])
    for rank in range(4, 8):
        simulation.submit(rank, operations[rank], when=5.0)
    simulation.run(lambda: simulation.now >= 4.9 or not simulation._events, limit=6.0)
    asked = [worker.stats.retransmissions for worker in simulation.workers[:4]]
    assert min(asked) > 10
    assert simulation.leaves[0].outcomes[Outcome.SENT_UP] - 1 == asked[3]
    for worker in simulation.workers[:4]:
        assert worker.stats.statuses > 10
        assert worker.awaited() == (4, 5, 6, 7)
    simulation.finish(operations)
    assert all(operation.error is None for operation in operations)


def test_awaited_are_those_of_the_own_rack_first() -> None:
    simulation = Simulation(members(4, (2, 0)), seed=1, racks=((2, 0), (3, 1)))
    simulation.submit(0, Operation(np.ones(64, np.float32)))
    simulation.run(lambda: simulation.now > 1.0, limit=2.0)
    assert simulation.workers[0].awaited() == (2,)


def test_the_round_trip_is_measured_over_the_whole_path() -> None:
    """The worker that completes the round of the last rack is named to itself alone, as on a single switch."""
    simulation = reduced(((0, 1), (2, 3)), density=1, network=Network(latency=0.003))
    for worker in simulation.workers:
        assert worker._recovery.timer.srtt is None or worker._recovery.timer.srtt > 0.0119
    assert any(worker._recovery.timer.srtt is not None for worker in simulation.workers)


def test_no_round_trip_is_learnt_from_a_packet_that_was_sent_up_twice() -> None:
    """Otherwise each loss between leaf and spine would raise the rack's retransmission timeout."""
    simulation = reduced(((0, 1), (2, 3)), density=1, network=Network(latency=0.0005, loss=0.2))
    assert max(worker._recovery.timer.srtt or 0 for worker in simulation.workers) < 0.02
