# SPDX-License-Identifier: Apache-2.0
"""Somebody on a port at which nobody is admitted floods the switch: jobs go on, and others begin.

P4REDUCE_HOSTILE_S says how long, in seconds; the figures are printed.
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from p4reduce_bench.processes import network
from p4reduce_bench.processes.children import Child
from tests.support.cluster.rank import Call
from tests.support.cluster.stack import Ranks, Stack, over_wires
from tests.support.own_network import ip
from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
SECONDS = float(os.environ.get("P4REDUCE_HOSTILE_S", "4"))
WINDOW_S = min(5.0, SECONDS / 2)
RATE = 20_000
SWITCH_IP = "10.0.0.254"
FORGED = ("hello", "data", "to_the_switch", "arp", "spoofed", "noise")
STEADY = [Call((100_000,), density=1.0)]
NEIGHBOUR = "worker3"


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with over_wires("native") as stack:
        with stack.entered():
            network.cable("spare0", "spare1")
        yield stack


def plan_against(stack: Stack, job: str, kinds: Sequence[str]) -> dict[str, object]:
    """Return the plan of a hostile neighbour that knows the job's number, its generation, and its ranks' addresses."""
    told = stack.status()
    with stack.entered():
        [own] = json.loads(ip("-json", "link", "show", NEIGHBOUR))
    (found,) = [one for one in told["jobs"] if one["name"] == job]
    (switch,) = told["switches"]
    attachments = [member["places"][0] for member in found["members"]]
    return {
        "rate": RATE,
        "kinds": kinds,
        "switch": [switch["mac"], SWITCH_IP],
        "own": [own["address"], "10.0.0.4"],
        "victims": [[one["mac"], one["ip"], one["udp_port"]] for one in attachments],
        "job": found["number"],
        "generation": found["generation"],
        "lanes": switch["lanes"],
    }


@contextlib.contextmanager
def flooding(stack: Stack, interface: str, seed: int, plan: Mapping[str, object]) -> Iterator[Child]:
    with stack.entered():
        arguments = json.dumps({**plan, "interface": interface, "seed": seed})
        command = [sys.executable, "-m", "tests.e2e.hostile", arguments]
        child = Child("neighbour", command, {"PYTHONPATH": str(ROOT)})
    try:
        child.first(60)
        yield child
    finally:
        child.stop()


def calls_in(ranks: Ranks, seconds: float) -> float:
    """Let the ranks work for so many seconds, and return how many collectives per second rank 0 has completed."""
    ranks.work(0.1)
    began, before = time.monotonic(), len(ranks.events[0])
    ranks.work(seconds)
    elapsed = time.monotonic() - began
    for events in ranks.events.values():
        assert "error" not in events[-1], events[-1]
    return (len(ranks.events[0]) - before) / elapsed


@pytest.mark.root
@pytest.mark.serial
@pytest.mark.parametrize("kinds", [FORGED, ("from_the_switch", "abort")], ids=["forged", "from the switch"])
def test_jobs_go_on(stack: Stack, kinds: Sequence[str]) -> None:
    """Sending the flood takes processor time, so a flood into a cable that leads nowhere is the baseline."""
    options = {"transport": "raw", "interfaces": "worker", "timeout": 60.0}
    with stack.ranks(STEADY, job="steady", world_size=2, repeat=True, **options) as ranks:
        ranks.wait_for("done")
        plan = plan_against(stack, "steady", kinds)
        speeds: dict[str, list[float]] = {"spare0": [], NEIGHBOUR: []}
        sent = [0.0, 0.0]
        for turn in range(max(1, round(SECONDS / (2 * WINDOW_S)))):
            for interface, measured in speeds.items():
                with flooding(stack, interface, turn, plan) as neighbour:
                    measured.append(calls_in(ranks, WINDOW_S))
                    if interface == NEIGHBOUR:
                        done = len(ranks.events[0])
                        ranks.wait_until("another call", lambda rank, done=done: rank or len(ranks.events[0]) > done)
                        with stack.ranks([Call()], job="joins", world_size=2, **options) as joining:
                            joining.end_well(60)
                    last = wait_until(neighbour.read, "the neighbour to say what it has sent")[-1]
                    sent = [sent[0] + last["sent"], sent[1] + last["seconds"]]
        speed, base = (statistics.median(speeds[name]) for name in (NEIGHBOUR, "spare0"))
        print(
            f"{kinds}: {speed:.1f} calls a second, {base:.1f} without: {speed / base:.2f}; "
            f"{sent[0] / sent[1]:.0f} frames a second"
        )
        if SECONDS >= 60:
            assert speed >= 0.8 * base
