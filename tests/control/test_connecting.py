# SPDX-License-Identifier: Apache-2.0
"""A rank finds its controller, also one that starts later, and its errors say why it does not."""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import grpc
import pytest

from p4reduce.control import client
from p4reduce.control.client import Session, Tls
from p4reduce.errors import JoinError
from tests.support.certificates import self_signed
from tests.support.free_ports import free_ports
from tests.support.scripted_controller import DEADLINE, Attempt, Clock, ScriptedController


def failure(session: Session) -> str:
    with pytest.raises(JoinError) as caught:
        session.join("job", 0, 1)
    text = str(caught.value)
    assert "\n" not in text
    assert text.startswith("controller at ")
    return text


def test_nobody_listens(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "time", clock := Clock())
    began = clock.now
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # so that no other process listens at this port
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        text = failure(Session(address, connect_timeout=0.9))
    assert 0.6 < clock.now - began < 0.9
    [said] = [record.getMessage() for record in caplog.records]
    assert said == f"rank 0 of job 'job' waits up to 1 s for a controller: {text}"
    assert f"connection refused; start one with `p4reduce controller --listen {address}`" in text


def test_a_controller_may_start_a_little_later() -> None:
    [port] = free_ports(1)
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


def lose_one(listener: socket.socket, lose: Lose, *, is_last: bool = False) -> None:
    """Accept a connection and lose it.

    is_last: whether the listener is closed before, so that the next attempt finds none.
    """
    connection, _ = listener.accept()
    connection.settimeout(DEADLINE)
    if is_last:
        listener.close()
    with connection:
        lose(connection)


LOST = pytest.mark.parametrize("lose", [reset, end_after_settings])


@LOST
def test_a_controller_may_be_restarted_while_a_rank_connects(lose: Lose) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        session = Session(f"127.0.0.1:{port}", connect_timeout=DEADLINE)
        joining = Attempt(lambda: session.join("job", 1, 2))
        lose_one(listener, lose, is_last=True)
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
