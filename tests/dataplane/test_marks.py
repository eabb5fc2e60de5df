# SPDX-License-Identifier: Apache-2.0
"""Marks of congestion (CE): if a packet of a round is marked, so are all later answers of the round."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.dataplane import frames
from tests.support.dataplane.frames import Host
from tests.support.dataplane.jobs import Job, Member, Round, values_of
from tests.support.dataplane.switch import SWITCH, Switch

NOT_ECT, ECT_1, ECT_0, CE = range(4)
CLASS = 0x28  # a DSCP, which answers keep
SPINE = Host("02:00:00:00:97:01", "10.97.0.1", 6000)


@pytest.mark.parametrize("marked", [(0,), (1,), (2,), (0, 1, 2)])
def test_any_marked_packet_marks_the_result(switch: Switch, marked: tuple[int, ...]) -> None:
    job = Job(switch, 3).start()
    one = Round(job)
    for rank in (0, 1):
        one.send(rank, tos=CLASS | (CE if rank in marked else ECT_0)).expect()
    last = one.send(2, tos=CLASS | (CE if 2 in marked else ECT_0))
    last.expect(job.to_all(one.result(2), tos=CLASS | CE))


@pytest.mark.parametrize("ecn", [NOT_ECT, ECT_0, ECT_1])
def test_without_marks_the_answer_has_the_ecn_of_its_packet(switch: Switch, ecn: int) -> None:
    job = Job(switch, 2).start()
    one = Round(job)
    one.send(0, tos=ECT_0).expect()
    one.send(0, tos=CLASS | ecn).expect(job.to_one(0, job.status(one.packets[0], 1), tos=CLASS | ecn))
    one.send(1, tos=CLASS | ecn).expect(job.to_all(one.result(1), tos=CLASS | ecn))
    one.send(0, tos=CLASS | ecn).expect(job.to_one(0, one.result(0), tos=CLASS | ecn))


def test_a_marked_round_marks_the_answer_to_a_worker_without_ecn(switch: Switch) -> None:
    job = Job(switch, 2).start()
    one = Round(job)
    one.send(0, tos=CE).expect()
    one.send(1, tos=NOT_ECT).expect(job.to_all(one.result(1), tos=CE))


def test_later_answers_of_a_marked_round(switch: Switch) -> None:
    job = Job(switch, 2).start()
    one = Round(job)
    one.send(0, tos=CE).expect()
    one.send(0, tos=ECT_0).expect(job.to_one(0, job.status(one.packets[0], 1), tos=CE))
    one.send(1, tos=ECT_0).expect(job.to_all(one.result(1), tos=CE))
    one.send(0, tos=ECT_0).expect(job.to_one(0, one.result(0), tos=CE))


def test_a_marked_copy_marks_the_round(switch: Switch) -> None:
    """A copy of a packet that is counted already adds nothing but its mark."""
    job = Job(switch, 2).start()
    first, then = Round(job), Round(job, 3)
    first.send(0, tos=ECT_0).expect()
    first.send(0, tos=CE).expect(job.to_one(0, job.status(first.packets[0], 1), tos=CE))
    first.send(1, tos=ECT_0).expect(job.to_all(first.result(1), tos=CE))
    then.send(0, tos=ECT_0).expect()
    then.send(1, tos=ECT_0).expect(job.to_all(then.result(1), tos=ECT_0))
    then.send(1, tos=CE).expect(job.to_one(1, then.result(1), tos=CE))
    then.send(0, tos=ECT_0).expect(job.to_one(0, then.result(0), tos=CE))


def test_marks_end_with_the_round(switch: Switch) -> None:
    job = Job(switch, 2).start()
    for seq in range(2, 7):
        one = Round(job, seq)
        ecn = CE if seq in (2, 5) else ECT_0
        one.send(0, tos=ecn).expect()
        one.send(1, tos=ECT_0).expect(job.to_all(one.result(1), tos=ecn))


def test_marks_of_other_rounds_and_slots(switch: Switch) -> None:
    """A packet that is dropped or of another operation marks nothing."""
    job = Job(switch, 2).start()
    old, one, other = Round(job), Round(job, 4), Round(job, 4, slot=1)
    for rank in (0, 1):
        old.send(rank)
    one.send(0, tos=ECT_0).expect()
    other.send(0, tos=CE).expect()
    old.send(1, tos=CE).expect()
    wrong = replace(one.packets[1], fingerprint=one.packets[1].fingerprint ^ 1 << 20)
    switch.exchange(job.sent(wrong, tos=CE)).expect(job.to_all(job.error(wrong, one.packets[1].fingerprint), tos=CE))
    one.send(1, tos=ECT_0).expect(job.to_all(one.result(1), tos=ECT_0))


def leaf_job(switch: Switch) -> Job:
    return Job(switch, 2, parent=Member(switch.ports[-1], SPINE), index=5).start()


@pytest.mark.parametrize("up", [ECT_0, CE])
@pytest.mark.parametrize("down", [ECT_0, CE])
def test_a_leaf_passes_marks_both_ways(switch: Switch, up: int, down: int) -> None:
    job = leaf_job(switch)
    one = Round(job)
    partial = replace(one.result(1), op=frames.DATA)
    one.send(0, tos=up).expect()
    one.send(1, tos=ECT_0).expect(job.to_parent(partial, tos=up))
    one.send(1, tos=ECT_0).expect(job.to_parent(partial, tos=up))
    total = values_of(7, switch, range(switch.lanes))
    answer = replace(partial, op=frames.RESULT, worker=job.index, values=total)
    switch.exchange(job.from_parent(answer, tos=down)).expect(job.to_all(job.named(answer, 1), tos=up | down))
    again = replace(one.packets[0], op=frames.RESULT, keys=answer.keys, values=total)
    one.send(0, tos=ECT_0).expect(job.to_one(0, again, tos=up | down))


def test_a_marked_status_of_the_parent(switch: Switch) -> None:
    job = leaf_job(switch)
    one = Round(job)
    one.send(0, tos=ECT_0).expect()
    one.send(1, tos=ECT_0).expect(job.to_parent(replace(one.result(1), op=frames.DATA), tos=ECT_0))
    asked = replace(one.packets[1], worker=job.index)
    answer = job.named(job.status(asked, 0b11), 1)
    switch.exchange(job.from_parent(job.status(asked, 1), tos=CE)).expect(job.to_all(answer, tos=CE))
    stale = replace(one.result(0), seq=one.packets[0].seq - 2, worker=job.index)
    switch.exchange(job.from_parent(stale, tos=CE)).expect()


def test_forwarded_packets_keep_their_ecn(switch: Switch) -> None:
    source, target = Host("02:00:00:00:99:01", "10.99.0.1"), Host("02:00:00:00:99:02", "10.99.0.2")
    switch.forward(target.mac, 2)
    for ecn in (NOT_ECT, ECT_1, ECT_0, CE):
        frame = frames.udp_frame(source, target, b"payload of some bytes", tos=CLASS | ecn)
        switch.exchange((1, frame)).expect({2: [frame]})


def test_the_controller_gets_no_marks(switch: Switch) -> None:
    job = Job(switch, 2).start()
    Round(job).send(0, tos=CE).expect()
    query = job.packet(0, 2, active=0, op=frames.QUERY)
    (answer,) = switch.packet_out(frames.frame(Host("02:5a:00:00:00:02", "10.255.0.2"), SWITCH, query)).packet_ins
    assert answer.payload[15] == NOT_ECT
