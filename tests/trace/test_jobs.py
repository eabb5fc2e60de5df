# SPDX-License-Identifier: Apache-2.0
"""The controller's names for the jobs and ranks whose packets are recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from typer.testing import CliRunner

from p4reduce.control import jobs_pb2 as pb
from p4reduce.errors import P4ReduceError
from p4reduce.trace import cli
from p4reduce.trace.jobs import Follower, Running, _called, _names, asked, ports


def member(rank: int, leader: int | None, *ports: int) -> pb.Member:
    attachments = [pb.Attachment(heard=True, ip="10.0.0.1", udp_port=port) for port in ports]
    return pb.Member(rank=rank, leader=leader, places=[*attachments, pb.Attachment(heard=False)])


def test_a_stream_has_the_names_of_all_ranks_that_share_it() -> None:
    job = pb.Job(name="mine", members=[member(0, 0, 1000, 1001), member(1, 0, 1002), member(2, None, 1003)])
    assert _names(job) == {
        ("10.0.0.1", 1000): "ranks 0, 1",
        ("10.0.0.1", 1001): "ranks 0, 1",
        ("10.0.0.1", 1003): "rank 2",
    }


def test_a_job_is_called_as_commands_call_it() -> None:
    assert _called(pb.Job(name="mine")) == "mine"
    assert _called(pb.Job(name="mine", tenant="theirs")) == "theirs/mine"


def test_a_controller_that_is_not_there_is_named() -> None:
    with pytest.raises(P4ReduceError, match=r"127\.0\.0\.1:1"):
        asked("127.0.0.1:1", None, None)


def test_ports_are_those_of_all_switches() -> None:
    status = pb.StatusReply(switches=[pb.Switch(udp_port=port) for port in (31315, 31314, 31315)])
    assert ports(status) == (31314, 31315)


class Recorded:
    """A recorder that has as much time as the test gives it, and notes what it is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def record(self, seconds: float, told: object = None) -> None:
        assert callable(told)
        self.calls.append("record" if seconds > 0 else "nothing")

    def forget(self) -> None:
        self.calls.append("forget")


def looks(*answers: Running | Exception | None) -> Callable[[], Running | None]:
    left = list(answers)

    def look() -> Running | None:
        found = left.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    return look


def test_a_job_is_followed_from_its_beginning_to_its_end() -> None:
    first, both = {("10.0.0.1", 1000): "rank 0"}, {("10.0.0.2", 1000): "rank 1"}
    away = P4ReduceError("the controller is away")
    answers = looks(None, None, Running((7,), {}), away, Running((7, 8), first), Running((7, 8), both), None)
    recorder = Recorded()
    follower = Follower(answers, wait=1000)
    follower.record(recorder, seconds=1000)
    assert recorder.calls == ["forget", "record"] * 2 + ["record"] * 4
    assert follower.known == Running((7, 8), first | both)


def test_another_job_of_the_same_name_is_not_followed() -> None:
    follower = Follower(looks(Running((7,), {}), Running((9,), {("10.0.0.9", 1): "rank 0"})), wait=1000)
    follower.record(Recorded(), seconds=1000)
    assert follower.known == Running((7,), {})


def test_a_job_that_does_not_begin_is_awaited_for_so_long() -> None:
    recorder = Recorded()
    follower = Follower(looks(None), wait=0)
    follower.record(recorder, seconds=1000)
    assert (follower.known, recorder.calls) == (None, ["forget"])


def test_a_rank_that_is_heard_during_the_recording_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recording may begin while ranks join."""
    made: dict[str, Any] = {}
    members = [member(0, 0, 1000), member(1, 1, 1001)]
    replies = iter([pb.StatusReply(jobs=[pb.Job(name="live", number=7, members=members[:n])]) for n in (1, 2)])
    for name, stub in {
        "asked": lambda *_: next(replies),
        "_heard": lambda *_: ([], 0),
        "merge": lambda *_: ([], None, 0),
        "trace_of": lambda *_, **given: made.update(given),
        "save": lambda *_: None,
        "_say": lambda *_, **__: None,
    }.items():
        monkeypatch.setattr(cli, name, stub)
    result = CliRunner().invoke(cli.trace, ["record", "live"])
    assert result.exit_code == 0, result.output
    assert sorted(made["names"].values()) == ["rank 0", "rank 1"]
