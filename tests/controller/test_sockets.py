# SPDX-License-Identifier: Apache-2.0
"""Strangers who connect and say nothing keep nobody else out."""

from __future__ import annotations

import resource
import socket
import subprocess
import sys

import pytest

from p4reduce_controller.base.listening import HANDSHAKE_S
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
