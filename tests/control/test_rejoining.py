# SPDX-License-Identifier: Apache-2.0
"""A rank comes back to a controller that was restarted, for as long as its job waits for it."""

from __future__ import annotations

import time

import grpc
import pytest

from p4reduce.control import client
from p4reduce.control import jobs_pb2 as pb
from p4reduce.errors import CollectiveTimeout
from tests.support.scripted_controller import (
    Attempt,
    Clock,
    Refuses,
    ScriptedController,
    abort,
    joined,
    ready,
    serving,
    wait_for_no_session_thread,
)
from tests.support.waiting import stays, wait_until


class Restarted:
    """A controller that keeps its state dies under a session of its job."""

    def __init__(self, controller: ScriptedController, rejoin_time: float = 10.0, *, is_ready: bool = True) -> None:
        self.session = (ready if is_ready else joined)(controller, rejoin_time=rejoin_time, key="secret")
        self.controller = controller
        controller.stop()

    def again(self) -> ScriptedController:
        """Restart the controller, whose first message from the rank is a Rejoin."""
        later = self.controller.again()
        rejoin = pb.Rejoin(job=3, generation=9, rank=1, key="secret")
        assert later.script.next() == pb.ClientMessage(rejoin=rejoin)
        return later


def test_a_restarted_controller_finds_the_rank_back(controller: ScriptedController) -> None:
    restarted = Restarted(controller)
    for back in range(2):
        later = restarted.again()
        later.script.ready()
        wait_until(lambda back=back: restarted.session._returns > back, "the rank to be back")  # type: ignore[misc]
        assert restarted.session.aborted is None
        later.stop()
    later = restarted.again()
    later.script.ready()
    later.script.send.put(abort(rank=0))
    assert restarted.session.heard.wait().rank == 0


def test_a_rank_that_still_waits_may_be_ready_when_it_is_back(controller: ScriptedController) -> None:
    restarted = Restarted(controller, is_ready=False)
    later = restarted.again()
    later.script.ready()
    restarted.session.wait_ready(lambda: None)


def test_a_controller_that_says_no_is_quoted_at_once(controller: ScriptedController) -> None:
    restarted = Restarted(controller, rejoin_time=60.0)
    later = restarted.again()
    refusal = pb.Abort(rank=1, reason=pb.JOIN_REFUSED, message="who is that?")
    later.send(abort=refusal)
    end = restarted.session.heard.wait()
    assert (str(end), end.reason) == ("who is that?", "JOIN_REFUSED")


@pytest.mark.parametrize("is_back", [False, True], ids=["away", "does not answer"])
def test_a_controller_that_does_not_come_back_in_time_is_given_up(
    controller: ScriptedController, monkeypatch: pytest.MonkeyPatch, is_back: bool
) -> None:
    monkeypatch.setattr(client, "time", clock := Clock())
    monkeypatch.setattr(client, "_CERTIFICATE_INTERVAL", 0.05)  # how often the session looks at the clock
    restarted = Restarted(controller, rejoin_time=60.0)
    if is_back:
        restarted.again()
    wait_until(lambda: restarted.session._away, "the session to notice")
    before = clock.reads
    wait_until(lambda: clock.reads > before + 1, "the session to look at the clock more than once")
    clock.now += 59.0
    stays(lambda: not restarted.session.heard, "it is given up too early", 0.2)
    clock.now += 2.0
    end = restarted.session.heard.wait()
    assert end.reason == "CONTROLLER_LOST"
    assert f"{controller.address} broke" in str(end) or is_back
    assert "this rank could not rejoin its job for 60 s" in str(end)
    restarted.session.close()
    assert len(restarted.session.heard) == 1


def test_a_token_that_is_not_accepted_any_more_is_said_at_once(controller: ScriptedController) -> None:
    restarted = Restarted(controller, rejoin_time=60.0)

    with serving(Refuses(grpc.StatusCode.UNAUTHENTICATED, "the token is wrong"), port=restarted.controller.port):
        assert "the token is wrong; pass the token" in str(restarted.session.heard.wait())
        restarted.session.close()


def test_leaving_has_its_deadline_without_a_controller(controller: ScriptedController) -> None:
    restarted = Restarted(controller, rejoin_time=60.0)
    wait_until(lambda: restarted.session._away, "the session to notice")
    begun = time.monotonic()
    with pytest.raises(
        CollectiveTimeout, match=r"within 0\.3 s that this rank may leave: the connection to the controller at .* broke"
    ):
        restarted.session.leave(timeout=0.3)
    assert time.monotonic() - begun < 10
    restarted.session.close()
    assert not restarted.session.heard


@pytest.mark.parametrize("said_before", [False, True])
def test_leaving_is_said_when_the_controller_is_back(controller: ScriptedController, said_before: bool) -> None:
    if said_before:
        session = ready(controller, key="secret")
        waiter = Attempt(session.leave)
        assert controller.script.next().WhichOneof("message") == "leave"
        controller.stop()
    else:
        session = Restarted(controller).session
        waiter = Attempt(session.leave)
    later = controller.again()
    assert later.script.next().WhichOneof("message") == "rejoin"
    later.script.ready()
    assert later.script.next().WhichOneof("message") == "leave"
    later.send(left=pb.Left())
    assert waiter.error() is None
    assert session.aborted is None


def test_closing_ends_the_wait_for_a_controller_that_is_away(controller: ScriptedController) -> None:
    restarted = Restarted(controller, rejoin_time=60.0)
    begun = time.monotonic()
    restarted.session.close()
    wait_for_no_session_thread()
    assert time.monotonic() - begun < 10
    assert not restarted.session.heard
