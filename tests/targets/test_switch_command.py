# SPDX-License-Identifier: Apache-2.0
"""`p4reduce switch` as a process: what it prints, how it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from p4reduce_targets.bmv2 import BINARY
from p4reduce_targets.cli import switch
from tests.support.certificates import self_signed
from tests.support.own_network import own_cables
from tests.support.waiting import has_ended, wait_until

from .p4runtime.client import INSERT, MODIFY, Client, action, default_entry, group_entry

TIMEOUT_S = 30.0
COMMAND = [sys.executable, "-m", "p4reduce_targets"]
ANY = ["--grpc", "127.0.0.1:0"]
UDP = ["--port", "1=udp:127.0.0.1:0"]
NATIVE = ["--target", "native"]
TOFINO = ["--target", "tofino", "--program", ".", "--cpu-interface", "cpu"]
ETHERNET = ["--port", "1=eth:switch1"]  # of `own_cables`

needs_bmv2 = pytest.mark.skipif(shutil.which(BINARY) is None, reason=f"{BINARY} is not on PATH")


@contextmanager
def started(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start the command, and yield its process and the line that says that it is ready."""
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline()
        finally:
            if process.poll() is None:
                process.kill()


def failing(*arguments: str, environment: dict[str, str] | None = None) -> tuple[int, str]:
    """Run a command that ends by itself, and return its exit code and its errors."""
    done = subprocess.run(
        [*COMMAND, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, env=environment, check=False
    )
    assert done.stdout == ""
    return done.returncode, re.sub(r"[\s│]+", " ", done.stderr)


@pytest.mark.parametrize(
    ("number", "options"),
    [
        (signal.SIGTERM, ()),
        (signal.SIGINT, ("--target", "native")),
        (signal.SIGHUP, ("--target", "native", "--threads", "3")),
    ],
)
def test_ready_line_and_clean_end(number: signal.Signals, options: tuple[str, ...]) -> None:
    with started(*ANY, *UDP, "--port", "7=udp:127.0.0.1:0", *options) as (process, line):
        where, target = r"127\.0\.0\.1:[1-9]\d+", "native" if options else "sim"
        assert re.fullmatch(rf"ready target={target} grpc={where} port=1=udp:{where} port=7=udp:{where}\n", line)
        process.send_signal(number)
        assert process.wait(TIMEOUT_S) == 0
        assert process.communicate()[1] == ""


def test_ready_line_as_json() -> None:
    with started(*ANY, *UDP, "--json") as (_, line):
        ready = json.loads(line)
    assert ready.pop("grpc").startswith("127.0.0.1:")
    assert ready["ports"].pop("1").startswith("udp:127.0.0.1:")
    assert ready == {"ready": True, "target": "sim", "ports": {}}


def test_a_unix_socket(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/grpc"
    with started("--grpc", address, *UDP) as (_, line), Client(address) as client:
        assert f"grpc={address} " in line
        client.become_primary()


def test_datagrams_pass_the_program_and_reach_the_controller() -> None:
    with started(*ANY, *UDP, "--json") as (_, line), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
        ready = json.loads(line)
        host, port = ready["ports"]["1"].removeprefix("udp:").split(":")
        peer.settimeout(TIMEOUT_S)
        peer.connect((host, int(port)))
        with Client(ready["grpc"]) as client:
            client.become_primary().configure()
            client.write(MODIFY, default_entry("exact_table", action("forward", 510)))
            client.write(INSERT, group_entry(1, (1, 1), (1, 2)))
            peer.send(b"to the controller")
            frame, metadata = client.packet_in()
            assert frame[42:] == b"to the controller"
            assert metadata["ingress_port"] == b"\x01"
            back = frame[:26] + frame[30:34] + frame[26:30] + frame[36:38] + frame[34:36] + frame[38:]
            client.packet_out(back, group=1)
            assert [peer.recv(100) for _ in range(2)] == [b"to the controller"] * 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "Missing option '--port'"),
        (["--port", "1=udp"], 2, "accepted are 1=eth:INTERFACE and 1=udp:ADDRESS:PORT"),
        (["--port", "510=eth:lo"], 2, "port 510: accepted are 1 to 510, without the CPU port 510"),
        ([*UDP, *UDP], 2, "port 1 is given twice"),
        ([*UDP, "--grpc", "0.0.0.0:0"], 2, "--insecure to admit all"),
        ([*UDP, "--grpc", "0.0.0.0:0", "--tls-cert", __file__, "--tls-key", __file__], 2, "--insecure to admit all"),
        ([*UDP, "--tls-cert", __file__], 2, "accepted are the first two, all of them, or none"),
        ([*UDP, "--tls-ca", __file__], 2, "accepted are the first two, all of them, or none"),
        ([*UDP, "--tls-cert", "/none", "--tls-key", __file__], 2, "cannot read /none: No such file or directory"),
        ([*UDP, "--tls-cert", __file__, "--tls-key", __file__], 2, "not pem"),
        ([*UDP, "--target", "bmv2", "--tls-cert", __file__], 2, "needs another --target than bmv2"),
        ([*UDP, "--grpc", "nonsense"], 2, "must be HOST:PORT, as in 127.0.0.1:9559 (or unix:PATH); the port"),
        ([*UDP, "--grpc", "::1:0"], 2, "write an IPv6 address in brackets"),
        ([*UDP, "--grpc", "[::ffff:10.0.0.1]:0"], 2, "--insecure to admit all"),
        ([*UDP, "--grpc", "[::ffff:127.0.0.1]:0", "--tls-cert", __file__], 2, "the first two, all of them, or none"),
        ([*UDP, "--pcap", "folder"], 2, "needs --target bmv2"),
        ([*UDP, "--target", "tofino2"], 2, "'tofino2' is not one of"),
        ([*UDP, "--target", "tofino"], 2, "--program: --target tofino needs it"),
        ([*UDP, "--target", "tofino", "--program", "."], 2, "--cpu-interface: --target tofino needs it"),
        ([*UDP, "--program", "."], 2, "no other target takes it"),
        ([*TOFINO, "--cpu-port", "64", "--port", "1/0:100G"], 2, "has its CPU port from its build"),
        ([*TOFINO, "--port", "1=eth:lo"], 2, "1=eth:lo"),
        ([*TOFINO, "--port", "1/0:100G"], 1, "cannot read p4reduce.bin"),
        (["--port", "1=udp:0.0.0.0:0"], 1, "must be one of this machine's own"),
        (["--port", "1=eth:there-is-none"], 1, "cannot open interface 'there-is-none'"),
        (["--port", "1=eth:lo", "--port", "2=eth:lo"], 2, "port 1 (eth:lo) and port 2 (eth:lo) are the same interface"),
        ([*UDP, "--target", "bmv2"], 1, "BMv2 needs a network interface, 1=eth:INTERFACE"),
        ([*UDP, "--threads", "2"], 2, "needs --target native"),
        ([*UDP, *UDP, *NATIVE], 2, "port 1 is given twice"),
        ([*NATIVE, "--port", "1=udp:0.0.0.0:5000"], 1, "ADDRESS must be one of this machine's own"),
        ([*NATIVE, "--port", "1=udp:127.0.0.1:70000"], 1, "PORT a number"),
        (
            [*NATIVE, "--port", "1=udp:192.0.2.1:5000"],
            1,
            "port 1: cannot open udp:192.0.2.1:5000: this machine does not",
        ),
        ([*NATIVE, "--port", "1=eth:nosuch0"], 1, "port 1:"),
    ],
)
def test_errors(monkeypatch: pytest.MonkeyPatch, arguments: list[str], code: int, message: str) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the command's handlers would stay in this process
    app = typer.Typer()
    app.command()(switch)
    done = CliRunner().invoke(app, arguments)
    said = re.sub(r"[\s│]+", " ", done.stderr)
    assert (done.exit_code, done.stdout, message in said) == (code, "", True), said


@pytest.mark.parametrize("how", ["clients have certificates", "--insecure"])
def test_the_limit_to_this_machine_is_lifted(tmp_path: Path, how: str) -> None:
    certificate, key = map(str, self_signed(tmp_path, "switch"))
    tls = ["--tls-cert", certificate, "--tls-key", key, "--tls-ca", certificate]
    with started("--grpc", "0.0.0.0:0", *(["--insecure"] if how == "--insecure" else tls), *UDP) as (_, line):
        assert line.startswith("ready target=sim grpc=0.0.0.0:")


@pytest.mark.parametrize("target", ["sim", pytest.param("bmv2", marks=[pytest.mark.bmv2, needs_bmv2])])
def test_an_address_that_is_taken(target: str) -> None:
    port = UDP if target == "sim" else ETHERNET
    with own_cables() if target == "bmv2" else nullcontext(), socket.create_server(("127.0.0.1", 0)) as taken:
        code, said = failing("--target", target, *port, "--grpc", f"127.0.0.1:{taken.getsockname()[1]}")
    assert code == 1
    assert "cannot listen" in said
    assert target != "sim" or "another program uses the port; `ss -ltnp" in said


@pytest.mark.parametrize("options", [(), ("--target", "native"), ("--target", "native", "--threads", "2")])
def test_a_udp_port_that_is_taken(options: tuple[str, ...]) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"udp:127.0.0.1:{taken.getsockname()[1]}"
        code, said = failing(*ANY, "--port", f"1={address}", *options)
    assert code == 1
    assert f"port 1: cannot open {address}: another program uses the port; `ss -lunp" in said


def test_bmv2_that_is_not_there(tmp_path: Path) -> None:
    nothing = {"PATH": str(tmp_path)}
    with own_cables():
        code, said = failing("--target", "bmv2", *ETHERNET, *ANY, environment=nothing)
    assert code == 1
    assert "simple_switch_grpc is not on PATH" in said
    assert "p4lang-bmv2" in said


def test_bmv2_that_dies_at_once_says_why(tmp_path: Path) -> None:
    broken = tmp_path / BINARY
    broken.write_text("#!/bin/sh\necho 'a library is missing' >&2\nexit 127\n")
    broken.chmod(0o755)
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    with own_cables():
        code, said = failing("--target", "bmv2", *ETHERNET, *ANY, environment=path)
    assert code == 1
    assert "ended with exit code 127 a library is missing" in said


def test_bmv2_whose_ports_would_hear_nothing() -> None:
    """BMv2 itself says nothing when it lacks the capability, and answers."""
    with own_cables():
        if shutil.which("setpriv") is None:
            pytest.skip("needs setpriv, of util-linux")
        command = ["setpriv", "--bounding-set=-net_raw", *COMMAND, "--target", "bmv2", *ETHERNET, *ANY]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "BMv2 needs the capability CAP_NET_RAW to use network interfaces, and root lacks it" in done.stderr


@pytest.mark.bmv2
@pytest.mark.root
@needs_bmv2
class TestBmv2:
    """The real one, on a cable of its own."""

    @pytest.fixture
    def arguments(self, tmp_path: Path) -> tuple[str, ...]:
        """Return the arguments of a switch on a cable. Its P4Runtime path is the same in every network namespace."""
        return ("--target", "bmv2", "--port", "1=eth:switch1", "--grpc", f"unix:{tmp_path}/grpc", "--json")

    @pytest.fixture
    def running(self, arguments: tuple[str, ...]) -> Iterator[subprocess.Popen[str]]:
        with ExitStack() as stack:
            with own_cables():
                process, line = stack.enter_context(started(*arguments))
                self.host = stack.enter_context(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)))
                self.host.bind(("host1", 3))
            self.ready = json.loads(line)
            yield process

    def child_of(self, process: subprocess.Popen[str]) -> int:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        [child] = [int(one) for one in children if BINARY[:15] in Path(f"/proc/{one}/comm").read_text()]
        return child

    def test_it_runs_a_program_and_ends_clean(self, running: subprocess.Popen[str]) -> None:
        assert (self.ready["target"], self.ready["ports"]) == ("bmv2", {"1": "eth:switch1"})
        child = self.child_of(running)
        self.host.settimeout(TIMEOUT_S)
        with Client(self.ready["grpc"]) as client:
            client.become_primary().configure()
            client.packet_out(bytes(60), egress_port=1)
            assert self.host.recv(100) == bytes(60)
        running.send_signal(signal.SIGTERM)
        assert running.wait(TIMEOUT_S) == 0
        wait_until(lambda: has_ended(child), "BMv2 to end")

    def test_it_dies_with_us(self, running: subprocess.Popen[str]) -> None:
        child = self.child_of(running)
        running.kill()
        running.wait(TIMEOUT_S)
        wait_until(lambda: has_ended(child), "BMv2 to end")

    def test_we_notice_that_it_died(self, running: subprocess.Popen[str]) -> None:
        os.kill(self.child_of(running), signal.SIGKILL)
        assert running.wait(TIMEOUT_S) == 1
        assert "simple_switch_grpc ended with signal SIGKILL" in running.communicate()[1]

    def test_log_and_pcap(self, arguments: tuple[str, ...], tmp_path: Path) -> None:
        log, pcap = tmp_path / "log", tmp_path / "pcap"
        options = ("--log-level", "debug", "--log-file", str(log), "--pcap", str(pcap))
        with own_cables(), started(*arguments, *options) as (process, line):
            with Client(json.loads(line)["grpc"]) as client:
                client.become_primary().configure()
                client.write(INSERT, group_entry(1, (1, 1)))  # a build without logging macros logs little else
            process.send_signal(signal.SIGTERM)
            assert process.wait(TIMEOUT_S) == 0
        logged = "".join(path.read_text() for path in tmp_path.iterdir() if path.name.startswith("log"))
        assert "mgid 1" in logged
        assert list(pcap.iterdir())


def test_a_key_of_another_certificate(tmp_path: Path) -> None:
    certificate, _ = self_signed(tmp_path, "one")
    _, key = self_signed(tmp_path, "other")
    code, said = failing(*ANY, *UDP, "--tls-cert", str(certificate), "--tls-key", str(key))
    assert code == 2
    assert "is not the key of the certificate in" in said
