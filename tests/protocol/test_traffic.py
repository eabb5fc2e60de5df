# SPDX-License-Identifier: Apache-2.0
"""A worker sends its own non-zero blocks once and one header a round, and receives the union once.

Where blocks are long (MAX_GROWTH), it also fills some of its absent lanes with zeros.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scenarios import Call, call, random_calls, random_membership
from simulator import Network, Simulation

from p4reduce.protocol import Membership
from p4reduce.protocol.gather import fits
from p4reduce.protocol.halves import widened
from p4reduce.protocol.numbers import values_per_word
from p4reduce.protocol.operation import Zeros
from p4reduce.protocol.packet import Codec


def sent_blocks(
    array: npt.NDArray[Any], block_size: int, zeros: Zeros = "skipped", streams: int = 0
) -> npt.NDArray[np.bool_]:
    padded = np.zeros(-(-array.size // block_size) * block_size, array.dtype)
    padded[: array.size] = array
    flags: npt.NDArray[np.bool_] = (widened(padded).reshape(-1, block_size) != 0).any(axis=1)
    flags[: {"skipped": 0, "first": streams, "sent": flags.size}[zeros]] = True
    return flags


def rounds_of(union: npt.NDArray[np.bool_], membership: Membership) -> int:
    """Per slot: an announcement, then as many rounds as its longest stream has blocks in the union."""
    slots, lanes = membership.slots, membership.lanes
    used = max(1, min(slots, -(-union.size // lanes)))
    streams = [int(union[stream :: slots * lanes].sum()) for stream in range(slots * lanes)]
    return sum(1 + max(streams[slot * lanes : (slot + 1) * lanes]) for slot in range(used))


def added(one: Call, membership: Membership) -> tuple[list[npt.NDArray[Any]], int]:
    """What ranks add, and how many values of it a block has."""
    arrays, block_size = one.inputs, membership.block_size * values_per_word(one.wire)
    if not fits(arrays[0], membership):
        return arrays, block_size
    parts = np.zeros((len(arrays), *np.shape(arrays)), np.float32)
    for rank, array in enumerate(arrays):
        parts[rank, rank] = widened(array)
    return [own.reshape(-1).view(np.int32) for own in parts], membership.block_size


def at_once(arrays: list[npt.NDArray[Any]], flags: npt.NDArray[np.bool_], membership: Membership) -> bool:
    """Whether all blocks of an operation travel in the first round, which is the only one."""
    return arrays[0].dtype == np.int32 and flags.size <= membership.lanes


def check_traffic(simulation: Simulation, membership: Membership, calls: list[Call], *, lossless: bool) -> None:
    codec = Codec(membership.lanes, membership.block_size)
    header = 18 + 4 * membership.lanes
    flags, unions, rounds = [], [], 0
    for one in calls:
        arrays, block_size = added(one, membership)
        streams = membership.slots * membership.lanes
        own_flags = [
            sent_blocks(array, block_size, operation.zeros, streams)
            for array, operation in zip(arrays, one.operations, strict=True)
        ]
        union = np.any(own_flags, axis=0)
        if at_once(arrays, union, membership):
            union = np.ones_like(union)
            rounds += 1
        else:
            rounds += rounds_of(union, membership)
        flags.append(own_flags)
        unions.append(union)
    for rank, worker in enumerate(simulation.workers):
        stats = worker.stats
        own = sum(int(flag[rank].sum()) for flag in flags)
        assert stats.blocks_sent == own
        assert stats.blocks_skipped == sum(flag[rank].size for flag in flags) - own
        assert stats.blocks_received == sum(int(union.sum()) for union in unions)
        assert stats.rounds == rounds
        distinct = set(simulation.sent[rank])  # a retransmission is the same bytes
        assert len(distinct) == rounds
        packets = [codec.decode(payload) for payload in distinct]
        assert sum(packet.present.bit_count() for packet in packets) == own + stats.blocks_filled
        if membership.max_absent_lanes >= membership.lanes:
            assert stats.blocks_filled == 0
        else:
            absent = [(packet.active & ~packet.present).bit_count() for packet in packets]
            assert max(absent) <= membership.max_absent_lanes
        assert stats.packets_sent == len(simulation.sent[rank])
        assert stats.bytes_sent == sum(map(len, simulation.sent[rank]))
        assert stats.packets_sent == rounds + stats.retransmissions
        if lossless:
            assert stats.retransmissions == 0
            assert stats.bytes_sent == rounds * header + (own + stats.blocks_filled) * membership.block_size * 4
            assert stats.packets_received == rounds
            assert stats.bytes_received == rounds * header + stats.blocks_received * membership.block_size * 4


@pytest.mark.parametrize("network", [Network(), Network(loss=0.1, duplicates=0.1, delay=0.01, duplicate_delay=0.1)])
def test_random_tensors(network: Network) -> None:
    for seed in range(150):
        random = Random(seed)
        membership = random_membership(random)
        calls = random_calls(random, membership)
        simulation = Simulation(membership, seed=seed, network=network)
        simulation.reduce(list(zip(*(one.operations for one in calls), strict=True)))
        check_traffic(simulation, membership, calls, lossless=network == Network())


@pytest.mark.parametrize("all_ranks", [True, False], ids=["all ranks", "one rank"])
@pytest.mark.parametrize("zeros", ["first", "sent"])
def test_blocks_of_zeros_that_are_sent(zeros: Zeros, all_ranks: bool) -> None:
    for seed in range(60):
        random = Random(seed)
        membership = random_membership(random)
        calls = random_calls(random, membership)
        for one in calls:
            for operation in one.operations[: None if all_ranks else 1]:
                operation.zeros = zeros
        network = random.choice([Network(), Network(loss=0.1, duplicates=0.1, delay=0.01, duplicate_delay=0.1)])
        simulation = Simulation(membership, seed=seed, network=network)
        simulation.reduce(list(zip(*(one.operations for one in calls), strict=True)))
        for one in calls:
            one.check()
        check_traffic(simulation, membership, calls, lossless=network == Network())


@pytest.mark.parametrize(
    ("blocks", "rounds"),
    [
        ([[0] * 16, [0] * 16], 2),  # all zeros: one round trip a slot
        ([[1] * 16, [1] * 16], 2 + 2 * 2),  # dense: two blocks in each of eight streams
        ([[1] * 8 + [0] * 8, [0] * 8 + [1] * 8], 2 + 2 * 2),  # no overlap
        ([[1] + [0] * 15, [0] * 15 + [1]], 2 + 1 + 1),  # one block in each slot
        ([[1] + [0] * 15, [0] * 8 + [1] + [0] * 7], 2 + 2),  # two blocks of one stream
    ],
)
def test_known_tensors(blocks: list[list[int]], rounds: int) -> None:
    membership = Membership(1, 1, 0, 2, slots=2, lanes=4, block_size=32, first_seq=0)
    one = call([np.repeat(np.array(own, np.float32), 32) for own in blocks], 32)
    simulation = Simulation(membership, seed=0)
    simulation.reduce([[operation] for operation in one.operations])
    one.check()
    assert simulation.workers[0].stats.rounds == rounds
    check_traffic(simulation, membership, [one], lossless=True)


def test_small_tensors_use_few_slots() -> None:
    membership = Membership(1, 1, 0, 2, slots=32, lanes=4, block_size=64, first_seq=0)
    for size, slots in [(0, 1), (1, 1), (4 * 64, 1), (4 * 64 + 1, 2), (10**5, 32)]:
        one = call([np.zeros(size, np.float32)] * 2, 64)
        simulation = Simulation(membership, seed=0)
        simulation.reduce([[operation] for operation in one.operations])
        assert simulation.workers[0].stats.packets_sent == slots


def test_slots_run_ahead() -> None:
    """A slot that is done with an operation begins the next one while others still work on the former."""
    membership = Membership(1, 1, 0, 1, slots=2, lanes=1, block_size=1, first_seq=0)
    long_in_slot_1 = np.tile(np.array([0, 1], np.float32), 50)
    calls = [call([long_in_slot_1], 1), call([np.ones(1, np.float32)], 1)]
    simulation = Simulation(membership, seed=0)
    former, latter = calls[0].operations[0], calls[1].operations[0]
    simulation.submit(0, former)
    simulation.submit(0, latter)
    simulation.run(lambda: latter.done)
    assert not former.done
    simulation.run(lambda: former.done)
    for one in calls:
        one.check()


def test_thirty_two_workers() -> None:
    random = Random(32)
    membership = replace(random_membership(random), world_size=32)
    calls = random_calls(random, membership)
    simulation = Simulation(membership, seed=32)
    simulation.reduce(list(zip(*(one.operations for one in calls), strict=True)))
    for one in calls:
        one.check()
    check_traffic(simulation, membership, calls, lossless=True)
