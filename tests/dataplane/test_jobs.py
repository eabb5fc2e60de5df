# SPDX-License-Identifier: Apache-2.0
"""Jobs of every size, several at once, and pools that keep them apart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.dataplane.jobs import Job, Round, values_of
from tests.support.dataplane.switch import Switch


def test_one_worker(switch: Switch) -> None:
    """Every packet completes its round at once."""
    job = Job(switch, 1).start()
    for seq in range(2, 8):
        Round(job, seq).run()
    Round(job, 8).run().replay(0)
    assert switch.counts() == {"reset": 4, switch.entered_alone: 7, "completed": 7, "replayed": 1}


def test_thirty_two_workers(switch: Switch) -> None:
    """The bitmap is full: all 32 bits, among them the sign bit."""
    job = Job(switch, 32).start()
    assert job.full == 0xFFFFFFFF
    for seq in (2, 3, 4):
        Round(job, seq).run()
    last = job.packet(31, 5)
    switch.exchange(job.sent(last)).expect()
    switch.exchange(job.sent(last)).expect(job.to_one(31, job.status(last, 0x80000000)))


def test_jobs_at_once_in_their_own_pools(switch: Switch) -> None:
    """The same slot numbers, rounds and fingerprints mean different halves for different jobs."""
    jobs = [
        Job(switch, 2, number=1, pool_base=0, slots=2).start(),
        Job(switch, 3, number=2, pool_base=4, slots=1).start(),
        Job(switch, 1, number=0xFFFE, pool_base=6, slots=3).start(),
        Job(switch, 2, number=4, pool_base=switch.halves - 6, slots=2).start(),
    ]
    rounds = [Round(job) for job in jobs]
    for one in rounds:
        for rank in range(one.job.size - 1):
            one.send(rank).expect()
    for one in rounds[::-1]:
        last = one.job.size - 1
        one.send(last).expect(one.job.to_all(one.result(last)))


def test_a_slot_outside_the_pool_is_dropped(switch: Switch) -> None:
    job = Job(switch, 1, pool_base=4, slots=2).start()
    neighbour = Job(switch, 2, number=8, pool_base=8, slots=1).start()
    switch.exchange(neighbour.data(0, 2, values=values_of(1, switch, [0]))).expect()
    before = [switch.query(half) for half in (2, 3, 8, 9)]
    for slot in (2, 3, 4, 0x7FFF - 4, 0x7FFF):  # the last ones lead around to the halves before the pool
        for seq in (100, 101):
            switch.exchange(job.data(0, seq, slot=slot, values=values_of(2, switch, [0]))).expect()
    assert [switch.query(half) for half in (2, 3, 8, 9)] == before
    assert switch.counts() == {"reset": 6, "started": 1, "bad_slot": 10, "query": 8}
    Round(job, 100, slot=1).run()  # the last one of the pool


@pytest.mark.parametrize("seq", [2, 3])
def test_the_half_must_fit_the_round(switch: Switch, seq: int) -> None:
    job = Job(switch, 1).start()
    packet = job.packet(0, seq)
    switch.exchange(job.sent(replace(packet, slot=packet.slot ^ 1))).expect()
    assert switch.counts() == {"reset": 4, "bad_slot": 1}
    switch.exchange(job.sent(packet)).expect(job.to_one(0, job.result(packet, keys=packet.keys, values={})))


def test_a_pool_is_handed_on_clean(switch: Switch) -> None:
    """The next job gets halves that an unfinished round was left in; RESET makes them new."""
    former = Job(switch, 2, number=1, first_seq=1000).start()
    switch.exchange(former.data(0, 1000, values=values_of(1, switch, range(switch.lanes)), keys=(0,) * switch.lanes))
    switch.exchange(former.data(0, 1001, values=values_of(2, switch, range(switch.lanes)), keys=(0,) * switch.lanes))
    switch.delete(former.admission(0), former.admission(1))
    latter = Job(switch, 3, number=2, first_seq=2).start()
    for seq in (2, 3, 4):
        Round(latter, seq).run()
