# SPDX-License-Identifier: Apache-2.0
"""A rank joins a job, says HELLO until the job is ready, and is told for whom it waits."""

from __future__ import annotations

import itertools
import logging
import time

import pytest

from p4reduce.control import client
from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.client import Session
from p4reduce.errors import JoinError
from tests.support.scripted_controller import DEADLINE, ScriptedController, abort, joined
from tests.support.waiting import wait_until


def test_join_says_what_is_wanted_and_returns_what_was_given(controller: ScriptedController) -> None:
    controller.script.assign()
    with Session(controller.address) as session:
        assigned = session.join("name", 1, 3, slots=7, timeout=12.5)
        wanted = pb.Join(job="name", rank=1, world_size=3, slots=7, timeout_s=12.5, stream=pb.UNSAID, numbers=True)
        assert controller.script.next().join == wanted
        assert (assigned.job, assigned.generation, assigned.worker, assigned.first_seq) == (3, 9, 1, 0)
        assert (list(assigned.aggregators), assigned.hello_nonce) == ([], 0)
        assert not session.ready


def test_hello_is_said_until_ready(controller: ScriptedController) -> None:
    session = joined(controller)
    said: list[float] = []

    def hello() -> None:
        said.append(time.monotonic())
        if len(said) == 4:
            controller.script.ready()
            wait_until(lambda: session.ready, "the session to be ready")

    session.wait_ready(hello)
    assert len(said) == 4
    assert 0.4 <= shortest_gap(said) < 2.0


def shortest_gap(times: list[float]) -> float:
    """Return the shortest time between neighbours: a busy machine makes other intervals longer."""
    return min(after - before for before, after in itertools.pairwise(times))


@pytest.mark.parametrize(
    ("waiting", "least", "most"),
    [
        (pb.Waiting(what=pb.Waiting.HELLO, ranks=[1]), 0.1, 0.3),
        (pb.Waiting(what=pb.Waiting.HELLO, ranks=range(32), more=7, you=True), 0.1, 0.3),
        (pb.Waiting(what=pb.Waiting.HELLO, ranks=[0], more=7), 0.4, 2.0),
        (pb.Waiting(what=pb.Waiting.JOIN), 0.4, 2.0),
    ],
    ids=["named", "meant", "heard", "joining"],
)
def test_hello_is_said_often_by_who_was_not_heard(
    controller: ScriptedController, waiting: pb.Waiting, least: float, most: float
) -> None:
    """The interval in seconds is that of rank 1."""
    session = joined(controller)
    controller.send(waiting=waiting)
    wait_until(lambda: session._waiting, "the session to hear for whom the controller waits")
    said: list[float] = []

    def hello() -> None:
        said.append(time.monotonic())
        if len(said) == 5:
            controller.script.ready()

    session.wait_ready(hello)
    assert least <= shortest_gap(said) < most


def test_who_sends_for_whom_is_known_when_it_is_ready(controller: ScriptedController) -> None:
    controller.script.assign()
    with Session(controller.address) as session:
        session.join("name", 1, 3, host="here", shares_stream=True)
        said = controller.script.next().join
        assert (said.host, said.stream) == ("here", pb.SHARED)
        controller.send(ready=pb.Ready(peers=[0, 2], hosts=[0, 0, 2], leaders=[0, 0, 2]))
        assert session.wait_ready(lambda: None) == pb.Ready(peers=[0, 2], hosts=[0, 0, 2], leaders=[0, 0, 2])


@pytest.mark.parametrize("addresses", ["127.0.0.1:7700,", "127.0.0.1:7700,http://127.0.0.1:7701", ""])
def test_addresses_are_looked_at_before_they_are_needed(addresses: str) -> None:
    with pytest.raises(JoinError, match="must be HOST:PORT"):
        Session(addresses)


def test_an_abort_before_ready_is_an_error_of_joining(controller: ScriptedController) -> None:
    session = joined(controller)
    controller.script.send.put(abort(rank=0))
    with pytest.raises(JoinError, match="rank 0 was lost"):
        session.wait_ready(lambda: None)
    session.close()
    assert not session.heard


def test_a_refusal(controller: ScriptedController) -> None:
    controller.script.send.put(abort(rank=1))
    with Session(controller.address) as session, pytest.raises(JoinError, match="rank 0 was lost"):
        session.join("job", 1, 2)


def test_not_ready_in_time_says_who_is_missing(controller: ScriptedController) -> None:
    session = joined(controller)
    for what, text in (
        (pb.Waiting.JOIN, "ranks that have not joined: 0, 3"),
        (pb.Waiting.HELLO, "ranks that the switch has not heard from: 0, 3"),
        (pb.Waiting.SWITCH, "the switch is still being set up"),
    ):
        controller.send(waiting=pb.Waiting(what=what, ranks=[0, 3]))
        heard = lambda what=what: session._waiting is not None and session._waiting.what == what  # noqa: E731
        wait_until(heard, "the session to hear for what the controller waits")
        with pytest.raises(JoinError, match=f"the job is not ready after 0.2 s: {text}"):
            session.wait_ready(lambda: None, timeout=0.2)


def test_a_switch_that_is_away_is_told_once(controller: ScriptedController, caplog: pytest.LogCaptureFixture) -> None:
    session = joined(controller)
    why = "the switch leaf1 cannot be used: unreachable for 3 s: pulled"
    for _ in range(3):
        controller.send(waiting=pb.Waiting(what=pb.Waiting.AWAY, why=why))
    controller.send(abort=pb.Abort(message="over"))
    with pytest.raises(JoinError, match="over"):
        session.wait_ready(lambda: None, timeout=DEADLINE)
    session.close()
    assert [one for one in caplog.messages if "no answer" in one] == [f"this rank gets no answer from a switch: {why}"]


def test_who_is_awaited_is_told_once_for_each_change(
    controller: ScriptedController, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "_LOG_JOINING_INTERVAL", 0.1)
    session = joined(controller)
    hellos = 0

    def wait_for(*ranks: int) -> None:
        waiting = pb.Waiting(what=pb.Waiting.JOIN, ranks=ranks)
        controller.send(waiting=waiting)
        wait_until(lambda: session._waiting == waiting, "the session to hear for whom the controller waits")

    def hello() -> None:
        nonlocal hellos
        hellos += 1
        if hellos == 2:
            wait_for(0, 2)
        elif hellos == 5:
            wait_for(2)
        elif hellos == 8:
            controller.script.ready()

    with caplog.at_level(logging.WARNING):
        session.wait_ready(hello)
    session.close()
    told = [record.getMessage() for record in caplog.records if "ranks" in record.getMessage()]
    assert told == [
        "this rank waits for its job to begin: ranks that have not joined: 0, 2",
        "this rank waits for its job to begin: ranks that have not joined: 2",
    ]


def test_a_session_is_for_one_job(controller: ScriptedController) -> None:
    session = joined(controller)
    with pytest.raises(JoinError, match="joined already"):
        session.join("job", 0, 1)


@pytest.mark.parametrize(("rank", "world_size", "slots"), [(-1, 1, 0), (0, -1, 0), (0, 1, -1), (2**32, 1, 0)])
def test_numbers_that_cannot_be_sent_are_named(rank: int, world_size: int, slots: int) -> None:
    with pytest.raises(JoinError, match="must be 0 or more"):
        Session("127.0.0.1:1").join("job", rank, world_size, slots=slots)
