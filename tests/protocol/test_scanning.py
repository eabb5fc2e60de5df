# SPDX-License-Identifier: Apache-2.0
"""Tensors are scanned a piece at a time: packets leave and answers are taken in between, and nothing else differs."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import numpy.typing as npt
import pytest

from p4reduce.protocol import Membership, Operation
from p4reduce.protocol.constants import Op
from p4reduce.protocol.operation import ZEROS
from p4reduce.protocol.packet import Codec
from p4reduce.protocol.scanning import GROUP_SLOTS, SCAN_BLOCKS
from tests.support.protocol.scenarios import Call, call, random_membership, random_network, reduce_calls
from tests.support.protocol.simulator import Network, Simulation
from tests.support.protocol.traffic import check_traffic
from tests.support.protocol.worker_pair import new_worker

pytestmark = pytest.mark.usefixtures("each_worker")

SLOTS, LANES = 64, 4
MEMBERSHIP = Membership(1, 1, 0, 2, slots=SLOTS, lanes=LANES, block_size=1, first_seq=0)
PIECE = SCAN_BLOCKS * GROUP_SLOTS // SLOTS


def zeros_but(count: int, share: float, seed: int) -> npt.NDArray[np.float32]:
    """Return an array of -0 with a random share of ones. The scan turns blocks that are not sent into +0."""
    return np.where(np.random.default_rng(seed).random(count) < share, np.float32(1), np.float32(-0.0))


def scanned(data: npt.NDArray[np.float32]) -> int:
    """Return how many blocks of one element are +0 by now, because they have been scanned."""
    return int(np.count_nonzero((data == 0) & ~np.signbit(data)))


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1])
def test_first_packets_leave_after_a_bounded_scan(share: float) -> None:
    """However late the first non-zero block of some stream comes: a quarter of the tensor holds up a slot, not all."""
    data = zeros_but(300 * SLOTS * LANES, share, seed=1)
    ones = np.count_nonzero(data)
    worker = new_worker(MEMBERSHIP)
    worker.submit(Operation(data), 1.0)
    assert scanned(data) <= PIECE
    packets, before = len(worker.take_packets()), scanned(data)
    while packets == 0:
        assert worker.next_deadline() == 1.0
        worker.tick(1.0)
        packets, now = len(worker.take_packets()), scanned(data)
        assert now - before <= SCAN_BLOCKS + PIECE
        before = now
    assert before <= 300 * LANES * GROUP_SLOTS + SCAN_BLOCKS + PIECE < (data.size - ones) / 2


def test_what_is_dense_needs_no_tick() -> None:
    worker = new_worker(replace(MEMBERSHIP, slots=8))
    worker.submit(Operation(np.ones(50 * 8 * LANES, np.float32)), 0.0)
    assert len(worker.take_packets()) == 8


def test_operations_under_way_go_on_while_another_is_scanned() -> None:
    """A slot's answer is taken, and its next packet sent, while another slot waits for its scan."""
    worker, codec = new_worker(replace(MEMBERSHIP, slots=2)), Codec(LANES, 1)
    first, second = Operation(np.ones(3, np.float32)), Operation(zeros_but(40_000, 0, seed=1))
    worker.submit(first, 0.0)
    worker.submit(second, 0.0)
    assert scanned(second.data) <= SCAN_BLOCKS
    for step in range(2):
        [sent] = worker.take_packets()
        answer = codec.decode(sent)
        answer.op = Op.RESULT
        worker.receive(codec.encode(answer), 0.0)
        assert first.done == (step == 1)
    assert scanned(second.data) <= SCAN_BLOCKS


def test_nothing_is_scanned_after_the_end() -> None:
    data = zeros_but(40_000, 0, seed=1)
    worker = new_worker(replace(MEMBERSHIP, slots=1))
    worker.submit(Operation(data), 0.0)
    worker.fail(RuntimeError("over"))
    before = scanned(data)
    assert before < data.size
    assert worker.next_deadline() is None
    worker.tick(1.0)
    assert scanned(data) == before


def sparse_calls(random: Random, membership: Membership) -> list[Call]:
    """Return calls with tensors of many pieces, of any density."""
    calls = []
    for counter in range(random.choice([1, 2, 3])):
        size = random.randrange(8, 40) * 1000
        shares = [random.choice([0, 0.0005, 0.003, 0.02]) for _ in range(membership.world_size)]
        if random.random() < 0.2:
            shares[0] = 0.3
        scale = 2.0 ** random.randrange(-30, 30)
        arrays = [zeros_but(size, share, random.getrandbits(32)) * np.float32(scale) for share in shares]
        dtype = random.choice([np.float32, np.float16, np.int32])
        with np.errstate(over="ignore"):
            arrays = [np.asarray(array if dtype != np.int32 else array != 0, dtype) for array in arrays]
        one = call(arrays, membership.block_size, counter=counter)
        one.operations[0].zeros = random.choice([*ZEROS[:2], "skipped"])
        calls.append(one)
    return calls


def run_scanned(seed: int) -> Simulation:
    random = Random(seed)
    membership = replace(
        random_membership(random), block_size=random.choice([1, 2]), world_size=random.choice([1, 2, 3])
    )
    if random.random() < 0.7:
        membership = replace(membership, slots=random.randint(11, 40))
    calls = sparse_calls(random, membership)
    network = random.choice([Network(), random_network(random)])
    lateness = random.choice([0.0, 0.00002, 0.0003, 0.02])
    simulation = Simulation(membership, seed=seed, network=network, lateness=lateness)
    skew = random.choice([0, 0.001])
    reduce_calls(simulation, calls, skew=skew)
    # Late ranks cause some retransmissions. So do packets of ranks that arrive in different orders, as they do while a
    # window of more than 10 slots opens.
    at_once = network == Network() and lateness == skew == 0
    check_traffic(simulation, membership, calls, lossless=at_once and membership.slots <= 10)
    if at_once:
        assert all(worker.stats.retransmissions <= worker.stats.rounds / 20 for worker in simulation.workers)
    return simulation


@pytest.mark.parametrize("seeds", [range(8), pytest.param(range(8, 50), marks=pytest.mark.slow)], ids=["few", "many"])
def test_same_sums_and_packets_however_late_the_scan_is(seeds: range) -> None:
    """Not one packet more than the blocks that are not zero need: nobody announces a block that is not to be sent."""
    for seed in seeds:
        try:
            run_scanned(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
