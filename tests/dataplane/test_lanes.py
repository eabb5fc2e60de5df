# SPDX-License-Identifier: Apache-2.0
"""Lanes that are there at some workers and not at others, the keys they announce, and the room for the answer."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

from tests.support.dataplane.frames import NO_KEY
from tests.support.dataplane.jobs import Job, sums, values_of
from tests.support.dataplane.switch import Switch


def key(block: int, exponent: int) -> int:
    """Block number within the stream, then 255 minus the biased exponent: the least key is the first block, and among
    the workers that have it the largest exponent."""
    return block << 8 | 255 - exponent


def run(switch: Switch, job: Job, packets: list, keys: tuple[int, ...], active: list[int]) -> None:
    """Send one packet a worker; the last of them must bring everyone the sum."""
    for packet in packets[:-1]:
        switch.exchange(job.sent(packet)).expect()
    total = sums(switch, active, *(packet.values for packet in packets))
    switch.exchange(job.sent(packets[-1])).expect(job.to_all(job.result(packets[-1], keys=keys, values=total)))


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_lanes_differ_between_workers(switch: Switch, order: tuple[int, ...]) -> None:
    """Rank 0 has the first lane, rank 1 all but the first, rank 2 all; whoever comes last makes the answer."""
    if switch.max_absent < 1:
        pytest.skip("this build's packets may leave out no lane")
    job = Job(switch, 3).start()
    lanes = list(range(switch.lanes))
    # Whoever has too few for the answer to fit adds zeros.
    first = values_of(0, switch, lanes[: max(1, switch.lanes - switch.max_absent)])
    packets = [
        job.packet(0, 2, active=switch.all_lanes, values=first),
        job.packet(1, 2, active=switch.all_lanes, values=values_of(1, switch, lanes[1:])),
        job.packet(2, 2, active=switch.all_lanes, values=values_of(2, switch, lanes)),
    ]
    run(switch, job, [packets[rank] for rank in order], (NO_KEY,) * switch.lanes, lanes)


def test_only_active_lanes_come_back(switch: Switch) -> None:
    """What another round left in the other lanes does not show."""
    job = Job(switch, 2).start()
    lanes = list(range(switch.lanes))
    none = (NO_KEY,) * switch.lanes
    run(switch, job, [job.packet(rank, 2, values=values_of(rank, switch, lanes)) for rank in range(2)], none, lanes)
    for seq, lane in zip(range(4, 100, 2), lanes, strict=False):
        packets = [job.packet(rank, seq, values=values_of(seq + rank, switch, [lane])) for rank in range(2)]
        run(switch, job, packets, none, [lane])


def test_a_lane_that_nobody_has_is_zero(switch: Switch) -> None:
    """Also where an older round left sums in it, and whether it is missing at the first or at the last worker."""
    if switch.max_absent < 1:
        pytest.skip("this build's packets may leave out no lane")
    job = Job(switch, 2).start()
    none = (NO_KEY,) * switch.lanes
    full = list(range(switch.lanes))
    run(switch, job, [job.packet(rank, 2, values=values_of(rank, switch, full)) for rank in range(2)], none, full)
    lanes = full[:2]
    both = sum(1 << lane for lane in lanes)
    packets = [
        job.packet(0, 4, active=both, values=values_of(1, switch, [0])),
        job.packet(1, 4, active=both, values=values_of(2, switch, [0])),
    ]
    run(switch, job, packets, none, lanes)


@pytest.mark.parametrize("absent_at", ["first", "middle", "last", "all"])
def test_packets_without_values_complete_a_round(switch: Switch, absent_at: str) -> None:
    job = Job(switch, 3).start()
    lanes = list(range(min(switch.lanes, switch.max_absent)))
    active = sum(1 << lane for lane in lanes)
    packets = []
    for rank, place in enumerate(("first", "middle", "last")):
        values = {} if absent_at in (place, "all") else values_of(rank, switch, lanes)
        packets.append(job.packet(rank, 2, active=active, values=values))
    run(switch, job, packets, (NO_KEY,) * switch.lanes, lanes)


def test_absent_lanes_of_a_single_worker(switch: Switch) -> None:
    """Its packet starts and completes the round at once; what it left out is zero, also when asked for again."""
    if switch.max_absent < 1:
        pytest.skip("this build's packets may leave out no lane")
    job = Job(switch, 1).start()
    lanes = list(range(switch.lanes))
    none = (NO_KEY,) * switch.lanes
    run(switch, job, [job.packet(0, 2, values=values_of(1, switch, lanes))], none, lanes)
    for left_out in lanes:
        values = values_of(2, switch, [lane for lane in lanes if lane != left_out])
        packet = job.packet(0, 4 + 2 * left_out, active=switch.all_lanes, values=values)
        for _ in range(2):
            run(switch, job, [packet], none, lanes)


def test_absent_lanes_come_back_in_a_replay(switch: Switch) -> None:
    if switch.max_absent < 1:
        pytest.skip("this build's packets may leave out no lane")
    job = Job(switch, 2).start()
    lanes = list(range(switch.lanes))
    values = [values_of(1, switch, lanes[1:]), values_of(2, switch, lanes)]
    packets = [job.packet(rank, 2, active=switch.all_lanes, values=values[rank]) for rank in range(2)]
    run(switch, job, packets, (NO_KEY,) * switch.lanes, lanes)
    replay = job.result(packets[0], keys=packets[0].keys, values=sums(switch, lanes, *values))
    switch.exchange(job.sent(packets[0])).expect(job.to_one(0, replay))


def test_too_little_room_for_the_answer_is_malformed(switch: Switch) -> None:
    """BMv2 cannot make a packet more than 512 bytes longer, so the sender has to leave the room."""
    absent = switch.max_absent + 1
    if absent > switch.lanes:
        pytest.skip("this build's packets never grow too much")
    job = Job(switch, 1).start()
    values = values_of(1, switch, range(absent, switch.lanes))
    switch.exchange(job.data(0, 2, active=switch.all_lanes, values=values)).expect()
    assert switch.counts() == {"reset": 4, "malformed": 1}
    roomy = job.packet(0, 2, active=switch.all_lanes, values=values_of(1, switch, range(absent - 1, switch.lanes)))
    run(switch, job, [roomy], roomy.keys, list(range(switch.lanes)))


def test_the_least_key_of_each_lane(switch: Switch) -> None:
    job = Job(switch, 4).start()
    random = np.random.default_rng(1)
    for seq in range(2, 42):
        keys = random.integers(0, 2**32, (4, switch.lanes), np.uint64)
        keys[random.random(keys.shape) < 0.3] = NO_KEY
        packets = [job.packet(rank, seq, keys=[int(k) for k in keys[rank]]) for rank in range(4)]
        run(switch, job, [packets[rank] for rank in random.permutation(4)], tuple(map(int, keys.min(axis=0))), [])


@pytest.mark.parametrize(
    ("keys", "least"),
    [
        ([key(3, 120), key(2, 100), NO_KEY], key(2, 100)),  # the earliest block, whatever its exponent
        ([key(2, 100), key(2, 130), key(2, 1)], key(2, 130)),  # the largest exponent of the same block
        ([key(0, 254), key(0, 255), NO_KEY], key(0, 255)),  # NaN or infinity wins
        ([key(0xFFFFFF, 255), NO_KEY, key(0xFFFFFF, 1)], key(0xFFFFFF, 255)),
        ([NO_KEY, NO_KEY, NO_KEY], NO_KEY),
        ([0x80000000, 0x7FFFFFFF, 0xFFFFFFFE], 0x7FFFFFFF),  # keys are unsigned
        ([0, NO_KEY, 1], 0),
    ],
)
def test_keys_agree_on_block_and_exponent(switch: Switch, keys: list[int], least: int) -> None:
    job = Job(switch, 3).start()
    lane = switch.lanes - 1
    packets = [job.packet(rank, 2, keys=[NO_KEY] * lane + [keys[rank]]) for rank in range(3)]
    run(switch, job, packets, (*[NO_KEY] * lane, least), [])


def test_random_rounds(switch: Switch) -> None:
    """Any mix of active and present lanes, round after round over the same registers."""
    job = Job(switch, 3, slots=1).start()
    random = np.random.default_rng(5)
    for seq in range(2, 62):
        active = [lane for lane in range(switch.lanes) if random.random() < 0.6]
        packets = []
        for rank in range(3):
            absent = random.permutation(active)[: random.integers(0, switch.max_absent + 1)]
            values = values_of(seq * 8 + rank, switch, [lane for lane in active if lane not in absent])
            packets.append(job.packet(rank, seq, active=sum(1 << lane for lane in active), values=values))
        run(switch, job, [packets[r] for r in random.permutation(3)], (NO_KEY,) * switch.lanes, active)
