# SPDX-License-Identifier: Apache-2.0
"""Packets are recorded as they pass, each once, and the latest of them kept; the command finds a job by its name."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from p4reduce.errors import P4ReduceError
from p4reduce.protocol.packet import Codec
from p4reduce.trace.cli import trace as command
from p4reduce.trace.frames import headers
from p4reduce.trace.live import Recorder, listening
from p4reduce.trace.merging import merge
from tests.support.loopbacks import LOOPBACKS, bound
from tests.support.trace_packets import send

pytestmark = pytest.mark.root

DEADLINE_S = 120.0
RANK = """
import os
import time
import numpy as np
from p4reduce import Communicator
with Communicator(job="live", slots=8) as communicator:
    until = time.monotonic() + float(os.environ["SECONDS"])
    going = np.ones(1, np.int32)
    while going[0]:
        tensor = np.ones(64 * 64, np.float32)
        if communicator.rank == 1:
            time.sleep(0.05)
        communicator.allreduce(tensor)
        going[0] = time.monotonic() < until if communicator.rank == 0 else 0
        communicator.allreduce(going)
"""


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize("ip", LOOPBACKS)
def test_each_packet_is_seen_once(ip: str) -> None:
    bound(ip).close()
    with Recorder(["lo"]) as recorder:
        with listening(recorder):
            send(20, ip=ip)
            send(20, port=31315, ip=ip)
            time.sleep(0.3)
        heads, build, _ = merge(recorder.captures())
    assert build == Codec()
    assert [one.seq for one in heads] == list(range(20))
    assert {one.destination for one in heads} == {(ip, 31314)}
    assert abs(heads[0].time / 1e9 - time.time()) < DEADLINE_S


@pytest.mark.usefixtures("alone")
def test_ports_are_the_switches_own() -> None:
    with Recorder(["lo"], ports=(31400, 31401, 31402)) as recorder:
        for port in (31314, 31400, 31401, 31402, 31403):
            send(10, port=port)
        recorder.record(0.3)
        heads, _, _ = merge(recorder.captures())
    assert sorted({one.destination[1] for one in heads}) == [31400, 31401, 31402]
    assert len(heads) == 30


@pytest.mark.usefixtures("alone")
def test_an_interrupted_record_says_how_long_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    def record(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Recorder, "record", record)
    done = CliRunner().invoke(command, ["record", "--seconds", "60"])
    took = re.search(r"no packet to or from UDP port 31314 passed within ([\d.]+) s\. ", done.stderr)
    assert took is not None
    assert float(took[1]) < 30


@pytest.mark.usefixtures("alone")
def test_the_latest_are_kept_and_no_values() -> None:
    with Recorder(packets=100) as recorder:
        send(300)
        recorder.record(0.3)
        (kept,) = recorder.captures()
    assert recorder.seen == 300
    assert [head.seq for one in kept for head in headers(one, Codec())] == list(range(200, 300))
    assert {len(one.payload) for one in kept} == {Codec().bare}


@pytest.mark.usefixtures("alone")
def test_what_is_forgotten_is_not_kept() -> None:
    with Recorder(["lo"]) as recorder:
        send(20)
        recorder.record(0.1)
        recorder.forget()
        send(3)
        recorder.record(0.1)
        (kept,) = recorder.captures()
    assert (len(kept), recorder.seen, recorder.missed) == (3, 3, 0)


@pytest.mark.usefixtures("alone")
def test_an_interface_that_is_not_there_is_named() -> None:
    with pytest.raises(P4ReduceError, match="--interface none0: this host has no such interface; accepted are lo"):
        Recorder(["none0"])


def trace(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "p4reduce", "trace", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, check=False)


@pytest.mark.slow
@pytest.mark.usefixtures("alone")
def test_a_job_is_recorded_by_its_name(tmp_path: Path) -> None:
    def start(*words: str, **environment: str) -> subprocess.Popen[bytes]:
        output = subprocess.PIPE if words[0] == "-m" else None
        made = subprocess.Popen([sys.executable, *words], stdout=output, env={**os.environ, **environment})
        started.append(made)
        if made.stdout is not None:
            made.stdout.readline()
        return made

    def begin(seconds: str) -> None:
        for rank in range(3):
            start("-c", RANK, RANK=str(rank), WORLD_SIZE="3", P4REDUCE_LOCAL="off", SECONDS=seconds)

    started: list[subprocess.Popen[Any]] = []
    out = tmp_path / "live.trace.json"
    words = ("record", "live", "--seconds", "4", "--interface", "lo", "-o", str(out), "--json")
    try:
        start("-m", "p4reduce", "switch", "--target", "native", "--port", "1=udp:127.0.0.1:31314", "--json")
        start("-m", "p4reduce", "controller", "--json")
        said = trace(*words)
        assert said.returncode == 1
        assert "job 'live' is not known at the controller 127.0.0.1:7700: it has no jobs" in said.stderr
        short = (*words[:2], "--wait", "100", "--seconds", "100", *words[4:])
        waits = subprocess.Popen([sys.executable, "-m", "p4reduce", "trace", *short], text=True,
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
        started.append(waits)
        assert waits.stderr is not None
        assert waits.stderr.readline() == "listening; start the job now\n"
        begin("0.3")
        told = json.loads(waits.communicate(timeout=DEADLINE_S)[0])
        assert [one["name"] for one in told["workers"]] == ["rank 0", "rank 1", "rank 2"]
        assert (told["seconds"] < 20, told["unfinished"]) == (True, 0)
        begin("60")
        deadline = time.monotonic() + DEADLINE_S
        while (said := trace(*words)).returncode != 0:
            assert time.monotonic() < deadline, said.stderr
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait(DEADLINE_S)
    told = json.loads(said.stdout)
    assert [one["name"] for one in told["workers"]] == ["rank 0", "rank 1", "rank 2"]
    assert "rank 1" in told["stragglers"]
    assert json.loads(out.read_text())["name"] == "live"
