# SPDX-License-Identifier: Apache-2.0
"""Packets and bytes that each member of a job has sent are counted at its entry. `fuzz.py` compares targets."""

from __future__ import annotations

from tests.support.dataplane import frames
from tests.support.dataplane.frames import Aggregation
from tests.support.dataplane.jobs import Job, Member, values_of
from tests.support.dataplane.switch import JOBS, Switch


def counted(switch: Switch) -> dict[tuple[int, int], tuple[int, int]]:
    """Return the packets and bytes of workers that have sent anything, by job and worker."""
    return {
        (int.from_bytes(key[3], "big"), int.from_bytes(key[5], "big")): count
        for key, count in switch.client.read_direct_counters(JOBS).items()
        if count[0]
    }


def test_what_members_send_is_counted(switch: Switch) -> None:
    job = Job(switch, 2, number=7).start()
    other = Job(switch, 2, number=8, pool_base=4).start()
    assert counted(switch) == {}
    long = job.data(0, 2, values=values_of(1, switch, [0]))
    short = job.data(1, 2, active=1)
    for one in (long, long, short, other.data(1, 2)):
        switch.exchange(one)
    assert counted(switch) == {
        (7, 0): (2, 2 * len(long[1])),
        (7, 1): (1, len(short[1])),
        (8, 1): (1, len(other.data(1, 2)[1])),
    }


def test_what_is_of_no_slot_is_the_members_all_the_same_and_what_is_no_members_is_not(switch: Switch) -> None:
    job = Job(switch, 2).start()
    for packet in (
        job.packet(0, 2, slot=99),  # its pool ends before
        job.packet(0, 2, op=frames.ERROR),
        job.packet(0, 2, op=frames.RESULT),  # refused: workers may not
        job.packet(0, 2, generation=9),
        job.packet(0, 2, job=9),
        job.packet(0, 2, version=3),  # refused: malformed
    ):
        switch.exchange(job.sent(packet))
    switch.exchange(job.sent(job.packet(0, 2), rank=1))
    # A program for Tofino that can be a leaf looks for the parent's entry with a RESULT, not for the worker's.
    refused = 2 - switch.can_be_leaf if switch.counts_refused else 0
    assert {key: packets for key, (packets, _) in counted(switch).items()} == {(7, 0): 2 + refused}


def test_a_leaf_counts_its_parent(switch: Switch) -> None:
    job = Job(switch, 1, parent=Member(switch.ports[-1], frames.Host("02:00:00:00:00:99", "10.9.9.9", 31314))).start()
    result = job.from_parent(Aggregation(**{**vars(job.packet(0, 2)), "op": frames.RESULT}))
    switch.exchange(result)
    assert counted(switch) == {(7, frames.PARENT): (1, len(result[1]))}


def test_who_comes_anew_begins_anew(switch: Switch) -> None:
    job = Job(switch, 2).start()
    switch.exchange(job.data(0, 2, active=1))
    switch.delete(job.admission(0))
    assert counted(switch) == {}
    switch.insert(job.admission(0))
    switch.exchange(job.data(0, 2, active=1))
    assert {key: packets for key, (packets, _) in counted(switch).items()} == {(7, 0): 1}
