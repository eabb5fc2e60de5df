# SPDX-License-Identifier: Apache-2.0
"""`p4reduce switch --target native`."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence

import pytest

TIMEOUT_S = 30.0


def command(*options: str) -> Sequence[str]:
    return (sys.executable, "-m", "p4reduce", "switch", "--target", "native", "--grpc", "127.0.0.1:0", *options)


def refusal(*options: str) -> str:
    done = subprocess.run(command(*options), capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode != 0
    assert "Traceback" not in done.stderr
    return " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize("threads", [1, 3])
def test_it_says_when_it_is_ready_and_ends_when_told(threads: int) -> None:
    ports = ("--port", "1=udp:127.0.0.1:0", "--port", "7=udp:127.0.0.1:0")
    with subprocess.Popen(
        command(*ports, "--json", "--threads", str(threads)), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
    assert ready["ready"] is True
    assert ready["target"] == "native"
    assert not ready["grpc"].endswith(":0")
    assert set(ready["ports"]) == {"1", "7"}
    assert all(name.startswith("udp:127.0.0.1:") and not name.endswith(":0") for name in ready["ports"].values())


@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_udp_port_that_is_taken(threads: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        said = refusal("--port", f"1=udp:{address}", "--threads", threads)
    assert f"port 1: cannot open udp:{address}: another program uses the port; `ss -lunp" in said


@pytest.mark.parametrize(
    ("port", "message"),
    [
        ("1=udp:0.0.0.0:5000", "must be one of this machine's own addresses"),
        ("1=udp:localhost:5000", "accepted is 1=udp:ADDRESS:PORT"),
        ("1=udp:127.0.0.1:70000", "must be one of this machine's own addresses and a UDP port"),
        ("1=udp:127.0.0.1:x", "accepted is 1=udp:ADDRESS:PORT"),
        ("1=udp:192.0.2.1:5000", "port 1: cannot open udp:192.0.2.1:5000: this machine does not have that address"),
        ("1=eth:nosuch0", "port 1:"),
        ("1=tcp:x", "accepted are 1=eth:INTERFACE and 1=udp:ADDRESS:PORT"),
    ],
)
def test_a_port_that_cannot_be(port: str, message: str) -> None:
    assert message in refusal("--port", port)


def test_a_port_given_twice() -> None:
    assert "port 1 is given twice" in refusal("--port", "1=udp:127.0.0.1:0", "--port", "1=udp:127.0.0.1:0")


def test_threads_are_for_native_only() -> None:
    done = subprocess.run(
        (sys.executable, "-m", "p4reduce", "switch", "--port", "1=udp:127.0.0.1:0", "--threads", "2"),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode != 0
    assert "needs --target native" in " ".join(done.stderr.replace("│", " ").split())
