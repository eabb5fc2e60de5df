# SPDX-License-Identifier: Apache-2.0
"""A rank leaves with the others, or closes its session: neither waits for ever, and nothing is left behind."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import pytest

from p4reduce.control import client, stream
from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.client import Session
from p4reduce.errors import CollectiveTimeout, JoinError
from tests.support.scripted_controller import (
    DEADLINE,
    Attempt,
    ScriptedController,
    joined,
    ready,
    wait_for_no_session_thread,
)
from tests.support.waiting import wait_until


def test_leave_waits_for_the_answer(controller: ScriptedController) -> None:
    session = ready(controller)
    waiter = Attempt(session.leave)
    assert controller.script.next().WhichOneof("message") == "leave"
    assert waiter.is_alive()
    controller.send(left=pb.Left())
    assert waiter.error() is None
    session.leave()
    session.close()
    assert session.aborted is None
    assert not session.heard


def test_leaving_is_heard_before_all_have_left(
    controller: ScriptedController, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "_LOG_LEAVING_AFTER", 0.1)
    session, heard = ready(controller), threading.Event()
    waiter = Attempt(lambda: session.leave(on_heard=heard.set))
    assert controller.script.next().WhichOneof("message") == "leave"
    assert not heard.wait(0.2)
    controller.send(waiting=pb.Waiting(what=pb.Waiting.LEAVE, ranks=[0]))
    assert heard.wait(10)
    wait_until(lambda: "ranks that have not left: 0" in caplog.text, "the log to say so")
    controller.send(left=pb.Left())
    assert waiter.error() is None


def test_who_is_not_the_last_of_its_process_waits_for_nobody(controller: ScriptedController) -> None:
    session = ready(controller)
    waiter = Attempt(lambda: session.leave(is_last=False))
    assert controller.script.next().WhichOneof("message") == "leave"
    controller.send(waiting=pb.Waiting(what=pb.Waiting.LEAVE, ranks=[0]))
    assert waiter.error() is None
    session.close()
    assert session.aborted is None


def test_leave_has_a_deadline_and_names_who_is_awaited(controller: ScriptedController) -> None:
    session = ready(controller)
    controller.send(waiting=pb.Waiting(what=pb.Waiting.LEAVE, ranks=[0]))
    wait_until(lambda: session._waiting, "the session to hear for whom the controller waits")
    with pytest.raises(
        CollectiveTimeout, match=r"did not confirm within 0\.2 s that this rank may leave: ranks that have not left: 0"
    ) as caught:
        session.leave(timeout=0.2)
    assert caught.value.awaited == (0,)


def test_close_ends_stream_and_threads(controller: ScriptedController) -> None:
    session = ready(controller)
    session.close()
    session.close()
    assert controller.script.gone.wait(DEADLINE)
    wait_for_no_session_thread()
    assert session.aborted is None


@pytest.mark.parametrize("left", [True, False])
def test_close_leaves_no_call_for_the_interpreters_exit(controller: ScriptedController, left: bool) -> None:
    """A call that is collected at exit would wait for ever if one of gRPC's stopped threads held its lock."""
    session = ready(controller)
    call = weakref.ref(session._connections.serving._call)  # type: ignore[union-attr]
    if left:
        controller.send(left=pb.Left())
        session.leave()
    gc.disable()
    try:
        session.close()
        wait_until(lambda: call() is None, "the call to be gone")
    finally:
        gc.enable()


@pytest.mark.parametrize("waits_for", ["the controller", "others", "leave"])
def test_close_wakes_those_who_wait(controller: ScriptedController, waits_for: str) -> None:
    waits = threading.Event()
    if waits_for == "the controller":
        session = Session(controller.address)
        waiter = Attempt(lambda: session.join("job", 0, 1))
    elif waits_for == "others":
        session = joined(controller)
        waiter = Attempt(lambda: session.wait_ready(waits.set))
        assert waits.wait(DEADLINE)
    else:
        session = ready(controller)
        waiter = Attempt(session.leave)
    if waits_for != "others":
        controller.script.next()  # which the rank has said
    session.close()
    error = waiter.error()
    assert error is None if waits_for == "leave" else isinstance(error, JoinError)
    assert waits_for != "others" or "closed" in str(error)


@pytest.mark.parametrize("after", ["created", "started"])
def test_close_while_the_stream_begins(
    controller: ScriptedController, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    """A close does not wait for the reader's thread before it has started, whichever comes first."""
    session = Session(controller.address)
    begun = threading.Event()

    class Slow(threading.Thread):
        def start(self) -> None:
            if after == "started":
                super().start()
            begun.set()
            time.sleep(0.2)
            if after == "created":
                super().start()

    class Threads:
        Thread = Slow
        current_thread = staticmethod(threading.current_thread)

    monkeypatch.setattr(stream, "threading", Threads)
    waiter = Attempt(lambda: session.join("job", 0, 1))
    assert begun.wait(DEADLINE)
    session.close()
    assert isinstance(waiter.error(), JoinError)
    wait_for_no_session_thread()
