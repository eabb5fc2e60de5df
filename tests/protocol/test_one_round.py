# SPDX-License-Identifier: Apache-2.0
"""Operations of one round: integers that fit into one packet, and floats of which all ranks' values do."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from p4reduce.errors import MismatchError
from p4reduce.protocol import Membership, Operation
from p4reduce.protocol.constants import Op
from p4reduce.protocol.halves import BFLOAT16, narrowed
from p4reduce.protocol.numbers import Wire
from p4reduce.protocol.packet import Codec, Packet
from tests.support.protocol.model_switch import ModelSwitch
from tests.support.protocol.scenarios import call, reduce_calls
from tests.support.protocol.simulator import Simulation
from tests.support.protocol.worker_pair import new_worker

pytestmark = pytest.mark.usefixtures("each_worker")


def membership(world_size: int, *, lanes: int = 4, block_size: int = 64) -> Membership:
    return Membership(
        job=1, generation=1, rank=0, world_size=world_size, slots=8, lanes=lanes, block_size=block_size, first_seq=0
    )


def inputs(world_size: int, size: int, dtype: Any) -> list[npt.NDArray[Any]]:
    """Return arrays with values of every magnitude, and with zeros of both signs."""
    random = np.random.default_rng(size)
    values = random.standard_normal((world_size, size)) * 10.0 ** random.integers(-30, 30, (world_size, size))
    values[random.random((world_size, size)) < 0.2] = -0.0
    if dtype == np.int32:
        return [row.view(np.int32)[::2].copy() for row in values]
    with np.errstate(over="ignore"):
        return [narrowed(row.astype(np.float32), np.dtype(dtype)) for row in values]


def rounds_of(world_size: int, arrays: list[npt.NDArray[Any]], **options: Any) -> int:
    """Return the number of rounds that an allreduce takes in all slots. Each rank must get the reference's bits."""
    simulation = Simulation(membership(world_size), seed=0)
    reduce_calls(simulation, [call(arrays, 64, **options)])
    (rounds,) = {worker.stats.rounds for worker in simulation.workers}
    return int(rounds)


@pytest.mark.parametrize(
    ("world_size", "size", "dtype", "rounds"),
    [
        (2, 16, np.float32, 1), (2, 128, np.float32, 1), (2, 129, np.float32, 2), (8, 32, np.float32, 1),
        (8, 33, np.float32, 2), (1, 256, np.float32, 1), (2, 128, np.float16, 1), (2, 257, np.float16, 4),
        (3, 7, BFLOAT16, 1), (5, 256, np.int32, 1), (5, 257, np.int32, 4), (2, 0, np.float32, 1),
    ],
)  # fmt: skip
def test_rounds_follow_from_count_and_dtype(world_size: int, size: int, dtype: Any, rounds: int) -> None:
    assert rounds_of(world_size, inputs(world_size, size, dtype)) == rounds
    assert rounds_of(world_size, [np.zeros(size, dtype)] * world_size) == -(-rounds // 2)


@pytest.mark.parametrize("wire", ["int32", "int16", "int8"])
@pytest.mark.parametrize("what", ["residual", "average", "reader"])
def test_few_floats_have_the_bits_of_many_rounds(wire: Wire, what: str) -> None:
    options = {"residual": {"residual": True}, "average": {"average": True}, "reader": {"reader": 1}}[what]
    assert rounds_of(2, inputs(2, 100, np.float32), wire=wire, **options) == 1
    awkward = [np.array([np.nan, 1, -0.0], np.float32), np.array([1, np.inf, -0.0], np.float32)]
    assert rounds_of(2, awkward, wire=wire) == 1
    assert rounds_of(2, [np.array([3e38], np.float32)] * 2, wire=wire) == 1


def test_who_begins_with_an_announcement_is_told() -> None:
    """A rank of an earlier version, say."""
    member = membership(2, lanes=1, block_size=4)
    worker, switch, codec = new_worker(member), ModelSwitch(member), Codec(1, 4)
    worker.submit(Operation(np.ones(4, np.int32)), 0.0)
    (first,) = worker.take_packets()
    assert switch.receive(0, first) is None
    operation = codec.decode(first).fingerprint & 0xFFFFFF00
    answer = switch.receive(1, codec.encode(Packet(Op.DATA, 1, 1, 1, 0, 0, operation, keys=[0])))
    assert answer is not None
    worker.receive(answer[1], 0.001)
    assert isinstance(worker.failure, MismatchError)
    assert "disagree on the lanes" in str(worker.failure)


def test_a_rank_whose_values_were_added_to_says_so() -> None:
    member = membership(2, lanes=1, block_size=8)
    worker = new_worker(member)
    operation = Operation(np.array([1, 2], np.float32))
    worker.submit(operation, 0.0)
    (payload,) = worker.take_packets()
    altered = bytearray(payload)
    altered[0] = 0x12  # RESULT
    altered[-4 * 8 + 3] ^= 1
    worker.receive(bytes(altered), 0.001)
    assert isinstance(worker.failure, MismatchError)
    assert "came back changed" in str(worker.failure)
    assert operation.error is worker.failure
    assert operation.data.tolist() == [1, 2]
