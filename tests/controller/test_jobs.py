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
from p4reduce_controller.switches.frames import Endpoint
from tests.support.controller.jobs_harness import (
    ADDRESS,
    GRACE,
    IPV6_ADDRESS,
    AnyOrder,
    JobsHarness,
    rejoin,
    restarted,
)

WIRE = Path(__file__).parents[2] / "docs" / "wire.md"


@pytest.mark.parametrize(
    ("hosts", "told"),
    [
        (["a", "a", "a"], [0, 0, 0]),
        (["a", "b", "a"], []),
        (["", "a", ""], []),
        (["", "", ""], []),
    ],
)
def test_ranks_are_told_who_can_share_memory(hosts: list[str], told: list[int]) -> None:
    harness = JobsHarness()
    sessions = [harness.join(rank, 3, host=host) for rank, host in enumerate(hosts)]
    for session in sessions:
        harness.hear(session)
    harness.installed()
    for session in sessions:
        assert list(harness.told[session][-1].ready.hosts) == told


def test_ready_comes_to_all_at_once_and_last() -> None:
    harness = JobsHarness()
    one = harness.join(0)
    assert harness.hear(one)
    two = harness.join(1)
    assert not harness.installs
    assert harness.hear(two)
    assert harness.kinds(one) == harness.kinds(two) == ["assigned"]
    assert [worker.worker for worker in harness.installs[0].placements[0].workers] == [0, 1]
    harness.installed()
    assert harness.kinds(one) == harness.kinds(two) == ["assigned", "ready"]


def test_every_switch_has_to_hear_every_rank() -> None:
    harness = JobsHarness(switches=3)
    one, two = harness.join(0), harness.join(1)
    for session, switch in ((one, 0), (two, 0), (one, 2), (one, 1), (two, 2)):
        assert harness.hear(session, switch)
        assert not harness.hear(session, switch)  # once is enough
        assert not harness.installs
    harness.tick(NOTIFY_AFTER)
    assert harness.told[one][-1].waiting == pb.Waiting(what=pb.Waiting.HELLO, ranks=[1])
    assert harness.hear(two, 1)
    [job] = harness.installs
    for switch in range(3):
        assert [worker.worker for worker in job.placements[switch].workers] == [0, 1]


@pytest.mark.parametrize("what", ["job", "generation", "worker", "nonce"])
def test_a_hello_that_is_wrong_in_anything_counts_for_nothing(what: str) -> None:
    harness = JobsHarness()
    session = harness.join(0, world_size=1)
    assigned = harness.assigned(session)
    right = {"job": assigned.job, "generation": assigned.generation, "worker": 0, "nonce": assigned.hello_nonce}
    assert not harness.hear(session, **{what: right[what] ^ 1})
    assert not harness.installs
    assert harness.hear(session)
    assert not harness.hear(session)  # once is enough


def test_who_is_waited_for_is_told_when_it_changes() -> None:
    harness = JobsHarness()
    one = harness.join(0, world_size=3)
    harness.tick(NOTIFY_AFTER / 2)
    assert harness.told[one][1:] == []  # most jobs are ready by then
    harness.tick(NOTIFY_AFTER)
    harness.tick()
    assert harness.told[one][1:] == [pb.ServerMessage(waiting=pb.Waiting(what=pb.Waiting.JOIN, ranks=[1, 2]))]
    two, three = harness.join(1, world_size=3), harness.join(2, world_size=3)
    harness.hear(one)
    harness.tick()
    assert harness.told[one][-1].waiting == pb.Waiting(what=pb.Waiting.HELLO, ranks=[1, 2])
    assert harness.told[two][-1].waiting == pb.Waiting(what=pb.Waiting.HELLO, ranks=[1, 2], you=True)
    harness.hear(two)
    harness.hear(three)
    harness.tick()
    assert harness.told[three][-1].waiting == pb.Waiting(what=pb.Waiting.SWITCH)


def test_the_least_patient_rank_decides() -> None:
    harness = JobsHarness()
    one = harness.join(0, world_size=3, timeout_s=60)
    harness.tick(4)
    two = harness.join(1, world_size=3, timeout_s=4)
    harness.tick(3.9)
    assert not harness.ended
    harness.tick(0.1)
    for session in (one, two):
        abort = harness.last(session)
        assert (abort.reason, abort.rank) == (pb.JOIN_TIMEOUT, 2)
        assert "after 8.0 s, rank 2 of 3 did not join" in abort.message


def test_where_several_ranks_are_missing_all_are_named_and_none_is_blamed() -> None:
    harness = JobsHarness()
    session = harness.join(1, world_size=4, timeout_s=1.0)
    harness.tick(2.0)
    assert "ranks 0, 2, 3 of 4 did not join" in harness.last(session).message
    assert not harness.last(session).HasField("rank")


def test_the_end_of_an_installation_after_the_end_of_the_job_is_nothing() -> None:
    harness = JobsHarness()
    one, two = harness.join(0), harness.join(1)
    harness.hear(one)
    harness.hear(two)
    harness.lose(two)
    harness.installed()
    assert harness.kinds(one)[-1] == "abort"
    assert harness.removals[0].job.state is State.ABORTED


def test_a_name_is_free_as_soon_as_its_job_is_over_but_its_slots_are_not() -> None:
    harness = JobsHarness(slots=8)
    sessions = harness.ready()
    harness.lose(sessions[0])
    first = harness.removals[0].job
    again = harness.join(0, attempt=1)
    assigned = harness.assigned(again)
    assert assigned.job != first.number
    assert harness.jobs.pools[0].used == 8
    harness.removed()
    assert harness.jobs.pools[0].used == 4


def test_all_who_leave_within_the_grace_leave_in_peace() -> None:
    harness = JobsHarness()
    one, two = harness.ready()
    harness.leave(one)
    harness.jobs.lost(one)  # it need not wait for the answer
    harness.tick(GRACE * 0.9)
    assert not harness.ended
    harness.leave(two)
    assert harness.kinds(one)[-1] == harness.kinds(two)[-1] == "left"
    assert harness.removals == [Remove(harness.removals[0].job, None)]
    assert (harness.jobs.lifecycle.started, harness.jobs.lifecycle.finished, harness.jobs.lifecycle.aborted) == (
        1,
        1,
        0,
    )


def test_the_grace_of_leaving_begins_anew_with_each_rank_that_is_back() -> None:
    harness = JobsHarness()
    harness.ready(world_size=3)
    [job] = harness.jobs.live
    harness = restarted(harness)

    one = rejoin(harness, job, 0)
    harness.jobs.leave(one, harness.now)
    harness.tick(GRACE * 1.5)
    two = rejoin(harness, job, 1)
    harness.tick(GRACE * 1.5)
    three = rejoin(harness, job, 2)
    harness.tick(GRACE * 0.9)
    assert not harness.ended
    assert all(harness.kinds(session)[0] == "ready" for session in (one, two, three))
    for session in (two, three):
        harness.leave(session)
    assert [harness.kinds(session)[-1] for session in (one, two, three)] == ["left"] * 3


def test_who_was_not_away_puts_off_nobodys_leaving() -> None:
    harness = JobsHarness()
    harness.ready(world_size=3)
    [job] = harness.jobs.live
    harness = restarted(harness)
    one, two, three = [rejoin(harness, job, rank) for rank in range(3)]
    for session in (one, two):
        harness.jobs.leave(session, harness.now)
    for attempt in range(1, 5):
        harness.tick(GRACE / 4)
        if attempt < 4:
            three = rejoin(harness, job, 2, attempt)
    assert [harness.kinds(session)[-1] for session in (one, two)] == ["left", "left"]
    assert harness.last(three).reason == pb.LEFT_EARLY
    assert not harness.jobs.live


def test_why_a_job_has_ended_is_kept_for_a_while_and_of_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "MOST_ABORTS", 2)
    harness = JobsHarness(slots=64)
    harness.jobs = Jobs(harness.switches, JobOptions(returns=True))
    for name in ("one", "two", "three"):
        harness.ready(name=name)
    jobs = harness.jobs.live
    for job in jobs:
        harness.jobs.failed(job, "it ends")
    harness.carry_out()
    said = [harness.last(rejoin(harness, job, 0)).message for job in jobs]
    assert said[0].startswith("rank 0 cannot come back to job 1, ")
    assert said[1:] == ["job 'two': it ends", "job 'three': it ends"]
    harness.tick()
    harness.tick(ABORTS_KEPT / 2)
    assert harness.last(rejoin(harness, jobs[2], 0, 1)).message == "job 'three': it ends"
    harness.tick(ABORTS_KEPT)
    harness.tick(ABORTS_KEPT)
    assert "cannot come back" in harness.last(rejoin(harness, jobs[2], 0, 2)).message


def test_who_leaves_alone_is_blamed() -> None:
    harness = JobsHarness()
    one, two = harness.ready()
    harness.jobs.leave(one, harness.now)
    harness.tick(GRACE)
    assert harness.kinds(one)[-1] == "left"
    assert (harness.last(two).rank, harness.last(two).reason) == (0, pb.LEFT_EARLY)
    abort = harness.removals[0].abort
    assert abort.rank == 0


def test_silence_is_no_reason() -> None:
    harness = JobsHarness()
    harness.ready()
    harness.tick(1e6)
    assert not harness.ended


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"name": ""}, "1 to 200 printable characters"),
        ({"name": "x" * 201}, "1 to 200 printable characters"),
        ({"name": "a\nb"}, "1 to 200 printable characters"),
        ({"world_size": 0}, "world_size=0: must be from 1 to 4096"),
        ({"world_size": 4097}, "world_size=4097: must be from 1 to 4096"),
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
    harness = JobsHarness()
    session = harness.join(**{"rank": 0, **changes})  # type: ignore[arg-type]
    assert text in harness.last(session).message
    assert "\n" not in harness.last(session).message
    assert len(harness.last(session).message) < 1000
    assert harness.jobs.pools[0].used == 0


@pytest.mark.parametrize("examples", [25, pytest.param(300, marks=pytest.mark.slow)])
def test_in_any_order_nobody_hears_two_last_words_and_no_slot_is_lost(examples: int) -> None:
    run_state_machine_as_test(AnyOrder, settings=settings(max_examples=examples, deadline=None))


def test_all_ranks_are_told_what_one_has_asked() -> None:
    harness = JobsHarness()
    sessions = harness.ready()
    harness.ask(sessions[1], 5)
    (look,) = harness.looks
    assert look.half == 5
    found = pb.Counted(half=5, seq=7, ranks=[0])
    harness.answer(found)
    assert [harness.told[session][-1].counted for session in sessions] == [found, found]
    assert not harness.looks


def test_one_question_of_each_rank_at_a_time() -> None:
    """So a rank that asks without end does not delay others."""
    harness = JobsHarness()
    sessions = harness.ready(4)
    for half in (0, 1, 2, 3):
        harness.ask(sessions[0], half)
    harness.ask(sessions[1], 6)
    harness.ask(sessions[2], 7)
    harness.ask(sessions[3], 6)
    halves = []
    while harness.looks:
        halves.append(harness.looks[0].half)
        harness.ask(sessions[0], 3)
        harness.answer(None)
        if len(halves) == 4:
            break
    assert halves == [0, 6, 7, 3]
    assert all(harness.kinds(session)[-1] == "ready" for session in sessions)


def test_questions_that_have_no_answer() -> None:
    harness = JobsHarness()
    gathering = harness.join(0)
    harness.ask(gathering, 0)
    harness.ask(("job", 9, 0), 0)
    sessions = harness.ready(name="other")
    harness.ask(sessions[0], 2 * 4)  # of four slots
    assert not harness.looks
    harness.ask(sessions[0], 0)
    harness.lose(sessions[0])
    harness.answer(pb.Counted(half=0, seq=2, ranks=[1]))  # of a job that is over
    assert harness.kinds(sessions[1])[-1] == "abort"


def test_a_rank_is_answered_when_it_is_heard() -> None:
    """So the rank need not ask when it is released. Until then, its further HELLOs are ignored."""
    harness = JobsHarness()
    sessions = [harness.join(rank) for rank in range(2)]
    nonces = [harness.assigned(session).hello_nonce for session in sessions]
    harness.hear(sessions[0], full=True)
    assert [(one.switch, one.hello.worker) for one in harness.answers] == [(0, 0)]
    harness.hear(sessions[0], full=True)
    assert len(harness.answers) == 1
    harness.hear(sessions[1])
    assert len(harness.answers) == 1
    assert not any(harness.jobs.awaits(nonce) for nonce in nonces)
    harness.installed()
    assert all(harness.jobs.awaits(nonce) for nonce in nonces)
    harness.hear(sessions[1], full=True)
    assert [one.hello.worker for one in harness.answers] == [0, 1]


def test_slots_of_jobs_that_are_over_are_waited_for() -> None:
    """A job waits for the slots of killed programs, whose jobs the switch is about to forget."""
    harness = JobsHarness(slots=4)
    for session in harness.ready(name="killed"):
        harness.lose(session)
    next_one = harness.join(0, 1, name="next")  # without a queue
    harness.tick(0.2)
    assert "abort" not in harness.kinds(next_one)
    harness.removed()
    harness.tick(0.1)
    assert "assigned" in harness.kinds(next_one)


def test_slots_of_jobs_that_run_or_stay_are_not_waited_for() -> None:
    harness = JobsHarness(slots=4)
    sessions = harness.ready()
    assert harness.last(harness.join(0, 1, name="next")).reason == pb.SLOTS_EXHAUSTED
    for session in sessions:
        harness.lose(session)
    patient = harness.join(0, 1, name="patient")
    harness.tick(9.9)
    assert "abort" not in harness.kinds(patient)
    harness.tick(0.2)  # its switch does not forget the job
    assert harness.last(patient).reason == pb.SLOTS_EXHAUSTED


def test_ranks_have_as_long_to_leave_as_the_page_says() -> None:
    page = " ".join(WIRE.read_text().split())
    assert f"After the first `Leave`, all other ranks must send theirs within {LEAVE_GRACE:g} s" in page


def test_a_queued_job_keeps_the_slots_that_one_of_its_ranks_named(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = JobsHarness(slots=16)
    first = [harness.join(rank, name="first", slots=16) for rank in range(2)]
    default = harness.jobs.switches.slots_at(harness.jobs.switches.for_new())
    harness.join(0, queue_s=60.0)
    harness.join(1, queue_s=60.0, slots=default)
    monkeypatch.setattr(harness.jobs.switches, "slots_at", lambda _: default // 2)  # a switch came or went
    harness.jobs.lost(first[0])
    harness.tick(0.1)
    job = harness.jobs.named("job")
    assert job.slots == default


# --- short and full HELLOs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("address", "protocol", "mtu"), [(ADDRESS, "IPv4", 1086), (IPV6_ADDRESS, "IPv6", 1106)])
def test_a_rank_of_which_only_short_ones_come_is_refused(address: Endpoint, protocol: str, mtu: int) -> None:
    harness = JobsHarness(address=address)
    sessions = [harness.join(rank) for rank in range(2)]
    harness.hear(sessions[0], full=True)
    for _ in range(SHORT_HELLOS - 1):
        assert not harness.hear(sessions[1], short=True)
    assert harness.hear(sessions[1], short=True)
    for session in sessions:
        abort = harness.told[session][-1].abort
        assert (abort.rank, abort.reason) == (1, pb.JOIN_REFUSED)
        longest = f": its short packets arrive there, but not the job's longest, {mtu} bytes with {protocol} headers"
        assert f"at the switch {address}{longest}" in abort.message
        assert abort.message.endswith(f"every link on the way needs an MTU of {mtu} or more")  # no program has less


def test_one_that_is_full_is_enough() -> None:
    harness = JobsHarness()
    sessions = [harness.join(rank) for rank in range(2)]
    for session in sessions:
        for _ in range(SHORT_HELLOS - 1):
            harness.hear(session, short=True)
        assert harness.hear(session, full=True)
        assert not harness.hear(session, short=True)
    harness.installed()
    assert [harness.kinds(session)[-1] for session in sessions] == ["ready", "ready"]


def test_who_sends_no_full_ones_is_believed() -> None:
    """A worker of an earlier protocol version sends no full HELLOs, and is believed."""
    harness = JobsHarness()
    assert harness.hear(harness.join(0, world_size=1))


def test_a_full_one_is_answered_when_the_job_is_ready() -> None:
    harness = JobsHarness()
    sessions = harness.ready()
    assert harness.told[sessions[1]][-1].ready.answers
    assert harness.hear(sessions[1], full=True)
    assert [(answer.switch, answer.hello.worker) for answer in harness.answers] == [(0, 1)]


def test_a_short_one_is_answered_then_by_a_short_one() -> None:
    """So the rank learns whether longer packets alone are lost."""
    harness = JobsHarness()
    sessions = harness.ready()
    assert harness.hear(sessions[1], short=True)
    assert [(answer.hello.short, answer.hello.worker) for answer in harness.answers] == [(True, 1)]


def test_no_other_is_answered() -> None:
    harness = JobsHarness()
    gathering = harness.join(0, name="gathering")
    sessions = harness.ready()
    assert harness.hear(gathering)
    assert not harness.hear(sessions[1])
    assert not harness.hear(sessions[1], full=True, nonce=1)
    assert not harness.hear(sessions[1], short=True, nonce=1)
    assert not harness.hear(sessions[1], full=True, port=2)
    assert harness.answers == []
