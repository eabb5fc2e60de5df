# SPDX-License-Identifier: Apache-2.0
"""While its job runs, a rank hears of its end, tells of a failure, and asks who was counted."""

from __future__ import annotations

import threading
import time

import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.messages import LONGEST_FAILURE
from tests.support.scripted_controller import ScriptedController, abort, joined, ready
from tests.support.waiting import wait_until


def test_the_controllers_word_is_awaited_for_a_while(controller: ScriptedController) -> None:
    session = ready(controller)
    started = time.monotonic()
    session.await_abort(0.2)
    assert 0.2 <= time.monotonic() - started < 5
    assert session.aborted is None
    threading.Timer(0.2, controller.script.send.put, [abort(rank=0)]).start()
    session.await_abort(20)
    assert session.aborted is not None


def test_a_failure_is_told_once_and_until_the_session_is_closed(controller: ScriptedController) -> None:
    session = ready(controller)
    session.fail("x" * 5000)
    session.fail("another")
    session.ask(4)
    told = controller.script.next().failed
    assert (told.message, told.HasField("rank")) == ("x" * LONGEST_FAILURE, False)
    assert controller.script.next().WhichOneof("message") == "unanswered"
    session.close()
    session.fail("too late")


def test_a_failure_may_have_any_text(controller: ScriptedController) -> None:
    ready(controller).fail("it ended \udc80", rank=0)
    assert controller.script.next().failed == pb.Failed(message="it ended ?", rank=0)


def test_a_message_that_cannot_be_taken_ends_the_line(
    controller: ScriptedController, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no caller waits for the next message."""
    session = ready(controller)

    def refuse(_: object) -> None:
        raise ValueError("mine")

    monkeypatch.setattr("p4reduce.control.client.take_abort", refuse)
    controller.script.send.put(abort(rank=0))
    assert session.heard.wait().reason == "CONTROLLER_LOST"


@pytest.mark.parametrize("rank", [0, None])
def test_an_abort_reaches_callback_and_property(controller: ScriptedController, rank: int | None) -> None:
    session = ready(controller)
    controller.script.send.put(abort(rank))
    end = session.heard.wait()
    assert session.aborted is end
    assert not session.ready
    assert (end.rank, end.reason, str(end)) == (rank, "WORKER_LOST", "job 'job': rank 0 was lost")
    session.leave()
    session.close()
    assert len(session.heard) == 1


def test_a_controller_that_goes_away_ends_the_job(controller: ScriptedController) -> None:
    session = ready(controller)
    controller.stop()
    end = session.heard.wait()
    assert end.reason == "CONTROLLER_LOST"
    assert controller.address in str(end)


def test_who_is_counted_can_be_asked(controller: ScriptedController) -> None:
    told: list[pb.Counted] = []
    session = joined(controller, on_counted=told.append)
    session.ask(2)  # before there are rounds: nothing
    controller.script.ready()
    session.wait_ready(lambda: None)
    session.ask(9)
    assert controller.script.next() == pb.ClientMessage(unanswered=pb.Unanswered(half=9))
    controller.send(counted=pb.Counted(half=9, seq=13, ranks=[0, 3]))
    wait_until(lambda: told, "the answer")
    assert told == [pb.Counted(half=9, seq=13, ranks=[0, 3])]
