# SPDX-License-Identifier: Apache-2.0
"""Jobs are moved while anything else happens, in random order: no slot is lost, and none has two jobs."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.slot_compaction import COOLDOWN_S
from tests.support.controller.jobs_harness import AnyOrder

pytestmark = pytest.mark.usefixtures("few_slots_do")


class AnyMove(AnyOrder):
    """The rules of AnyOrder, with more jobs that are ready, and with ranks that hold together."""

    moved = 0

    @initialize()
    def fragment(self) -> None:
        for name in "abc":
            self.begin(name, 4)
        self.harness.leave(self.sessions[1])
        self.harness.removed()
        self.sessions.append(self.harness.join(0, 1, "f", 99, slots=8, queue_s=1000.0))
        self.harness.tick(COOLDOWN_S)

    @rule(name=st.sampled_from("abcdef"), slots=st.integers(1, 9))
    def begin(self, name: str, slots: int) -> None:
        self.join(name, 0, 1, slots)
        if self.sessions[-1] in self.harness.told and self.harness.kinds(self.sessions[-1]) == ["assigned"]:
            self.harness.hear(self.sessions[-1])
        self.harness.installed()

    @rule()
    def a_while_passes(self) -> None:
        self.harness.tick(COOLDOWN_S)

    @rule(again=st.booleans())
    def all_hold(self, again: bool) -> None:
        for job in self.harness.jobs.live:
            for rank in job.workers if job.move is not None or again else ():
                number = job.move.numbers.get(rank, 0) if job.move is not None else 0
                held = pb.Held(operations=3, quiet=True, first_seq=8, number=number)
                self.harness.jobs.held(job.members[rank].session, held, self.harness.now)
        self.harness.carry_out()
        self.moved += len(self.harness.changes)


@pytest.mark.parametrize("examples", [20, pytest.param(300, marks=pytest.mark.slow)])
def test_whatever_happens_meanwhile_no_slot_is_lost_or_anothers(examples: int) -> None:
    run_state_machine_as_test(AnyMove, settings=settings(max_examples=examples, stateful_step_count=40, deadline=None))


def test_the_schedules_can_move_a_job() -> None:
    schedule = AnyMove()
    schedule.fragment()
    schedule.all_hold(again=False)
    assert schedule.moved > 0
