# SPDX-License-Identifier: Apache-2.0
"""Lanes that are there at some workers and not at others, the keys they announce, and the room for the answer."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.dataplane.frames import NO_KEY
from tests.support.dataplane.jobs import Job, Round, values_of
from tests.support.dataplane.switch import Switch


def key(block: int, exponent: int) -> int:
    """Return the key of a block: its number within the stream, then 255 minus the biased exponent.

    So the least key is that of the first block, with the largest exponent of all workers that have this block.
    """
    return block << 8 | 255 - exponent


def needs_absent_lanes(switch: Switch) -> None:
    if switch.max_absent < 1:
        pytest.skip("this build's packets may leave out no lane")


def test_a_lane_that_nobody_has_is_zero(switch: Switch) -> None:
    """It is zero even if an older round left sums in it, whether the first or the last worker leaves it out."""
    needs_absent_lanes(switch)
    job = Job(switch, 2).start()
    Round(job, 2).run()
    Round(job, 4, lanes=[[0], [0]], active=switch.all_lanes & 0b11).run()


def test_absent_lanes_of_a_single_worker(switch: Switch) -> None:
    """The worker's packet starts and completes the round at once. Absent lanes are zero, also in a repeated answer."""
    needs_absent_lanes(switch)
    job = Job(switch, 1).start()
    Round(job, 2).run()
    for left_out in range(switch.lanes):
        lanes = [lane for lane in range(switch.lanes) if lane != left_out]
        Round(job, 4 + 2 * left_out, lanes=[lanes]).run().replay(0)


def test_absent_lanes_come_back_in_a_replay(switch: Switch) -> None:
    needs_absent_lanes(switch)
    every = range(switch.lanes)
    Round(Job(switch, 2).start(), lanes=[every[1:], every]).run().replay(0)


def test_too_little_room_for_the_answer_is_malformed(switch: Switch) -> None:
    """BMv2 cannot make a packet more than 512 bytes longer, so the sender has to leave the room."""
    absent = switch.max_absent + 1
    if absent > switch.lanes:
        pytest.skip("this build's packets never grow too much")
    job = Job(switch, 1).start()
    values = values_of(1, switch, range(absent, switch.lanes))
    switch.exchange(job.data(0, 2, active=switch.all_lanes, values=values)).expect()
    assert switch.counts() == {"reset": 4, "malformed": 1}
    Round(job, 2, lanes=[range(absent - 1, switch.lanes)]).run()


def test_the_least_key_of_each_lane(switch: Switch) -> None:
    """The packets are announcements, which carry keys alone."""
    job = Job(switch, 4).start()
    random = np.random.default_rng(1)
    for seq in range(2, 42):
        keys = random.integers(0, 2**32, (4, switch.lanes), np.uint64)
        keys[random.random(keys.shape) < 0.3] = NO_KEY
        Round(job, seq, lanes=[()] * 4, active=0, keys=keys.tolist()).run(random.permutation(4).tolist())


KEYS = [
    ([key(3, 120), key(2, 100), NO_KEY], key(2, 100)),  # the earliest block, whatever its exponent
    ([key(2, 100), key(2, 130), key(2, 1)], key(2, 130)),  # the largest exponent of the same block
    ([key(0, 254), key(0, 255), NO_KEY], key(0, 255)),  # NaN or infinity wins
    ([key(0xFFFFFF, 255), NO_KEY, key(0xFFFFFF, 1)], key(0xFFFFFF, 255)),
    ([NO_KEY, NO_KEY, NO_KEY], NO_KEY),
    ([0x80000000, 0x7FFFFFFF, 0xFFFFFFFE], 0x7FFFFFFF),  # keys are unsigned
    ([0, NO_KEY, 1], 0),
]


def test_keys_agree_on_block_and_exponent(switch: Switch) -> None:
    job = Job(switch, 3).start()
    others = [NO_KEY] * (switch.lanes - 1)
    for seq, (keys, least) in enumerate(KEYS, 2):
        one = Round(job, seq, lanes=[()] * 3, active=0, keys=[[*others, own] for own in keys])
        assert one.keys == (*others, least)
        one.run()


def test_random_rounds(switch: Switch) -> None:
    """Any mix of active and present lanes, in any order of workers, round after round over the same registers."""
    job = Job(switch, 3, slots=1).start()
    random = np.random.default_rng(5)
    for seq in range(2, 62):
        active = [lane for lane in range(switch.lanes) if random.random() < 0.6]
        lanes = []
        for _ in range(3):
            absent = random.permutation(active)[: random.integers(0, switch.max_absent + 1)]
            lanes.append([lane for lane in active if lane not in absent])
        one = Round(job, seq, lanes=lanes, active=sum(1 << lane for lane in active))
        one.run(random.permutation(3).tolist())
