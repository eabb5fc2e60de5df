# SPDX-License-Identifier: Apache-2.0
"""A forked process neither keeps its parent's connections to the controller nor prints warnings of gRPC."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from p4reduce.control import forks
from tests.support.forking import said_by_child


@pytest.mark.parametrize("host", ["127.0.0.1", "[::ffff:127.0.0.1]"])
def test_a_child_lets_go_of_connections_to_a_controller_alone(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """The newest gRPC closes its sockets in children by itself; 1.74 does not."""
    monkeypatch.setattr(forks, "_peers", set())
    with socket.create_server(("127.0.0.1", 0)) as controller, socket.create_server(("127.0.0.1", 0)) as other:
        to_controller = socket.create_connection(controller.getsockname())
        to_other = socket.create_connection(other.getsockname())
        both = socket.socket(socket.AF_INET6)  # a socket of both families, as gRPC's are
        both.connect((f"::ffff:{controller.getsockname()[0]}", controller.getsockname()[1]))
        forks.end_in_children(f"{host}:{controller.getsockname()[1]}")
        connections = (to_controller, to_other, both)
        links = said_by_child(lambda: [os.readlink(f"/proc/self/fd/{one.fileno()}")[:6] for one in connections])
        assert links == "['/dev/n', 'socket', '/dev/n']"
        to_controller.sendall(b"alive")
        assert controller.accept()[0].recv(5) == b"alive"
        for one in connections:
            one.close()


def test_an_address_that_is_none_has_no_connections() -> None:
    forks.end_in_children("nowhere")
    forks.end_in_children("no-such-host.invalid:7700")


def test_a_forked_process_says_nothing_of_grpc() -> None:
    """The process forks while a thread waits in gRPC, as a session's thread does."""
    program = """
import os, threading
from p4reduce.control.grpc_channels import open_grpc_channel
channel = open_grpc_channel("127.0.0.1:9")
call = channel.unary_unary("/a/b")
threading.Thread(target=lambda: call(b"", timeout=30, wait_for_ready=True), daemon=True).start()
reached = threading.Event()
channel.subscribe(lambda state: reached.set(), try_to_connect=True)
reached.wait(10)
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
print("set to", os.environ.get("GRPC_ENABLE_FORK_SUPPORT"), flush=True)
os._exit(0)
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GRPC_")}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("set to None\n", "")
