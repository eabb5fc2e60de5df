# SPDX-License-Identifier: Apache-2.0
"""The service, killed and started again under the hosts' sessions, on switches in memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.asking import ask
from p4reduce.control.client import Session
from p4reduce.control.grpc_channels import open_grpc_channel
from p4reduce.errors import JoinError
from p4reduce_controller.store.state import StateError
from tests.support.controller.ranks import ready
from tests.support.controller.running import Running, Starter, advance, leave
from tests.support.waiting import stays, wait_until


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def running(start: Starter, file: Path) -> Running:
    return start(Running, state=file, switches=2)


def jobs_in(file: Path) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = json.loads(file.read_text())["jobs"]
    return jobs


def status(running: Running) -> list[pb.Job]:
    return list(running.look().jobs)


def wait_until_back(running: Running) -> None:
    def back() -> bool:
        return not any(member.away for job in status(running) for member in job.members)

    wait_until(back, "all ranks to be back")


def stable(job: pb.Job) -> pb.Job:
    """Return a copy of the job without the fields that change with time."""
    copy = pb.Job()
    copy.CopyFrom(job)
    copy.ClearField("age_s")
    for member in copy.members:
        member.ClearField("heard_s")
    return copy


def rejoin(running: Running, **fields: Any) -> pb.Abort:
    """Send a Rejoin with these fields, and return its refusal."""
    with open_grpc_channel(running.address) as channel:
        messages = iter([pb.ClientMessage(rejoin=pb.Rejoin(**fields))])
        replies = list(rpc.JobsStub(channel).Session(messages, timeout=10))
    assert [reply.WhichOneof("message") for reply in replies] == ["abort"]
    return replies[0].abort


def changes(running: Running) -> list[str]:
    """Return the operations that changed the first switch; reading is left out."""
    return [what for what in running.switch.log if what != "outcomes"]


def test_jobs_are_as_they_were(running: Running, file: Path) -> None:
    one, two = running.job(3, job="one"), running.job(2, job="two")
    before, done = status(running), changes(running)
    running.crash()
    running.start_again()
    wait_until_back(running)
    after = status(running)
    assert list(map(stable, after)) == list(map(stable, before))
    assert all(now.age_s >= then.age_s for now, then in zip(after, before, strict=True))
    assert changes(running) == done
    for switch in running.switches:
        assert switch.admitted.keys() == {1, 2}
    assert [rank.session.aborted for rank in one + two] == [None] * 5
    # A name and a number that are in use, and slots of another job.
    assert "the job is ready" in str(running.rank(0, 2, job="two").outcome())
    three = ready([running.rank(0, 1, job="three")])[0]
    assert three.job == 3
    assert running.switch.admitted[3].slots.first == 4
    assert len(jobs_in(file)) == 3

    one[1].session.close()
    wait_until(lambda: one[0].aborted_at and one[2].aborted_at, "the others to hear of it")
    assert "rank 1 was lost" in str(one[0].session.aborted)
    running.ranks[-1].session.leave()
    leave(running, two)
    assert jobs_in(file) == []
    again = ready([running.rank(0, 1, job="four")])[0]
    assert again.job == 1
    assert again.generation != one[0].assigned.generation  # type: ignore[union-attr]


def test_a_controller_may_die_again_and_again(running: Running) -> None:
    ranks = running.job(2)
    for _ in range(4):
        running.crash()
        running.start_again()
        wait_until_back(running)
    leave(running, ranks)


def test_who_does_not_come_back_is_named(running: Running) -> None:
    running.crash()
    running.start_again(rejoin_time=10.0)
    ranks = running.job(3)
    running.crash()
    ranks[1].session.close()
    running.start_again(rejoin_time=60.0)  # a job has the time that its ranks were told
    away = lambda: [member.rank for job in status(running) for member in job.members if member.away]  # noqa: E731
    wait_until(lambda: away() == [1], "the others to be back")
    assert [ranks[number].session.aborted for number in (0, 2)] == [None, None]
    advance(running.loop, running.controller, 10.0)
    wait_until(lambda: ranks[0].aborted_at and ranks[2].aborted_at, "the abort")
    error = ranks[0].session.aborted
    assert (error.rank, error.reason) == (1, "DID_NOT_RETURN")
    assert "rank 1 did not come back within 10 s after the controller was restarted" in str(error)
    wait_until(lambda: running.used() == 0, "the slots to be freed")
    assert running.switch.aborts == [(1, 1, pb.DID_NOT_RETURN)]


def test_only_who_has_the_key_is_let_in(running: Running) -> None:
    ranks = running.job(2)
    assigned = ranks[0].assigned
    right = {"job": assigned.job, "generation": assigned.generation, "rank": 0, "key": assigned.rejoin_key}
    others = ready(ranks)[1].rejoin_key
    for changes, text in (
        ({"key": others}, "its key is not the key of that rank"),
        ({"key": ""}, "its key is not the key of that rank"),
        ({"rank": 1}, "its key is not the key of that rank"),
        ({"rank": 2}, "its key is not the key of that rank"),
        ({"generation": assigned.generation ^ 1}, "does not know the job"),
        ({"job": 7}, "does not know the job"),
    ):
        abort = rejoin(running, **(right | changes))
        assert text in abort.message
        assert abort.reason == pb.JOIN_REFUSED
    assert [rank.session.aborted for rank in ranks] == [None, None]


def test_a_rank_that_notices_first_takes_its_seat_from_its_old_stream(running: Running) -> None:
    """Its host may know that a connection is gone long before the controller does."""
    ranks = running.job(2)
    assigned = ranks[0].assigned
    place = pb.Rejoin(job=assigned.job, generation=assigned.generation, rank=0, key=assigned.rejoin_key)
    done = threading.Event()

    def messages() -> Iterator[pb.ClientMessage]:
        yield pb.ClientMessage(rejoin=place)
        done.wait(10)

    with open_grpc_channel(running.address) as channel:
        call = rpc.JobsStub(channel).Session(messages(), timeout=10)
        assert next(call).WhichOneof("message") == "ready"
        wait_until(lambda: ranks[0].aborted_at, "the old stream to be told")
        assert "reconnected on another stream" in str(ranks[0].session.aborted)
        ranks[0].session.close()
        stays(lambda: [job.state for job in status(running)] == ["ready"], "the old stream ends the job", 0.3)
        assert ranks[1].session.aborted is None
        done.set()


def test_while_the_first_switch_is_awaited_that_is_told(running: Running) -> None:
    """Ranks of running jobs keep their membership, and are admitted as soon as the controller serves."""
    ranks = running.job(2)
    running.crash()
    running.switch.problem = "connection refused"
    with running.waiting_for_a_switch():
        said = r"this controller stands by until its first switch answers \(switch at fake: connection refused\)"
        with pytest.raises(JoinError, match=said):
            ask(running.address, None, None, lambda stub, _: stub.Status(pb.StatusRequest(), timeout=10))
        with Session(running.address, connect_timeout=0.5) as impatient, pytest.raises(JoinError, match=said):
            impatient.join("other", 0, 1)
        latecomer = running.rank(0, 1, job="patient")
        running.switch.problem = ""
    assert ready([latecomer])
    wait_until_back(running)
    assert [rank.session.aborted for rank in ranks] == [None, None]


def test_a_switch_that_was_restarted_meanwhile_costs_its_jobs(running: Running, file: Path) -> None:
    ranks = running.job(2)
    running.crash()
    running.switches[1].restart()
    running.start_again()
    for rank in ranks:
        wait_until(lambda rank=rank: rank.aborted_at, "the abort")
        assert "the switch at fake 1 was restarted and lost the job's state" in str(rank.session.aborted)
        assert rank.session.aborted.reason == "SWITCH_LOST"
    assert running.switch.aborts == []  # which says nothing of why: ranks would hear that first
    wait_until(lambda: running.used() == 0, "the slots to be freed")
    assert not running.switch.admitted
    assert jobs_in(file) == []


def test_a_crash_before_the_file_is_written(running: Running, file: Path) -> None:
    """The switch has the job, its ranks were not told that it is ready, and the next controller does not know it."""
    running.loop.call(running.switch.hold_resets.clear)
    ranks = [running.rank(rank, 2) for rank in range(2)]
    wait_until(lambda: "reset" in running.switch.log, "the reset to begin")
    running.crash()
    assert jobs_in(file) == []
    running.loop.call(running.switch.hold_resets.set)
    running.start_again()
    for rank in ranks:
        error = rank.outcome()
        assert isinstance(error, JoinError)
        assert "this controller does not know the job" in str(error)
    assert not running.switch.admitted
    assert running.used() == 0
    running.job(2)


def test_a_crash_after_the_file_is_written(running: Running, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No rank was told that the job is ready: each hears it when it is back."""
    monkeypatch.setattr(running.jobs, "installed", lambda _: None)
    ranks = [running.rank(rank, 2) for rank in range(2)]
    wait_until(lambda: jobs_in(file), "the file to be written")
    running.crash()
    running.start_again()
    ready(ranks)
    leave(running, ranks)


def test_a_crash_while_ranks_leave(running: Running) -> None:
    ranks = running.job(2)
    first = running.loop.loop.run_in_executor(None, ranks[0].session.leave)
    wait_until(lambda: any(member.leaving for job in status(running) for member in job.members), "the first to leave")
    running.crash()
    running.start_again()
    wait_until_back(running)
    ranks[1].session.leave()
    wait_until(first.done, "the first to have left")
    assert [rank.session.aborted for rank in ranks] == [None, None]
    wait_until(lambda: running.used() == 0, "the slots to be freed")


def test_a_file_that_cannot_be_written_fails_the_job_by_name(running: Running, file: Path) -> None:
    kept = running.job(2, job="kept")
    running.state.path = file.parent / "gone" / "state"
    for rank in [running.rank(rank, 2, job="not kept") for rank in range(2)]:
        assert "state cannot be written: No such file or directory" in str(rank.outcome())
    assert [rank.session.aborted for rank in kept] == [None, None]
    assert [one["name"] for one in jobs_in(file)] == ["kept"]


def test_a_controller_that_is_ended_keeps_or_ends_its_jobs(running: Running, file: Path) -> None:
    ranks = running.job(2)
    waiting = running.rank(0, 2, job="not ready")
    wait_until(lambda: waiting.assigned, "the second job")
    running.loop.run(running.controller.close())
    running.release()
    assert running.controller.has_kept_jobs
    assert "the controller was stopped" in str(waiting.outcome())
    assert [one["name"] for one in jobs_in(file)] == ["job"]
    running.start_again()
    wait_until_back(running)
    assert [rank.session.aborted for rank in ranks] == [None, None]

    running.controller.keeps_jobs = False
    running.loop.run(running.controller.close())
    running.release()
    wait_until(lambda: all(rank.aborted_at for rank in ranks), "the abort")
    assert ranks[0].session.aborted.reason == "CONTROLLER_STOPPED"
    assert jobs_in(file) == []
    running.start_again()


def test_without_a_file_ranks_have_no_way_back(start: Starter) -> None:
    running = start(Running, rejoin_time=60.0)
    ranks = running.job(2)
    assert ranks[0].assigned.rejoin_key == ""
    running.crash()
    wait_until(lambda: all(rank.aborted_at for rank in ranks), "the abort")
    assert ranks[0].session.aborted.reason == "CONTROLLER_LOST"
    running.start_again()


def test_other_switches_than_those_of_the_file_are_refused(running: Running, file: Path) -> None:
    ranks = running.job(2)
    running.crash()
    text = file.read_text()
    running.switches[1].target = "fake 7"
    with pytest.raises(StateError) as refused:
        running.start_again()
    for said in (
        "it has jobs on switches that this controller does not have. Its switch was 127.0.0.1:31315 at fake 1, ",
        "now there is 127.0.0.1:31315 at fake 7, ",
        "Start the controller with the same switches; remove the file to start without its jobs, which then end",
    ):
        assert said in str(refused.value)
    running.release()
    assert file.read_text() == text
    running.switches[1].target = "fake 1"
    running.start_again()
    wait_until_back(running)
    assert [rank.session.aborted for rank in ranks] == [None, None]
