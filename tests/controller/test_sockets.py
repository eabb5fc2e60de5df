# SPDX-License-Identifier: Apache-2.0
"""Strangers who connect and say nothing keep nobody else out."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys
from contextlib import ExitStack

import pytest

from p4reduce_controller.base.limits import Rates
from p4reduce_controller.base.listening import HANDSHAKE_S
from p4reduce_controller.tenants.access import ANYONE
from p4reduce_controller.tenants.gate import Peers, Refused
from p4reduce_controller.tenants.pace import Pace
from tests.support.controller.running import Running


@pytest.mark.slow
def test_a_connection_on_which_nothing_is_said_is_closed(running: Running) -> None:
    host, _, port = running.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=HANDSHAKE_S + 10) as stranger:
        stranger.sendall(b"PRI * HTTP/2.0\r\n")
        while stranger.recv(4096):
            pass


def test_a_controller_may_have_as_many_sockets_as_the_system_lets_it() -> None:
    program = "from p4reduce_controller.base.listening import *; take_all_sockets(); print(*resource.getrlimit(7))"
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    command = ["sh", "-c", 'ulimit -Sn 256 && exec "$@"', "sh", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.split() == [str(most), str(most)]


def test_a_rank_beyond_the_limit_of_files_learns_what_to_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = Peers(Rates(), Pace())
    monkeypatch.setattr(resource, "getrlimit", lambda _: (6, 6))  # half of them are for ranks
    with ExitStack() as connected:
        for _ in range(3):
            connected.enter_context(guard.rank(ANYONE, "ipv4:10.0.0.1:1"))
        with pytest.raises(Refused, match="3 ranks are connected, and this controller may open 6 files") as caught:
            connected.enter_context(guard.rank(ANYONE, "ipv4:10.0.0.2:1"))
        assert "LimitNOFILE= of systemd" in str(caught.value)
    with guard.rank(ANYONE, "ipv4:10.0.0.2:1"):
        pass
