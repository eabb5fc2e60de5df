# SPDX-License-Identifier: Apache-2.0
"""`p4reduce switch --target tofino` as a process, when `bf_switchd` or the CPU interface fails."""

from __future__ import annotations

import json
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from finsy.proto import p4r

from tests.support.bfrt.server import Client as Bound
from tests.support.bfrt.server import Server
from tests.support.dataplane.p4runtime import Client, Failed, number
from tests.support.own_network import ip, own_cables, wait_until_up
from tests.support.waiting import stays, wait_until
from tests.targets.bfrt import made_up

pytestmark = pytest.mark.root

PROGRAM = made_up.program(cpu_port=192)
CONFIG = PROGRAM.SerializeToString()
READY_S = 30.0
END_S = 10.0  # 2 s, and what a busy machine adds
INSERT = p4r.Update.INSERT
IPV6 = Path("/proc/sys/net/ipv6/conf/switch1/disable_ipv6")


class Process:
    """A running command, with a P4Runtime socket in a folder."""

    def __init__(self, server: Server, folder: Path, *ports: str) -> None:
        self.address = f"unix:{folder}/grpc"
        self._log = folder / "log"
        (folder / "p4reduce.bin").write_bytes(CONFIG)
        command = [sys.executable, "-m", "p4reduce_targets", "--target", "tofino", "--bfrt", server.address]
        command += ["--program", str(folder), "--cpu-interface", "switch1", "--grpc", self.address, "--json"]
        command += [f"--port={port}" for port in ports or ("2/0:100G",)]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_ready(self) -> None:
        assert self._process.stdout is not None
        assert select.select([self._process.stdout], [], [], READY_S)[0], self.said
        assert json.loads(self._process.stdout.readline() or "{}").get("ready"), self.said

    def wait_said(self, part: str) -> None:
        wait_until(lambda: part in self.said, lambda: self.said)

    def fails(self) -> str:
        """Wait until the command ends with an error, and return what it said."""
        assert self._process.wait(READY_S) == 1
        return self.said

    def interrupt(self) -> None:
        """Press Ctrl-C, and check that the command ends soon and well."""
        assert self._process.poll() is None, self.said
        begun = time.monotonic()
        self._process.send_signal(signal.SIGINT)
        assert self._process.wait(READY_S) == 0, self.said
        assert time.monotonic() - begun < END_S, self.said
        assert "Traceback" not in self.said

    def close(self) -> None:
        self._process.kill()
        self._process.wait(READY_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


@pytest.fixture
def server() -> Iterator[Server]:
    """Return a server in a network namespace, which has the CPU interface switch1 and its other end host1."""
    with own_cables(), Server(made_up.device(PROGRAM)) as server:
        yield server


Start = Callable[..., Process]


@pytest.fixture
def start(server: Server, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts the command."""
    started: list[Process] = []

    def start(*ports: str) -> Process:
        started.append(Process(server, tmp_path, *ports))
        return started[-1]

    yield start
    for process in started:
        process.close()


def controller(process: Process) -> Client:
    return Client(process.address, made_up.P4INFO, CONFIG)


def jobs(*ports: int) -> list[p4r.Update]:
    updates = []
    for port in ports:
        entry = p4r.TableEntry(table_id=1)
        entry.match.add(field_id=1).exact.value = number(port)
        entry.action.action.action_id = 12
        updates.append(p4r.Update(type=INSERT, entity=p4r.Entity(table_entry=entry)))
    return updates


def written(client: Client, updates: Sequence[p4r.Update]) -> None:
    request = p4r.WriteRequest(device_id=1, election_id=p4r.Uint128(low=1), updates=updates)
    try:
        client.stub.Write(request, timeout=READY_S)
    except grpc.RpcError as error:
        raise Failed(error) from None


def raw(frame: bytes) -> None:
    """Send a frame into the CPU interface's other end."""
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sender:
        sender.bind(("host1", 0))
        sender.send(frame)


def test_errors_are_at_their_updates(server: Server, start: Start) -> None:
    server.device.limits["pipe.Ingress.jobs"] = 2
    process = start()
    process.wait_ready()
    with controller(process) as client:
        client.become_primary().configure()
        with pytest.raises(Failed) as refused:
            written(client, jobs(1, 2, 3, 4))
        assert [bool(code) for code in refused.value.codes] == [False, False, True, True]
        assert "Ingress.jobs: the switch refuses this" in refused.value.messages[2]
        assert "Not enough space" in refused.value.messages[2]
    process.interrupt()


@pytest.mark.parametrize(
    ("interface", "complaint"),
    [
        ("delete", "--cpu-interface switch1: port 192: cannot open interface 'switch1'"),
        ("down", "--cpu-interface switch1: its link is DOWN: `ip link set switch1 up`"),
    ],
)
def test_a_cpu_interface_that_is_not_there(server: Server, start: Start, interface: str, complaint: str) -> None:
    ip("link", *(("delete", "switch1") if interface == "delete" else ("set", "switch1", "down")))
    said = start().fails()
    assert complaint in said
    assert "Traceback" not in said
    assert not server.clients


@pytest.mark.parametrize(
    ("port", "complaint"),
    [
        ("99/0:10G", "--port 99/0:10G:none: the front panel has no port 99/0"),
        ("2/1:100G", "--port 2/1:100G:none: the switch refuses it"),
    ],
)
def test_a_port_that_the_board_lacks(start: Start, port: str, complaint: str) -> None:
    said = start(port).fails()
    assert complaint in said
    assert "Traceback" not in said


def test_another_build(server: Server, start: Start) -> None:
    other = made_up.program(192)
    other.profiles[0].binary = b"2"
    server.restart(made_up.for_server(other))
    assert "runs another build of made_up" in start().fails()


def test_a_cpu_interface_that_goes_down_and_comes_anew(start: Start) -> None:
    process = start()
    process.wait_ready()
    ip("link", "set", "switch1", "down")
    process.wait_said("--cpu-interface switch1: its link is DOWN; packets between the program and the controller are")
    ip("link", "set", "switch1", "up")
    process.wait_said("--cpu-interface switch1: its link is UP")
    ip("link", "delete", "switch1")
    process.wait_said("port 192: interface switch1 is gone; the port waits for switch1")
    ip("link", "add", "host1", "type", "veth", "peer", "name", "switch1")
    process.wait_said("port 192: interface switch1 is there again")
    ip("link", "set", "host1", "up")
    ip("link", "set", "switch1", "up")
    wait_until_up("host1", "switch1")
    if IPV6.exists():
        assert IPV6.read_text().strip() == "1"
    raw(b"\xff" * 60)
    process.wait_said("does not come from the program, and is dropped")
    raw(b"\xff" * 60)
    stays(lambda: process.said.count("does not come from the program") == 1, "told again", 0.3)
    process.interrupt()


def test_a_server_that_restarts(server: Server, start: Start) -> None:
    process = start()
    process.wait_ready()
    with controller(process) as client:
        client.become_primary().configure()
        written(client, jobs(1))
    server.stop()
    process.wait_said("the P4Runtime server is closed until it is there again")
    server.restart(made_up.for_server(PROGRAM))
    with controller(process) as client:
        wait_until(lambda: server.clients, lambda: process.said)
        client.become_primary()
        with pytest.raises(Failed, match="No forwarding pipeline config set"):
            written(client, jobs(1))
        client.configure()
        written(client, jobs(1))
    process.interrupt()


def test_a_server_that_dies_within_a_batch(server: Server, start: Start) -> None:
    process = start()
    process.wait_ready()
    with controller(process) as client:
        client.become_primary().configure()
        server.faults.die_after = 1
        with pytest.raises(Failed) as lost:
            written(client, jobs(1, 2, 3))
        assert lost.value.code is grpc.StatusCode.UNAVAILABLE
        server.faults.die_after = None
    process.wait_said("the P4Runtime server is closed until it is there again")
    process.interrupt()


class TestCtrlC:
    """Ctrl-C ends the command within 2 s, whatever is under way."""

    def test_while_the_server_is_not_there(self, server: Server, start: Start) -> None:
        server.stop()
        process = start()
        process.wait_said("connection refused; check that bf_switchd runs there")
        process.interrupt()
        assert process.said.count("connection refused") == 1

    def test_while_it_hangs_at_first(self, server: Server, start: Start) -> None:
        server.faults.hang.set()
        process = start()
        wait_until(lambda: "stream" in server.calls, lambda: process.said)
        process.interrupt()

    def test_during_an_installation(self, server: Server, start: Start) -> None:
        server.restart()
        server.faults.install_s = 5.0
        process = start()
        wait_until(lambda: server.installing, lambda: process.said)
        process.interrupt()

    def test_while_another_client_has_the_program(self, server: Server, start: Start) -> None:
        server._clients[7] = Bound(7, bound=PROGRAM.p4_name)  # gRPC's threads in this process are in no namespace
        process = start()
        process.wait_said(f"client 7 of the BF Runtime server at {server.address} is bound to made_up")
        process.interrupt()
        assert process.said.count("is bound to made_up") == 1

    def test_while_nothing_is_under_way(self, start: Start) -> None:
        process = start()
        process.wait_ready()
        process.interrupt()
        assert process.said == ""

    @pytest.mark.parametrize("hangs", [True, False])
    def test_during_a_write(self, server: Server, start: Start, hangs: bool) -> None:
        process = start()
        process.wait_ready()
        with controller(process) as client:
            client.become_primary().configure()
            if hangs:
                server.faults.hang.set()
            else:
                server.faults.slow_s = 3.0
            begun = len(server.calls)

            def write() -> None:
                with suppress(Failed):
                    written(client, jobs(1))

            writers = [threading.Thread(target=write) for _ in range(3)]
            for writer in writers:
                writer.start()
            wait_until(lambda: "write" in server.calls[begun:], lambda: process.said)
            process.interrupt()
            for writer in writers:
                writer.join(READY_S)

    def test_while_the_server_is_away(self, server: Server, start: Start) -> None:
        process = start()
        process.wait_ready()
        server.stop()
        process.wait_said("connection refused")
        process.interrupt()


def test_a_slow_server(server: Server, start: Start) -> None:
    """Calls take long, but end in time."""
    process = start()
    process.wait_ready()
    with controller(process) as client:
        client.become_primary().configure()
        server.faults.slow_s = 3.0
        written(client, jobs(1))
        server.faults.slow_s = 0.0
    assert len(getattr(server.device.plane, "entries", ())) == 1
    process.interrupt()
