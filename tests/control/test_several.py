# SPDX-License-Identifier: Apache-2.0
"""A session that knows several controllers, of which one serves."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from p4reduce.control import client, rpc
from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.client import Session
from p4reduce.errors import JoinError
from tests.support.scripted_controller import (
    DEADLINE,
    Attempt,
    Refuses,
    ScriptedController,
    abort,
    ready,
    serving,
    wait_for_no_session_thread,
)
from tests.support.waiting import stays, wait_until

REJOIN = pb.ClientMessage(rejoin=pb.Rejoin(job=3, generation=9, rank=1, key="secret"))


@pytest.fixture
def other() -> Iterator[ScriptedController]:
    controller = ScriptedController()
    yield controller
    controller.stop()


@pytest.fixture
def standby() -> Iterator[str]:
    """Yield the address of a standby controller."""

    text = "this controller stands by; the one that serves is elsewhere"
    with serving(Refuses(grpc.StatusCode.UNAVAILABLE, text)) as address:
        yield address


def test_who_serves_is_found(controller: ScriptedController, standby: str) -> None:
    controller.script.assign(10.0, "secret")
    with Session(f"127.0.0.1:9, {standby},{controller.address}") as session:
        session.join("job", 1, 2)
        assert session.address == controller.address


def test_where_none_serves_the_error_has_all(standby: str) -> None:
    error = Attempt(lambda: Session(f"127.0.0.1:9,{standby}", connect_timeout=0.5).join("job", 1, 2)).error()
    assert isinstance(error, JoinError)
    assert "127.0.0.1:9: connection refused" in str(error)
    assert f"{standby}: this controller stands by; the one that serves is elsewhere" in str(error)


def test_one_that_stands_still_is_passed_over(controller: ScriptedController, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one assigns each time, since on a busy machine it may be passed over at first, too."""

    class Assigns(rpc.JobsServicer):
        def Session(self, _: Any, context: Any) -> Iterator[pb.ServerMessage]:
            context.add_callback((gone := threading.Event()).set)
            yield pb.ServerMessage(assigned=pb.Assigned(job=3, worker=1))
            gone.wait(DEADLINE)

    monkeypatch.setattr(client, "_ANSWER_TIMEOUT_OF_SEVERAL", 0.3)
    with serving(Assigns()) as other, Session(f"{controller.address},{other}", connect_timeout=DEADLINE) as session:
        session.join("job", 1, 2)
        assert session.address == other


def waits(position: int) -> pb.ServerMessage:
    return pb.ServerMessage(waiting=pb.Waiting(what=pb.Waiting.QUEUE, place=position, queued=3, why="no room"))


def test_who_waits_in_the_queue_waits_on_at_the_one_that_takes_over(
    controller: ScriptedController, other: ScriptedController
) -> None:
    """There the rank waits for the rest of the time that it wanted to wait in the queue."""
    with Session(f"{controller.address},{other.address}", connect_timeout=1.0) as session:
        joining = Attempt(lambda: session.join("job", 1, 2, queue=50.0))
        assert controller.script.next().join.queue_s == 50.0
        controller.script.send.put(waits(2))
        wait_until(session._queued, "the rank to be queued")
        stays(session._queued, "it waits longer than it would for a controller", 1.2)
        controller.stop()
        again = other.script.next().join
        assert (again.job, again.rank, again.world_size) == ("job", 1, 2)
        assert 40.0 < again.queue_s < 49.0
        other.script.send.put(waits(2))
        other.script.assign(10.0, "secret")
        assert joining.error() is None
        assert session.address == other.address


def test_it_waits_for_the_only_one_to_be_back(controller: ScriptedController, caplog: pytest.LogCaptureFixture) -> None:
    """It waits for as long as it would have waited in the queue, and logs that."""
    with Session(controller.address, connect_timeout=0.5) as session:
        joining = Attempt(lambda: session.join("job", 1, 2, queue=50.0))
        assert controller.script.next().WhichOneof("message") == "join"
        controller.script.send.put(waits(1))
        wait_until(session._queued, "the rank to be queued")
        controller.stop()
        stays(joining.is_alive, lambda: f"it waits longer: {joining.error()!r}", 1.2)
        later = controller.again()
        later.script.assign(10.0, "secret")
        assert joining.error() is None
        assert later.script.next().join.queue_s < 50.0
    # gRPC cancels the stream, or the controller ends it before.
    assert re.search(r"rank 1 of job 'job' waits up to [45]\d s for a controller: controller at ", caplog.text)


def test_it_was_queued_even_if_the_stream_ended_before_it_looked() -> None:
    with Session("127.0.0.1:1", connect_timeout=0.5) as session, session._changed:
        session._waiting = waits(1).waiting
        session._stream_ended = True
        assert session._await_answer(1.0, 1.0)


def test_it_gives_up_soon_where_no_controller_would_take_it_again() -> None:
    """The rank's token may be unknown by now, for example."""

    class RefusesLater(rpc.JobsServicer):
        queued = False

        def Session(self, _: Any, context: grpc.ServicerContext) -> Iterator[pb.ServerMessage]:
            if not RefusesLater.queued:
                RefusesLater.queued = True
                yield waits(1)
                wait_until(lambda: knows(), "the rank to know that it is queued")
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "the token is not known")

    with serving(RefusesLater()) as one, serving(RefusesLater()) as other:
        session = Session(f"{one},{other}", connect_timeout=0.5)
        knows = session._queued
        error = Attempt(lambda: session.join("job", 1, 2, queue=50.0)).error()
    assert isinstance(error, JoinError)
    assert str(error).count("the token is not known") == 2


def test_the_rank_goes_to_the_one_that_takes_over(controller: ScriptedController, other: ScriptedController) -> None:
    with ready(controller, other.address, key="secret") as session:
        assert other.script.next() == REJOIN  # which waits there
        controller.stop()
        other.script.ready()
        wait_until(lambda: session._returns, "the rank to be back")
        assert session.address == other.address
        other.script.send.put(abort(rank=0))
        assert session.heard.wait().rank == 0


def test_it_goes_there_while_the_first_stands_still(controller: ScriptedController, other: ScriptedController) -> None:
    """The rank also connects to the first controller again, for the time when that serves again."""
    with ready(controller, other.address, key="secret") as session:
        assert other.script.next() == REJOIN
        other.script.ready()
        wait_until(lambda: session._returns, "the rank to be back")
        assert controller.script.gone.wait(DEADLINE)
        assert controller.script.next() == REJOIN  # for when it is its turn again
        leaving = Attempt(session.leave)
        assert other.script.next().WhichOneof("message") == "leave"
        other.send(left=pb.Left())
        assert leaving.error() is None
        assert session.aborted is None


def test_time_is_up_where_none_takes_over(controller: ScriptedController, standby: str) -> None:
    session = ready(controller, standby, key="secret", rejoin_time=0.5)
    controller.stop()
    assert "this rank could not rejoin its job for 0.5 s" in str(session.heard.wait())
    session.close()
    wait_for_no_session_thread()
