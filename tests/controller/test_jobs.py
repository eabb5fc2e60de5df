# SPDX-License-Identifier: Apache-2.0
"""The life of jobs on a clock of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs import lifecycle
from p4reduce_controller.jobs.deadlines import LEAVE_GRACE
from p4reduce_controller.jobs.effects import Remove
from p4reduce_controller.jobs.gathering import SHORT_HELLOS
from p4reduce_controller.jobs.job import State
from p4reduce_controller.jobs.jobs import NOTIFY_AFTER, Jobs
from p4reduce_controller.jobs.lifecycle import ABORTS_KEPT, JobOptions
from tests.support.controller.jobs_harness import GRACE, AnyOrder, Desk, rejoin, restarted

WIRE = Path(__file__).parents[2] / "docs" / "wire.md"


@pytest.mark.parametrize(
    ("hosts", "told"),
    [
        (["a", "a", "a"], [0, 0, 0]),
        (["a", "b", "a"], [0, 1, 0]),
        (["", "a", ""], [0, 1, 2]),
        (["", "", ""], []),
    ],
)
def test_ranks_are_told_who_can_share_memory(hosts: list[str], told: list[int]) -> None:
    desk = Desk()
    sessions = [desk.join(rank, 3, host=host) for rank, host in enumerate(hosts)]
    for session in sessions:
        desk.hear(session)
    desk.installed()
    for session in sessions:
        assert list(desk.told[session][-1].ready.hosts) == told


def test_ready_comes_to_all_at_once_and_last() -> None:
    desk = Desk()
    one = desk.join(0)
    assert desk.hear(one)
    two = desk.join(1)
    assert not desk.installs
    assert desk.hear(two)
    assert desk.kinds(one) == desk.kinds(two) == ["assigned"]
    assert [worker.worker for worker in desk.installs[0].placements[0].workers] == [0, 1]
    desk.installed()
    assert desk.kinds(one) == desk.kinds(two) == ["assigned", "ready"]


def test_every_switch_has_to_hear_every_rank() -> None:
    desk = Desk(switches=3)
    one, two = desk.join(0), desk.join(1)
    for session, switch in ((one, 0), (two, 0), (one, 2), (one, 1), (two, 2)):
        assert desk.hear(session, switch)
        assert not desk.hear(session, switch)  # once is enough
        assert not desk.installs
    desk.tick(NOTIFY_AFTER)
    assert desk.told[one][-1].waiting == pb.Waiting(what=pb.Waiting.HELLO, ranks=[1])
    assert desk.hear(two, 1)
    [job] = desk.installs
    for switch in range(3):
        assert [worker.worker for worker in job.placements[switch].workers] == [0, 1]


@pytest.mark.parametrize("what", ["job", "generation", "worker", "nonce"])
def test_a_hello_that_is_wrong_in_anything_counts_for_nothing(what: str) -> None:
    desk = Desk()
    session = desk.join(0, world_size=1)
    assigned = desk.assigned(session)
    right = {"job": assigned.job, "generation": assigned.generation, "worker": 0, "nonce": assigned.hello_nonce}
    assert not desk.hear(session, **{what: right[what] ^ 1})
    assert not desk.installs
    assert desk.hear(session)
    assert not desk.hear(session)  # once is enough


def test_who_is_waited_for_is_told_when_it_changes() -> None:
    desk = Desk()
    one = desk.join(0, world_size=3)
    desk.tick(NOTIFY_AFTER / 2)
    assert desk.told[one][1:] == []  # most jobs are ready by then
    desk.tick(NOTIFY_AFTER)
    desk.tick()
    assert desk.told[one][1:] == [pb.ServerMessage(waiting=pb.Waiting(what=pb.Waiting.JOIN, ranks=[1, 2]))]
    two, three = desk.join(1, world_size=3), desk.join(2, world_size=3)
    desk.hear(one)
    desk.tick()
    assert desk.told[two][-1].waiting == pb.Waiting(what=pb.Waiting.HELLO, ranks=[1, 2])
    desk.hear(two)
    desk.hear(three)
    desk.tick()
    assert desk.told[three][-1].waiting == pb.Waiting(what=pb.Waiting.SWITCH)


def test_the_least_patient_rank_decides() -> None:
    desk = Desk()
    one = desk.join(0, world_size=3, timeout_s=60)
    desk.tick(4)
    two = desk.join(1, world_size=3, timeout_s=4)
    desk.tick(3.9)
    assert not desk.ended
    desk.tick(0.1)
    for session in (one, two):
        abort = desk.last(session)
        assert (abort.reason, abort.rank) == (pb.JOIN_TIMEOUT, 2)
        assert "after 8.0 s, rank 2 of 3 did not join" in abort.message


def test_where_several_ranks_are_missing_all_are_named_and_none_is_blamed() -> None:
    desk = Desk()
    session = desk.join(1, world_size=4, timeout_s=1.0)
    desk.tick(2.0)
    assert "ranks 0, 2, 3 of 4 did not join" in desk.last(session).message
    assert not desk.last(session).HasField("rank")


def test_the_end_of_an_installation_after_the_end_of_the_job_is_nothing() -> None:
    desk = Desk()
    one, two = desk.join(0), desk.join(1)
    desk.hear(one)
    desk.hear(two)
    desk.lose(two)
    desk.installed()
    assert desk.kinds(one)[-1] == "abort"
    assert desk.removals[0].job.state is State.ABORTED


def test_a_name_is_free_as_soon_as_its_job_is_over_but_its_slots_are_not() -> None:
    desk = Desk(slots=8)
    sessions = desk.ready()
    desk.lose(sessions[0])
    first = desk.removals[0].job
    again = desk.join(0, attempt=1)
    assigned = desk.assigned(again)
    assert assigned.job != first.number
    assert desk.jobs.pools[0].used == 8
    desk.removed()
    assert desk.jobs.pools[0].used == 4


def test_all_who_leave_within_the_grace_leave_in_peace() -> None:
    desk = Desk()
    one, two = desk.ready()
    desk.leave(one)
    desk.jobs.lost(one)  # it need not wait for the answer
    desk.tick(GRACE * 0.9)
    assert not desk.ended
    desk.leave(two)
    assert desk.kinds(one)[-1] == desk.kinds(two)[-1] == "left"
    assert desk.removals == [Remove(desk.removals[0].job, None)]
    assert (desk.jobs.lifecycle.started, desk.jobs.lifecycle.finished, desk.jobs.lifecycle.aborted) == (1, 1, 0)


def test_the_grace_of_leaving_begins_anew_with_each_rank_that_is_back() -> None:
    desk = Desk()
    desk.ready(world_size=3)
    [job] = desk.jobs.live
    desk = restarted(desk)

    one = rejoin(desk, job, 0)
    desk.jobs.leave(one, desk.now)
    desk.tick(GRACE * 1.5)
    two = rejoin(desk, job, 1)
    desk.tick(GRACE * 1.5)
    three = rejoin(desk, job, 2)
    desk.tick(GRACE * 0.9)
    assert not desk.ended
    assert all(desk.kinds(session)[0] == "ready" for session in (one, two, three))
    for session in (two, three):
        desk.leave(session)
    assert [desk.kinds(session)[-1] for session in (one, two, three)] == ["left"] * 3


def test_who_was_not_away_puts_off_nobodys_leaving() -> None:
    desk = Desk()
    desk.ready(world_size=3)
    [job] = desk.jobs.live
    desk = restarted(desk)
    one, two, three = [rejoin(desk, job, rank) for rank in range(3)]
    for session in (one, two):
        desk.jobs.leave(session, desk.now)
    for attempt in range(1, 5):
        desk.tick(GRACE / 4)
        if attempt < 4:
            three = rejoin(desk, job, 2, attempt)
    assert [desk.kinds(session)[-1] for session in (one, two)] == ["left", "left"]
    assert desk.last(three).reason == pb.LEFT_EARLY
    assert not desk.jobs.live


def test_why_a_job_has_ended_is_kept_for_a_while_and_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "MOST_ABORTS", 2)
    desk = Desk(slots=64)
    desk.jobs = Jobs(desk.switches, JobOptions(returns=True))
    for name in ("one", "two", "three"):
        desk.ready(name=name)
    jobs = desk.jobs.live
    for job in jobs:
        desk.jobs.failed(job, "it ends")
    desk.carry_out()
    said = [desk.last(rejoin(desk, job, 0)).message for job in jobs]
    assert said[0].startswith("rank 0 cannot come back to job 1, ")
    assert said[1:] == ["job 'two': it ends", "job 'three': it ends"]
    desk.tick()
    desk.tick(ABORTS_KEPT / 2)
    assert desk.last(rejoin(desk, jobs[2], 0, 1)).message == "job 'three': it ends"
    desk.tick(ABORTS_KEPT)
    desk.tick(ABORTS_KEPT)
    assert "cannot come back" in desk.last(rejoin(desk, jobs[2], 0, 2)).message


def test_who_leaves_alone_is_blamed() -> None:
    desk = Desk()
    one, two = desk.ready()
    desk.jobs.leave(one, desk.now)
    desk.tick(GRACE)
    assert desk.kinds(one)[-1] == "left"
    assert (desk.last(two).rank, desk.last(two).reason) == (0, pb.LEFT_EARLY)
    abort = desk.removals[0].abort
    assert abort.rank == 0


def test_silence_is_no_reason() -> None:
    desk = Desk()
    desk.ready()
    desk.tick(1e6)
    assert not desk.ended


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"name": ""}, "1 to 200 printable characters"),
        ({"name": "x" * 201}, "1 to 200 printable characters"),
        ({"name": "a\nb"}, "1 to 200 printable characters"),
        ({"world_size": 0}, "world_size=0: must be from 1 to 255"),
        ({"world_size": 256}, "world_size=256: must be from 1 to 255"),
        ({"rank": 2}, "world_size=2 has ranks 0 to 1"),
        ({"slots": 17}, "slots=17, and the switch has 16"),
        ({"host": "x" * 65}, "the name of its host has 65 characters: must be at most 64"),
        ({"switch": "\x01" * 100_000}, "the name of its switch has 100000 characters: must be at most 200"),
        ({"timeout_s": -1.0}, "timeout_s=-1.0: must be from 0 to 86400"),
        ({"timeout_s": float("nan")}, "timeout_s=nan"),
        ({"timeout_s": float("inf")}, "timeout_s=inf"),
    ],
)
def test_a_request_that_cannot_be_met_is_refused(changes: dict[str, float | str], text: str) -> None:
    desk = Desk()
    session = desk.join(**{"rank": 0, **changes})  # type: ignore[arg-type]
    assert text in desk.last(session).message
    assert "\n" not in desk.last(session).message
    assert len(desk.last(session).message) < 1000
    assert desk.jobs.pools[0].used == 0


@pytest.mark.parametrize("examples", [25, pytest.param(300, marks=pytest.mark.slow)])
def test_in_any_order_nobody_hears_two_last_words_and_no_slot_is_lost(examples: int) -> None:
    run_state_machine_as_test(AnyOrder, settings=settings(max_examples=examples, deadline=None))


def test_all_ranks_are_told_what_one_has_asked() -> None:
    desk = Desk()
    sessions = desk.ready()
    desk.ask(sessions[1], 5)
    (look,) = desk.looks
    assert look.half == 5
    found = pb.Counted(half=5, seq=7, ranks=[0])
    desk.answer(found)
    assert [desk.told[session][-1].counted for session in sessions] == [found, found]
    assert not desk.looks


def test_one_question_of_each_rank_at_a_time() -> None:
    """So a rank that asks without end does not delay others."""
    desk = Desk()
    sessions = desk.ready(4)
    for half in (0, 1, 2, 3):
        desk.ask(sessions[0], half)
    desk.ask(sessions[1], 6)
    desk.ask(sessions[2], 7)
    desk.ask(sessions[3], 6)
    halves = []
    while desk.looks:
        halves.append(desk.looks[0].half)
        desk.ask(sessions[0], 3)
        desk.answer(None)
        if len(halves) == 4:
            break
    assert halves == [0, 6, 7, 3]
    assert all(desk.kinds(session)[-1] == "ready" for session in sessions)


def test_questions_that_have_no_answer() -> None:
    desk = Desk()
    gathering = desk.join(0)
    desk.ask(gathering, 0)
    desk.ask(("job", 9, 0), 0)
    sessions = desk.ready(name="other")
    desk.ask(sessions[0], 2 * 4)  # of four slots
    assert not desk.looks
    desk.ask(sessions[0], 0)
    desk.lose(sessions[0])
    desk.answer(pb.Counted(half=0, seq=2, ranks=[1]))  # of a job that is over
    assert desk.kinds(sessions[1])[-1] == "abort"


def test_a_rank_is_answered_when_it_is_heard() -> None:
    """So the rank need not ask when it is released. Until then, its further HELLOs are ignored."""
    desk = Desk()
    sessions = [desk.join(rank) for rank in range(2)]
    nonces = [desk.assigned(session).hello_nonce for session in sessions]
    desk.hear(sessions[0], full=True)
    assert [(one.switch, one.hello.worker) for one in desk.answers] == [(0, 0)]
    desk.hear(sessions[0], full=True)
    assert len(desk.answers) == 1
    desk.hear(sessions[1])
    assert len(desk.answers) == 1
    assert not any(desk.jobs.awaits(nonce) for nonce in nonces)
    desk.installed()
    assert all(desk.jobs.awaits(nonce) for nonce in nonces)
    desk.hear(sessions[1], full=True)
    assert [one.hello.worker for one in desk.answers] == [0, 1]


def test_slots_of_jobs_that_are_over_are_waited_for() -> None:
    """A job waits for the slots of killed programs, whose jobs the switch is about to forget."""
    desk = Desk(slots=4)
    for session in desk.ready(name="killed"):
        desk.lose(session)
    next_one = desk.join(0, 1, name="next")  # without a queue
    desk.tick(0.2)
    assert "abort" not in desk.kinds(next_one)
    desk.removed()
    desk.tick(0.1)
    assert "assigned" in desk.kinds(next_one)


def test_slots_of_jobs_that_run_or_stay_are_not_waited_for() -> None:
    desk = Desk(slots=4)
    sessions = desk.ready()
    assert desk.last(desk.join(0, 1, name="next")).reason == pb.SLOTS_EXHAUSTED
    for session in sessions:
        desk.lose(session)
    patient = desk.join(0, 1, name="patient")
    desk.tick(9.9)
    assert "abort" not in desk.kinds(patient)
    desk.tick(0.2)  # its switch does not forget the job
    assert desk.last(patient).reason == pb.SLOTS_EXHAUSTED


def test_ranks_have_as_long_to_leave_as_the_page_says() -> None:
    page = " ".join(WIRE.read_text().split())
    assert f"After the first `Leave`, all other ranks must send theirs within {LEAVE_GRACE:g} s" in page


def test_a_queued_job_keeps_the_slots_that_one_of_its_ranks_named(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(slots=16)
    first = [desk.join(rank, name="first", slots=16) for rank in range(2)]
    default = desk.jobs.switches.slots_at(desk.jobs.switches.for_new())
    desk.join(0, queue_s=60.0)
    desk.join(1, queue_s=60.0, slots=default)
    monkeypatch.setattr(desk.jobs.switches, "slots_at", lambda _: default // 2)  # a switch came or went
    desk.jobs.lost(first[0])
    desk.tick(0.1)
    job = desk.jobs.named("job")
    assert job.slots == default


# --- short and full HELLOs -------------------------------------------------------------------------------------------


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
    """A worker of an earlier protocol version sends no full HELLOs, and is believed."""
    desk = Desk()
    assert desk.hear(desk.join(0, world_size=1))


def test_a_full_one_is_answered_when_the_job_is_ready() -> None:
    desk = Desk()
    sessions = desk.ready()
    assert desk.told[sessions[1]][-1].ready.answers
    assert desk.hear(sessions[1], full=True)
    assert [(answer.switch, answer.hello.worker) for answer in desk.answers] == [(0, 1)]


def test_a_short_one_is_answered_then_by_a_short_one() -> None:
    """So the rank learns whether longer packets alone are lost."""
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
