# SPDX-License-Identifier: Apache-2.0
"""The packets that a job must send, calculated from its tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.protocol import Membership
from p4reduce.protocol.gather import fits
from p4reduce.protocol.halves import widened
from p4reduce.protocol.numbers import values_per_word
from p4reduce.protocol.operation import Zeros
from p4reduce.protocol.packet import Codec
from tests.support.protocol.scenarios import Call
from tests.support.protocol.simulator import Simulation


def sent_blocks(
    array: npt.NDArray[Any], block_size: int, zeros: Zeros = "skipped", streams: int = 0
) -> npt.NDArray[np.bool_]:
    padded = np.zeros(-(-array.size // block_size) * block_size, array.dtype)
    padded[: array.size] = array
    flags: npt.NDArray[np.bool_] = (widened(padded).reshape(-1, block_size) != 0).any(axis=1)
    flags[: {"skipped": 0, "first": streams, "sent": flags.size}[zeros]] = True
    return flags


def rounds_of(union: npt.NDArray[np.bool_], membership: Membership) -> int:
    """Return the rounds of an operation: for each slot an announcement, and a round per block of its longest stream."""
    slots, lanes = membership.slots, membership.lanes
    used = max(1, min(slots, -(-union.size // lanes)))
    streams = [int(union[stream :: slots * lanes].sum()) for stream in range(slots * lanes)]
    return sum(1 + max(streams[slot * lanes : (slot + 1) * lanes]) for slot in range(used))


def added(one: Call, membership: Membership) -> tuple[list[npt.NDArray[Any]], int]:
    """Return the arrays that ranks sum on the wire, and the number of their values in a block."""
    arrays, block_size = one.inputs, membership.block_size * values_per_word(one.wire)
    if not fits(arrays[0], membership):
        return arrays, block_size
    parts = np.zeros((len(arrays), *np.shape(arrays)), np.float32)
    for rank, array in enumerate(arrays):
        parts[rank, rank] = widened(array)
    return [own.reshape(-1).view(np.int32) for own in parts], membership.block_size


def at_once(arrays: list[npt.NDArray[Any]], flags: npt.NDArray[np.bool_], membership: Membership) -> bool:
    """Return whether the first round of an operation, without announcement, carries all its blocks."""
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
        distinct = set(simulation.sent[rank])  # a retransmission has the same bytes
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
