# SPDX-License-Identifier: Apache-2.0
"""Tests of a training host's session, against a controller that follows a script."""

from __future__ import annotations

import contextlib
import gc
import logging
import re
import socket
import struct
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import grpc
import pytest

from p4reduce.control import client, stream
from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.client import Session, Tls
from p4reduce.control.messages import LONGEST_FAILURE
from p4reduce.errors import CollectiveTimeout, JoinError
from tests.support.certificates import self_signed
from tests.support.scripted_controller import (
    DEADLINE,
    Attempt,
    Refuses,
    ScriptedController,
    abort,
    joined,
    ready,
    serving,
    wait_for_no_session_thread,
)
from tests.support.waiting import wait_until


def test_join_says_what_is_wanted_and_returns_what_was_given(controller: ScriptedController) -> None:
    controller.script.assign()
    with Session(controller.address) as session:
        assigned = session.join("name", 1, 3, slots=7, timeout=12.5)
        wanted = pb.Join(job="name", rank=1, world_size=3, slots=7, timeout_s=12.5, stream=pb.UNSAID)
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

    session.wait_ready(hello)
    assert len(said) in (4, 5)
    assert 0.05 < (said[3] - said[0]) / 3 < 0.5
    assert session.ready


@pytest.mark.parametrize(("unheard", "least", "most"), [([1], 7, 21), ([0], 1, 6), ([], 1, 6)])
def test_hello_is_said_often_by_who_was_not_heard(
    controller: ScriptedController, unheard: list[int], least: int, most: int
) -> None:
    """unheard: the ranks that the switch has not heard. The count is that of rank 1 in two seconds."""
    session = joined(controller)
    waiting = pb.Waiting(what=pb.Waiting.HELLO if unheard else pb.Waiting.JOIN, ranks=unheard)
    controller.send(waiting=waiting)
    said: list[None] = []
    with pytest.raises(JoinError, match="not ready after 2 s"):
        session.wait_ready(lambda: said.append(None), timeout=2.0)
    assert least <= len(said) <= most


def test_who_sends_for_whom_is_known_when_it_is_ready(controller: ScriptedController) -> None:
    controller.script.assign()
    with Session(controller.address) as session:
        session.join("name", 1, 3, host="here", shares_stream=True)
        said = controller.script.next().join
        assert (said.host, said.stream) == ("here", pb.SHARED)
        controller.send(ready=pb.Ready(peers=[0, 2], hosts=[0, 0, 2], leaders=[0, 0, 2]))
        assert session.wait_ready(lambda: None) == pb.Ready(peers=[0, 2], hosts=[0, 0, 2], leaders=[0, 0, 2])


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


@pytest.mark.parametrize("addresses", ["127.0.0.1:7700,", "127.0.0.1:7700,http://127.0.0.1:7701", ""])
def test_addresses_are_looked_at_before_they_are_needed(addresses: str) -> None:
    with pytest.raises(JoinError, match="must be HOST:PORT"):
        Session(addresses)


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


def test_a_controller_that_goes_away_ends_the_job(controller: ScriptedController) -> None:
    session = ready(controller)
    controller.stop()
    end = session.heard.wait()
    assert end.reason == "CONTROLLER_LOST"
    assert controller.address in str(end)


def test_leave_waits_for_the_answer(controller: ScriptedController) -> None:
    session = ready(controller)
    controller.send(left=pb.Left())
    session.leave()
    assert controller.script.next().WhichOneof("message") == "leave"
    session.leave()
    session.close()
    assert session.aborted is None
    assert not session.heard


def test_who_is_awaited_is_told_once_for_each_change(
    controller: ScriptedController, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "_LOG_JOINING_INTERVAL", 0.1)
    session = joined(controller)
    hellos = 0

    def hello() -> None:
        nonlocal hellos
        hellos += 1
        if hellos == 2:
            waiting = pb.Waiting(what=pb.Waiting.JOIN, ranks=[0, 2])
            controller.send(waiting=waiting)
        elif hellos == 5:
            controller.send(waiting=pb.Waiting(what=pb.Waiting.JOIN, ranks=[2]))
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


# Coming back to a controller that was restarted.


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
    controller: ScriptedController, is_back: bool
) -> None:
    begun = time.monotonic()
    restarted = Restarted(controller, rejoin_time=1.0)
    if is_back:
        restarted.again()
    end = restarted.session.heard.wait()
    assert 1.0 <= time.monotonic() - begun < 10
    assert end.reason == "CONTROLLER_LOST"
    assert f"{controller.address} broke" in str(end) or is_back
    assert "this rank could not rejoin its job for 1 s" in str(end)
    restarted.session.close()
    assert len(restarted.session.heard) == 1


def test_a_token_that_is_not_accepted_any_more_is_said_at_once(controller: ScriptedController) -> None:
    restarted = Restarted(controller, rejoin_time=60.0)

    with serving(Refuses(grpc.StatusCode.UNAUTHENTICATED, "the token is wrong"), port=restarted.controller.port):
        assert "the token is wrong; pass the token" in str(restarted.session.heard.wait())
        restarted.session.close()


def test_leaving_has_its_deadline_without_a_controller(controller: ScriptedController) -> None:
    restarted = Restarted(controller, rejoin_time=60.0)
    begun = time.monotonic()
    with pytest.raises(
        CollectiveTimeout, match=r"within 0\.3 s that this rank may leave: the connection to the controller at .* broke"
    ):
        restarted.session.leave(timeout=0.3)
    assert time.monotonic() - begun < 2
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
    assert time.monotonic() - begun < 2
    assert not restarted.session.heard


def test_a_session_is_for_one_job(controller: ScriptedController) -> None:
    session = joined(controller)
    with pytest.raises(JoinError, match="joined already"):
        session.join("job", 0, 1)


@pytest.mark.parametrize(("rank", "world_size", "slots"), [(-1, 1, 0), (0, -1, 0), (0, 1, -1), (2**32, 1, 0)])
def test_numbers_that_cannot_be_sent_are_named(rank: int, world_size: int, slots: int) -> None:
    with pytest.raises(JoinError, match="must be 0 or more"):
        Session("127.0.0.1:1").join("job", rank, world_size, slots=slots)


# Reaching a controller.


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def failure(session: Session) -> str:
    with pytest.raises(JoinError) as caught:
        session.join("job", 0, 1)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("controller at ")
    return text


def test_nobody_listens(caplog: pytest.LogCaptureFixture) -> None:
    address = f"127.0.0.1:{free_port()}"
    text = failure(Session(address, connect_timeout=0.6))
    [said] = [record.getMessage() for record in caplog.records]
    assert said in [f"rank 0 of job 'job' waits up to {left} s for a controller: {text}" for left in (0, 1)]
    assert f"connection refused; start one with `p4reduce controller --listen {address}`" in text


def test_a_controller_may_start_a_little_later() -> None:
    port = free_port()
    session = Session(f"127.0.0.1:{port}", connect_timeout=DEADLINE)
    controllers: list[ScriptedController] = []

    def start() -> None:
        controllers.append(ScriptedController(port=port))
        controllers[0].script.assign()

    timer = threading.Timer(0.5, start)
    timer.start()
    assert session.join("job", 1, 2).job == 3
    session.close()
    timer.join()
    controllers[0].stop()


Lose: TypeAlias = Callable[[socket.socket], None]


def reset(connection: socket.socket) -> None:
    """Reset the connection, as happens when a controller is killed before it accepts it."""
    connection.recv(1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def end_after_settings(connection: socket.socket) -> None:
    """Close the connection once the call has arrived, as happens when a controller is killed before it answers."""
    connection.sendall(bytes.fromhex("000000040000000000"))
    heard, part = 0, b"-"
    while heard < 150 and part:  # the client's SETTINGS take less, with the headers of the call it is more
        part = connection.recv(65536)
        heard += len(part)
    connection.shutdown(socket.SHUT_WR)
    while part:
        part = connection.recv(65536)


def lose_one(listener: socket.socket, lose: Lose) -> None:
    connection, _ = listener.accept()
    connection.settimeout(DEADLINE)
    with connection:
        lose(connection)


LOST = pytest.mark.parametrize("lose", [reset, end_after_settings])


@LOST
def test_a_controller_may_be_restarted_while_a_rank_connects(lose: Lose) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        session = Session(f"127.0.0.1:{port}", connect_timeout=DEADLINE)
        joining = Attempt(lambda: session.join("job", 1, 2))
        lose_one(listener, lose)
    controller = ScriptedController(port=port)
    controller.script.assign()
    assert joining.error() is None
    session.close()
    controller.stop()


@LOST
def test_what_loses_every_connection_is_an_error_before_time_is_up(lose: Lose) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        session = Session(f"127.0.0.1:{listener.getsockname()[1]}", connect_timeout=1000.0)
        joining = Attempt(lambda: session.join("job", 1, 2))
        listener.settimeout(0.1)
        while joining.is_alive():
            with contextlib.suppress(OSError):
                lose_one(listener, lose)
    assert re.search("Connection reset by peer|Socket closed", str(joining.error()))
    session.close()


def test_a_host_that_is_none() -> None:
    text = failure(Session("no-such-host.invalid:7700", connect_timeout=1))
    assert "unreachable" in text
    assert "check the address and the network" in text


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the files of a self-signed certificate and of its key."""
    return self_signed(tmp_path_factory.mktemp("tls"), "controller.test")


def test_tls(certificate: tuple[Path, Path], tmp_path: Path) -> None:
    """A session uses TLS; test_diagnostics.py has the texts of its other errors."""
    ca, key = certificate
    controller = ScriptedController(grpc.ssl_server_credentials([(key.read_bytes(), ca.read_bytes())]))
    try:
        controller.script.assign()
        with Session(controller.address, tls=Tls(ca, server_name="controller.test")) as session:
            assert session.join("job", 1, 2).job == 3
        with pytest.raises(JoinError, match=f"TLS to the controller: cannot read {tmp_path}/none: No such file"):
            Session(controller.address, tls=Tls(tmp_path / "none")).join("job", 0, 1)
    finally:
        controller.stop()


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
