# SPDX-License-Identifier: Apache-2.0
"""The picture of a round is what workers and a switch do."""

from __future__ import annotations

import numpy as np

from p4reduce.protocol import Membership, Operation
from p4reduce.protocol.constants import NO_KEY
from p4reduce.protocol.packet import Codec
from tests.support.protocol.simulator import Network, Simulation
from website.pictures.round import TENSORS, Round, rounds


def key(block: int | None) -> int:
    return NO_KEY if block is None else block << 8  # int32 has no exponent


def said(one: Round, rank: int) -> tuple[list[int], int]:
    value = one.values[rank]
    return [] if value is None else [value], key(one.nexts[rank])


def test_the_picture_is_the_protocol() -> None:
    membership = Membership(job=1, generation=1, rank=0, world_size=len(TENSORS), slots=1, lanes=1, block_size=1,
                            first_seq=0)  # fmt: skip
    simulation = Simulation(membership, seed=1, network=Network())
    operations = [Operation(np.array(tensor, np.int32)) for tensor in TENSORS]
    simulation.submit_all(operations)
    simulation.finish(operations)

    codec = Codec(1, 1)
    expected = rounds(TENSORS)
    for rank in range(len(TENSORS)):
        first, *sent = [codec.decode(payload) for payload in simulation.sent[rank]]
        assert first.active == 0
        assert [(packet.values.ravel().tolist(), packet.keys[0]) for packet in sent] == [
            said(one, rank) for one in expected
        ]
        first, *received = [codec.decode(payload) for payload in simulation.received[rank]]
        assert first.keys[0] == key(expected[0].block)
        assert [(packet.values.ravel().tolist(), packet.keys[0]) for packet in received] == [
            ([one.sum], key(one.next)) for one in expected
        ]
