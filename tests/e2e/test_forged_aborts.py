# SPDX-License-Identifier: Apache-2.0
"""A host that is in no job cannot end one: the switch passes nothing on that claims to be from itself."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
from typing import Any

import pytest

from tests.support.cluster.rank import Call
from tests.support.cluster.stack import Stack
from tests.support.dataplane import frames

STRANGER = "worker3"  # an interface at a port of the switch's that no rank is at


@pytest.mark.root
@pytest.mark.parametrize("transport", ["udp", "raw"])
@pytest.mark.parametrize("target", ["native", "sim", pytest.param("bmv2", marks=pytest.mark.bmv2)])
def test_forged_aborts_end_no_job(request: pytest.FixtureRequest, target: str, transport: str) -> None:
    """They have the right job and generation, and come from the switch's address, for all that a rank can see."""
    stack: Stack = request.getfixturevalue(f"{target}_on_wires")
    options = {"job": f"forged {transport}", "transport": transport, "interfaces": "worker"}
    with stack.ranks([Call(pause=0.1)], world_size=2, repeat=True, **options) as ranks:
        ranks.wait_for("done")
        before = told(stack)["switches"][0]["outcomes"]["forged"]
        sent = forge(stack, options["job"])
        await_forged(stack, before + sent)
        after = {rank: len(events) for rank, events in ranks.events.items()}
        ranks.wait_until("a call after the ABORTs", lambda rank: len(ranks.events[rank]) > after[rank] + 1)
        assert all(events[-1]["foreign"] == 0 for events in ranks.events.values())


def await_forged(stack: Stack, number: int) -> None:
    """Waits until the switch has dropped so many frames that claimed to be from it."""
    deadline = time.monotonic() + 60
    while told(stack)["switches"][0]["outcomes"]["forged"] < number:
        assert time.monotonic() < deadline, f"fewer than {number} frames were dropped as forged within 60 s"


def forge(stack: Stack, name: str) -> int:
    """Sends ABORTs to each of the job's ranks. Returns how many."""
    status = told(stack)
    switch = status["switches"][0]
    job = next(one for one in status["jobs"] if one["name"] == name)
    source = frames.Host(switch["mac"], switch["ip"], switch["udp_port"])
    secrets = [(0, 0), (0, 1), (2**32 - 1, 2**32 - 1)]
    with stack.entered(), socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as stranger:
        stranger.bind((STRANGER, 0))
        for member in job["members"]:
            place = member["places"][0]
            rank = frames.Host(place["mac"], place["ip"], place["udp_port"])
            for seq, fingerprint in secrets:
                abort = frames.Aggregation(
                    frames.ABORT, worker=0, job=job["number"], generation=job["generation"], seq=seq,
                    fingerprint=fingerprint, keys=(1, *[0] * (switch["lanes"] - 1)),
                )  # fmt: skip
                stranger.send(frames.frame(source, rank, abort))
    return len(secrets) * len(job["members"])


def told(stack: Stack) -> Any:
    command = [sys.executable, "-m", "p4reduce", "status", "--controller", stack.controller, "--json"]
    with stack.entered():
        return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=30).stdout)
