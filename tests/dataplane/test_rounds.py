# SPDX-License-Identifier: Apache-2.0
"""Answers of a slot half to a DATA packet: every row of the protocol's table of cases."""

from __future__ import annotations

import pytest

from tests.support.dataplane.jobs import Job, Round, sums, values_of
from tests.support.dataplane.switch import Switch

RESETS = 4  # of a job with two slots
LATER = 0x80000010  # a round with room below and above


def test_sums_wrap_like_int32(switch: Switch) -> None:
    job = Job(switch, 2).start()
    values = values_of(1, switch, [0])
    values[0][:4] = [2**31 - 1, -(2**31), -1, 0]
    packet = job.packet(1, 2, values=values)
    switch.exchange(job.data(0, 2, values=values)).expect()
    total = sums(switch, [0], values, values)
    assert list(total[0][:4]) == [-2, 0, -2, 0]
    switch.exchange(job.sent(packet)).expect(job.to_all(job.result(packet, keys=packet.keys, values=total)))


@pytest.mark.parametrize("age", [2, 2**31 - 2, 2**31])
def test_an_older_round_changes_nothing(switch: Switch, age: int) -> None:
    job = Job(switch, 2, first_seq=LATER).start()
    switch.exchange(job.data(0, LATER, values=values_of(1, switch, [0]))).expect()
    before = switch.query(job.pool_base)
    zeros = (0,) * switch.lanes
    for rank in range(2):
        stale = job.data(rank, LATER - age, values=values_of(2, switch, [0]), keys=zeros, fingerprint=rank << 8)
        switch.exchange(stale).expect()
    assert switch.query(job.pool_base) == before
    assert switch.counts() == {"reset": RESETS, "started": 1, "stale": 2, "query": 2}


@pytest.mark.parametrize("step", [2, 2**31 - 2])
def test_a_newer_round_forgets_the_one_under_way(switch: Switch, step: int) -> None:
    """Sums, keys, fingerprint and bitmap of the unfinished round are gone."""
    job = Job(switch, 2, first_seq=LATER).start()
    lane = switch.lanes - 1
    switch.exchange(job.data(0, LATER, values=values_of(1, switch, {0, lane}), keys=(5,) * switch.lanes)).expect()
    packet = job.packet(
        1, LATER + step, values=values_of(2, switch, [lane]), keys=(9,) * switch.lanes, fingerprint=7700
    )
    switch.exchange(job.sent(packet)).expect()
    state = switch.query(job.pool_base)
    assert (state.seq, state.bitmap, state.fingerprint) == (packet.seq, 0b10, packet.fingerprint)
    assert state.keys == packet.keys
    assert state.values[lane] == packet.values[lane].astype(">i4").tobytes()
    other = job.packet(0, LATER + step, values=values_of(3, switch, [lane]), keys=(8,) * switch.lanes, fingerprint=7700)
    result = job.result(other, keys=other.keys, values=sums(switch, [lane], packet.values, other.values))
    switch.exchange(job.sent(other)).expect(job.to_all(result))
    assert switch.counts() == {"reset": RESETS, "started": 2, "added": 1, "completed": 1, "query": 1}


def test_another_fingerprint_is_an_error_for_all(switch: Switch) -> None:
    job = Job(switch, 3).start()
    right = job.packet(0, 2, values=values_of(1, switch, [0]))
    switch.exchange(job.sent(right)).expect()
    before = switch.query(job.pool_base)
    wrong = job.packet(2, 2, values=values_of(2, switch, [0]), fingerprint=0xBAD00)
    error = job.to_all(job.error(wrong, right.fingerprint))
    switch.exchange(job.sent(wrong)).expect(error)
    switch.exchange(job.sent(wrong)).expect(error)  # again, should the first have been lost
    assert switch.query(job.pool_base) == before
    assert switch.counts() == {"reset": RESETS, "started": 1, "mismatch": 2, "query": 2}


def test_another_fingerprint_is_an_error_after_completion_too(switch: Switch) -> None:
    job = Job(switch, 2).start()
    Round(job, 2, active=0, lanes=[(), ()]).run()
    wrong = job.packet(0, 2, fingerprint=job.fingerprint ^ 0x100)
    switch.exchange(job.sent(wrong)).expect(job.to_all(job.error(wrong, job.fingerprint)))


def test_a_replay_takes_nothing_from_the_packet_that_asks(switch: Switch) -> None:
    if not switch.guards_keys:
        pytest.skip("Tofino 1 has no stage left to know who is counted before it takes the minimum")
    job = Job(switch, 2).start()
    one = Round(job, 2, keys=[[0x500 + lane for lane in range(switch.lanes)]] * 2).run()
    liar = job.packet(
        0, 2, active=one.active, values=values_of(9, switch, range(switch.lanes)), keys=(1,) * switch.lanes
    )
    switch.exchange(job.sent(liar)).expect(job.to_one(0, job.result(liar, keys=one.keys, values=one.total)))
    one.replay(1)


def test_a_half_that_was_reset_takes_only_newer_rounds(switch: Switch) -> None:
    job = Job(switch, 2, first_seq=100).start()
    values = values_of(1, switch, [0])
    for seq in (98, 96):
        switch.exchange(job.data(0, seq, values=values)).expect()
    for seq in (99, 97):
        switch.exchange(job.data(1, seq, values=values)).expect()
    assert switch.counts() == {"reset": RESETS, "stale": 4}
    assert switch.query(job.pool_base).bitmap == switch.query(job.pool_base + 1).bitmap == 0
