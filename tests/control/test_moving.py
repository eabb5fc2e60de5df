# SPDX-License-Identifier: Apache-2.0
"""Messages that a session passes on when a scripted controller moves the slots of an aggregator."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from p4reduce.control import jobs_pb2 as pb
from tests.support.scripted_controller import ScriptedController, ready
from tests.support.waiting import wait_until


class FakeMover:
    """A mover whose slots are in some rounds, and which records its calls."""

    def __init__(self, rounds: list[int] | None) -> None:
        self.rounds = rounds
        self.calls: list[tuple[object, ...]] = []

    def suspend(self, aggregator: int) -> list[int] | None:
        self.calls.append(("suspend", aggregator))
        return self.rounds

    def move(self, aggregator: int, via: int, jobs: Sequence[int], rounds: Sequence[int]) -> None:
        self.calls.append(("move", aggregator, via, jobs, rounds))


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("more_jobs", [[], [7, 2**32 - 2]])
def test_slots_are_suspended_and_go_on_once(controller: ScriptedController, late: bool, more_jobs: list[int]) -> None:
    session, mover = ready(controller), FakeMover([2**32 - 1, 0])
    if not late:
        session.move_with(mover)
    controller.send(suspend=pb.Suspend(aggregator=1, number=2**63))
    controller.send(resume=pb.Resume(aggregator=1, number=3))  # of an earlier Suspend
    controller.send(suspend=pb.Suspend(aggregator=2, number=4))
    controller.send(resume=pb.Resume(aggregator=1, number=4))  # of another aggregator
    for _ in range(2):
        controller.send(
            resume=pb.Resume(
                aggregator=1, number=2**63, via=3, job=2**32 - 1, more_jobs=more_jobs, rounds=[2**32 - 1, 0]
            )
        )
    controller.send(notice=pb.Notice(text="the end"))
    controller.send(suspend=pb.Suspend(aggregator=0, number=5))
    if late:
        session.move_with(mover)
    wait_until(lambda: ("suspend", 0) in mover.calls, "the last message")
    assert mover.calls == [
        ("suspend", 1),
        ("suspend", 2),
        ("move", 1, 3, [2**32 - 1, *more_jobs], [2**32 - 1, 0]),
        ("suspend", 0),
    ]
    answers = [controller.script.next().rounds for _ in range(3)]
    assert answers == [pb.Rounds(number=number, rounds=[2**32 - 1, 0]) for number in (2**63, 4, 5)]


def test_an_engine_that_cannot_suspend_tells_no_rounds(controller: ScriptedController) -> None:
    session, mover = ready(controller), FakeMover(None)
    session.move_with(mover)
    controller.send(suspend=pb.Suspend(aggregator=1, number=7))
    controller.send(resume=pb.Resume(aggregator=1, number=7))
    controller.send(suspend=pb.Suspend(aggregator=2, number=8))
    wait_until(lambda: len(mover.calls) == 2, "both Suspends")
    assert mover.calls == [("suspend", 1), ("suspend", 2)]
    assert [controller.script.next().rounds for _ in range(2)] == [pb.Rounds(number=7), pb.Rounds(number=8)]
