# SPDX-License-Identifier: Apache-2.0
"""The limit, against examples counted by hand."""

import numpy as np
import pytest

from p4reduce_bench.allreduce.limit import Memory, Traffic, memory, ring, traffic

# Ethernet 8 + 14 + 4 + 12, IPv4 20, UDP 8, aggregation header 18, four keys of 4.
HEADER = 38 + 28 + 18 + 16
VALUES = 64 * 4


def masks(*workers: str) -> np.ndarray:
    """Return the mask of workers' blocks, from one string of 0 and 1 for each worker."""
    return np.array([[block == "1" for block in worker] for worker in workers])


def test_zeros_take_one_announcement_a_slot() -> None:
    assert traffic(masks("0" * 32, "0" * 32), slots=2) == Traffic(2 * HEADER, 2 * HEADER, 2)


def test_a_small_tensor_uses_few_slots_and_an_empty_one_slot_0() -> None:
    assert traffic(masks("0" * 5, "0" * 5), slots=100).rounds == 2
    assert traffic(np.zeros((2, 0), np.bool_), slots=100).rounds == 1


def test_dense_blocks_fill_all_lanes() -> None:
    # 16 blocks, 2 slots of 4 lanes: an announcement and two rounds each.
    assert traffic(masks("1" * 16, "1" * 16), slots=2) == Traffic(6 * HEADER + 16 * VALUES, 6 * HEADER + 16 * VALUES, 6)


def test_the_longest_stream_of_a_slot_decides_its_rounds() -> None:
    # One slot: lane 0 has blocks 0, 4 and 8, lane 1 has block 1. All overlap.
    one = "110010001000"
    assert traffic(masks(one, one), slots=1) == Traffic(4 * HEADER + 4 * VALUES, 4 * HEADER + 4 * VALUES, 4)


def test_a_worker_sends_its_own_and_receives_the_union() -> None:
    # One slot, one round after the announcement; of 4 active lanes a worker may leave out 2 of 64 values.
    found = traffic(masks("1100", "0011"), slots=1)
    assert found == Traffic(2 * HEADER + 2 * VALUES, 2 * HEADER + 4 * VALUES, 2)


def test_zeros_that_make_room_for_the_answer_are_counted() -> None:
    # The second worker has nothing of 4 active lanes, and may leave out 2; the first is the one with most.
    assert traffic(masks("1110", "0001"), slots=1).sent == 2 * HEADER + 3 * VALUES
    assert traffic(masks("1000", "0100", "0010", "0001"), slots=1).sent == 2 * HEADER + 2 * VALUES
    assert traffic(masks("1000", "0100", "0010", "0001"), slots=1, max_growth=4096).sent == 2 * HEADER + VALUES


def test_streams_are_aligned_by_turn_not_by_number() -> None:
    # One lane of lane 0: blocks 0 and 8; lane 1: block 5. Lane 1's only block travels with lane 0's first.
    one = "100001001"
    assert traffic(masks(one, one), slots=1).rounds == 3


def test_seconds_are_those_of_the_busier_way() -> None:
    assert Traffic(sent=1000, received=2000, rounds=1).seconds(16_000) == pytest.approx(1.0)


def test_payloads_are_without_what_a_wire_has_around_them() -> None:
    # Two blocks: one round announces, one has the values of both ways, in packets of 18 bytes and 4 keys.
    assert traffic(masks("11", "11"), slots=1).payload == 2 * (2 * (18 + 4 * 4) + 2 * 64 * 4)


def test_memory_is_read_and_written_and_packets_are_copied_by_the_same_processors() -> None:
    assert Memory(read=1000, written=500, copied=100).seconds(2000, written=500, copied=300) == 6
    measured = memory(2, repeat=1)
    assert measured.read > 1e8
    assert measured.written > 1e8
    assert measured.copied > 1e7


def test_a_ring_sends_almost_twice_the_tensor() -> None:
    # 2 * 2 / 3 of 4344 bytes are 4 segments of 1448, each 1538 bytes on the wire.
    assert ring(4344, 3) == Traffic(4 * 1538, 4 * 1538, 4)
    assert ring(4345, 3).rounds == 5
    assert ring(0, 8) == ring(1000, 1) == Traffic(0, 0, 0)
