# SPDX-License-Identifier: Apache-2.0
"""An admitted member that sends what it should not: honest ranks get the sum of what members said, or an error."""

from __future__ import annotations

import numpy as np
import pytest

from p4reduce.errors import MismatchError
from p4reduce.protocol import Operation
from p4reduce.protocol.constants import Op
from p4reduce.protocol.packet import NO_VALUES
from tests.support.protocol.faulty_member import FAULTS, FaultyMember, check_ends, membership_of, run_case, run_cases
from tests.support.protocol.model_switch import ModelSwitch
from tests.support.protocol.simulator import Simulation

RACKS = ((0, 1), (2, 3))


def some_case(seed: int, *, tree: bool) -> FaultyMember:
    world_size = 4 if tree else 2 + seed % 3
    membership = membership_of(world_size, (2, 4)[seed % 2], 2, 1 + seed % 2)
    return run_case(seed, membership, racks=RACKS if tree else ())


@pytest.mark.parametrize("tree", [False, True], ids=["one switch", "tree"])
def test_never_another_sum(tree: bool) -> None:
    check_ends(run_cases(lambda seed: some_case(seed, tree=tree), FAULTS or 400))


def test_what_it_sends_last_is_not_what_is_known() -> None:
    """Far ahead, and then what it sent long ago, which is newer: the others' next packets are newer than that."""
    assert run_case(3732, membership_of(2, 4, 64, 2)).outcome == "ended"


class WrongLanes(Simulation):
    """A simulation in which a packet of rank 2 names one lane too few.

    It is the first packet of the second round with values. Its retransmission is right.
    """

    wrong = True

    def to_switch(self, rank: int, payload: bytes) -> None:
        packet = self.switch.codec.decode(payload)
        if rank == 2 and packet.seq == 4 and self.wrong:
            self.wrong = False
            packet.active = packet.present = 0b01
            packet.fingerprint = packet.fingerprint & ~0xFF | packet.active
            packet.values = packet.values[:1]
            payload = self.switch.codec.encode(packet)
        super().to_switch(rank, payload)


@pytest.mark.parametrize("racks", [(), ((0, 1), (2, 3))], ids=["one switch", "tree"])
@pytest.mark.parametrize("first", [False, True])
def test_other_lanes(first: bool, racks: tuple[tuple[int, ...], ...]) -> None:
    """All ranks get the error. It names the wrong rank if that came last, or else those that came before."""
    world_size = 4 if racks else 3
    simulation = WrongLanes(membership_of(world_size, 2, 2, 1), seed=1, racks=racks)
    operations = [Operation(np.arange(1, 17, dtype=np.int32)) for _ in range(world_size)]
    simulation.to_worker = lambda rank, payload: simulation.at(  # type: ignore[method-assign]
        simulation.now + (0.001 if (rank == 2) == first else 0.0015), lambda: simulation._receive(rank, payload)
    )
    simulation.submit_all(operations)
    simulation.finish(operations, limit=10.0)
    for rank, operation in enumerate(operations):
        assert isinstance(operation.error, MismatchError)
        message = str(operation.error)
        assert "ranks disagree on the lanes of a round" in message
        if rank != 2 and not racks:
            verdict = "This rank agrees with the ranks before it, so rank 2 is wrong"
            if first and f"rank {rank} sent" in message:
                verdict = f"So this rank is wrong, or one of ranks {1 - rank}, 2 is"
            elif first:
                verdict = "This rank agrees with the later one, so rank 2 is wrong"
            assert verdict in message


def test_impossible_keys() -> None:
    """A block that is behind, or that there is not: all ranks are told, and none waits."""
    membership = membership_of(3, 2, 2, 1)
    simulation = Simulation(membership, seed=1)
    switch: ModelSwitch = simulation.switch
    send = simulation.to_switch

    def to_switch(rank: int, payload: bytes) -> None:
        packet = switch.codec.decode(payload)
        if rank == 1 and packet.seq == 4:
            packet.keys = [0, 0]
        send(rank, switch.codec.encode(packet))

    simulation.to_switch = to_switch  # type: ignore[method-assign]
    operations = [Operation(np.ones(40, np.float32)) for _ in range(3)]
    simulation_ends = [[operation] for operation in operations]
    simulation.reduce(simulation_ends, limit=10.0)
    for operation in operations:
        assert "names next blocks that cannot exist" in str(operation.error)


def test_a_status_of_another_operation_is_not_taken() -> None:
    simulation = Simulation(membership_of(2, 2, 2, 1), seed=1)
    worker = simulation.workers[0]
    worker.submit(Operation(np.ones(4, np.float32)), 0.0)
    (payload,) = worker.take_packets()
    packet = simulation.switch.codec.decode(payload)
    packet.op, packet.values, packet.keys = Op.STATUS, NO_VALUES, [1, 0]
    packet.fingerprint ^= 256
    worker.receive(simulation.switch.codec.encode(packet), 0.1)
    assert worker.awaited() == ()
    assert worker.stats.foreign == 1
