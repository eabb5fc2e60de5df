# SPDX-License-Identifier: Apache-2.0
"""A controller that is started again finishes what an earlier one began when a switch of a job died."""

from __future__ import annotations

import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.failover import STRANDED_TIMEOUT
from p4reduce_controller.jobs.job import State
from tests.support.controller.failover import RANKS, FailoverHarness, restarted, resumes
from tests.support.controller.jobs_harness import rejoin


def test_a_later_controller_takes_the_slots_over_again_when_all_ranks_are_back() -> None:
    """It does not know which ranks have heard where the slots went."""
    harness = FailoverHarness()
    harness.kill(1)
    first = harness.take_over()
    later, job = restarted(harness), harness.job
    later.sessions = [rejoin(later, job, 0)]
    assert not later.keeps
    later.switches.dead |= {0, 2}  # they are not connected yet
    later.sessions.append(rejoin(later, job, 1))
    later.tick()
    assert not later.keeps
    later.switches.dead = frozenset({1})
    later.tick()
    second = later.take_over()
    assert (second.tree, second.via) == (1, 0)
    assert second.jobs != first.jobs or second.number != first.number
    assert all(len(resumes(later, session)) == 1 for session in later.sessions)


def test_a_later_controller_that_moves_no_slots_finishes_a_move() -> None:
    """No switch has these slots: they have to go on somewhere. Other slots stay."""
    harness = FailoverHarness()
    harness.kill(1)
    harness.take_over()
    later = restarted(harness, moves_slots=False)
    later.sessions = [rejoin(later, later.job, rank) for rank in range(RANKS)]
    later.tick()
    assert later.take_over().tree == 1
    later.kill(2)
    assert not later.keeps


@pytest.mark.parametrize("why", ["no room", "nothing works", "a rank leaves"])
@pytest.mark.parametrize("moves_slots", [True, False])
def test_a_job_ends_if_a_later_controller_has_no_switch_for_its_slots(why: str, moves_slots: bool) -> None:
    harness = FailoverHarness()
    harness.kill(1)
    harness.take_over()
    later = restarted(harness, moves_slots=moves_slots)
    later.sessions = [rejoin(later, later.job, rank) for rank in range(RANKS)]
    if why == "no room":
        for number in (0, 2):
            pool = later.jobs.pool(number)
            pool.take(pool.find(5))
    elif why == "nothing works":
        later.switches.dead |= {0, 2}
    else:
        later.leave(later.sessions[1])
    later.tick()
    later.tick(STRANDED_TIMEOUT / 2)
    if why != "a rank leaves":  # it waits less long
        assert later.job.state is State.READY
    later.tick(STRANDED_TIMEOUT / 2 + 1)
    assert not later.keeps
    abort = later.last(later.sessions[0])
    assert (abort.HasField("rank"), abort.reason) == (False, pb.SWITCH_LOST)
    if why != "a rank leaves":
        assert f"the slots of {_root(later, 1)} were elsewhere when the controller was restarted" in abort.message


def _root(harness: FailoverHarness, tree: int) -> str:
    return harness.job.site.trees.names[tree]
