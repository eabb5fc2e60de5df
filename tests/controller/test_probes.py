# SPDX-License-Identifier: Apache-2.0
"""HELLOs as long as the job's longest packets, and short ones between them: what the controller makes of which come."""

from __future__ import annotations

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.gathering import SHORT_HELLOS
from tests.support.controller.desks import Desk


def test_a_rank_of_which_only_short_ones_come_is_refused() -> None:
    desk = Desk()
    sessions = [desk.join(rank) for rank in range(2)]
    desk.hear(sessions[0], full=True)
    for _ in range(SHORT_HELLOS - 1):
        assert not desk.hear(sessions[1], short=True)
    assert desk.hear(sessions[1], short=True)
    for session in sessions:
        abort = desk.told[session][-1].abort
        assert (abort.rank, abort.reason) == (1, pb.JOIN_REFUSED)
        assert ": its short packets arrive there, but not the job's longest, 1086 bytes" in abort.message
        assert abort.message.endswith("every link on the way needs an MTU of 1086 or more")  # no program has less


def test_one_that_is_full_is_enough() -> None:
    desk = Desk()
    sessions = [desk.join(rank) for rank in range(2)]
    for session in sessions:
        for _ in range(SHORT_HELLOS - 1):
            desk.hear(session, short=True)
        assert desk.hear(session, full=True)
        assert not desk.hear(session, short=True)
    desk.installed()
    assert [desk.kinds(session)[-1] for session in sessions] == ["ready", "ready"]


def test_who_sends_no_full_ones_is_believed() -> None:
    """As a worker that follows an earlier version of the protocol does."""
    desk = Desk()
    assert desk.hear(desk.join(0, world_size=1))


def test_a_full_one_is_answered_when_the_job_is_ready() -> None:
    desk = Desk()
    sessions = desk.ready()
    assert desk.told[sessions[1]][-1].ready.answers
    assert desk.hear(sessions[1], full=True)
    assert [(answer.switch, answer.hello.worker) for answer in desk.answers] == [(0, 1)]


def test_a_short_one_is_answered_then_by_a_short_one() -> None:
    """So the rank learns whether it is the length that keeps answers from it."""
    desk = Desk()
    sessions = desk.ready()
    assert desk.hear(sessions[1], short=True)
    assert [(answer.hello.short, answer.hello.worker) for answer in desk.answers] == [(True, 1)]


def test_no_other_is_answered() -> None:
    desk = Desk()
    gathering = desk.join(0, name="gathering")
    sessions = desk.ready()
    assert desk.hear(gathering)
    assert not desk.hear(sessions[1])
    assert not desk.hear(sessions[1], full=True, nonce=1)
    assert not desk.hear(sessions[1], short=True, nonce=1)
    assert not desk.hear(sessions[1], full=True, port=2)
    assert desk.answers == []
