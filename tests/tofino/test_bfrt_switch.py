# SPDX-License-Identifier: Apache-2.0
"""Counters, states of ports and restarts of a switch over BF Runtime, through an unchanged controller."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from p4reduce_bench.processes import network
from tests.support.bfrt.stack import PORT, TofinoStack, need, tofino_over_udp
from tests.support.cluster.calls import finish
from tests.support.cluster.rank import Call
from tests.support.cluster.stack import START_UP_S, Setting, Stack, go_on, job
from tests.support.own_network import Namespace, ip
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.p4c, pytest.mark.root, pytest.mark.slow]

PROFILE = "tofino1-64"
STEPS = [Call((2000,), seed=seed, pause=0.02) for seed in range(5)]
FEW = [Call((3000,), density=0.1, seed=2)]
LONG_S = 300.0  # much longer than it takes to see that a switch is away


@contextlib.contextmanager
def over_cables(ranks: int) -> Iterator[TofinoStack]:
    """Run a stack whose ranks have cables to ports of the switch, from PORT on."""
    with contextlib.closing(Namespace()) as namespace:
        need(PROFILE)
        with namespace.entered():
            network.star(ranks)
        ports = [f"{PORT + rank}=eth:port{rank + 1}" for rank in range(ranks)]
        with TofinoStack(PROFILE, ports, network.AGGREGATOR, enter=namespace.entered) as stack:
            yield stack


def only_switch(stack: Stack) -> dict[str, Any]:
    [switch] = stack.status()["switches"]
    found: dict[str, Any] = switch
    return found


def told(stack: Stack, *command: str) -> Any:
    """Return what `p4reduce COMMAND --json` prints."""
    command = (sys.executable, "-m", "p4reduce", *command, "--controller", stack.controller, "--json")
    with stack.entered():
        return json.loads(subprocess.run(command, capture_output=True, timeout=START_UP_S, check=True).stdout)


def test_counters_and_doctor() -> None:
    with tofino_over_udp(PROFILE) as stack:
        before = only_switch(stack)["outcomes"]
        finish(Setting(stack), FEW, "counted", world_size=2)
        counted = {name: count - before[name] for name, count in only_switch(stack)["outcomes"].items()}
        assert counted["hello"] >= 2
        assert counted["started"] > 0
        assert counted["completed"] > 0
        with stack.losing(0.05):
            finish(Setting(stack), FEW, "lossy", world_size=2)
            losses = only_switch(stack)["losses"]
        assert [one["direction"] for one in losses] == ["IN", "OUT"]
        assert all(one["lost"] > 0 for one in losses), losses
        found = {one["subject"]: one["verdict"] for one in told(stack, "doctor")}
        for subject in ("controller", f"switch {stack.names[0]}", "HELLO path", "sum"):
            assert found[subject] == "ok", found


def test_a_running_job_is_looked_at() -> None:
    """Slots are read by packets from and to the controller, and the job's traffic from the entries' counters."""
    with (
        tofino_over_udp(PROFILE) as stack,
        stack.ranks(STEPS, job="seen", world_size=2, repeat=True, slots=4) as ranks,
    ):
        go_on(ranks)
        halves = told(stack, "slots", "seen")["halves"]
        assert [(one["slot"], one["half"]) for one in halves] == [(slot, half) for slot in range(4) for half in (0, 1)]
        assert max(one["round"] for one in halves) > 0
        assert all(sorted([*one["ranks"], *one["missing"]]) == [0, 1] for one in halves)
        assert told(stack, "top", "--once", "--interval", "1")["packets_per_s"][stack.names[0]]["completed"] > 0
        [traffic] = job(stack, "seen")["traffic"]
        assert min(traffic["packets"], traffic["bytes"]) > 0


def test_ports_that_go_down() -> None:
    """The link partners of one rank's port go away, then those of all ports, and they come back."""
    with over_cables(2) as stack:

        def states() -> dict[int, str]:
            return {port["number"]: port["state"] for port in only_switch(stack)["ports"]}

        def cables(rank: int, state: str) -> None:
            with stack.entered():
                ip("link", "set", f"worker{rank}", state)

        wait_until(lambda: states() == {PORT: "UP", PORT + 1: "UP"}, states)
        options = {"interfaces": "worker", "transport": "raw", "timeout": LONG_S}
        with stack.ranks(STEPS, job="cut", world_size=2, repeat=True, **options) as ranks:
            go_on(ranks)
            cables(1, "down")
            wait_until(lambda: states() == {PORT: "UP", PORT + 1: "DOWN"}, states)
            trouble = f"port {PORT + 1} of {stack.names[0]} is down, where rank 1 is"
            wait_until(lambda: trouble in job(stack, "cut")["in_trouble"], lambda: job(stack, "cut"))
            cables(0, "down")
            wait_until(lambda: only_switch(stack)["state"] == "NotReady", lambda: only_switch(stack))
            assert only_switch(stack)["problem"] == "all its 2 ports are down"
            for rank in range(2):
                cables(rank, "up")
            wait_until(lambda: only_switch(stack)["state"] == "Ready", lambda: only_switch(stack))
            go_on(ranks)


@pytest.mark.parametrize(("process", "hangs"), [("bf_switchd", False), ("bf_switchd", True), ("p4reduce", False)])
def test_a_process_of_the_switch_restarts(process: str, hangs: bool) -> None:
    """One is killed and starts again, or hangs for a while: either way the switch loses its state."""
    with (
        tofino_over_udp(PROFILE) as stack,
        stack.ranks(STEPS, job="first", world_size=2, repeat=True, timeout=LONG_S) as first,
    ):
        go_on(first)
        disturbed = stack.ready[0][process]
        os.kill(disturbed, signal.SIGSTOP if hangs else signal.SIGKILL)
        if hangs:
            wait_until(lambda: "unreachable" in only_switch(stack)["problem"], lambda: only_switch(stack), 60)
            os.kill(disturbed, signal.SIGCONT)
        for last in first.wait_for_ends(90).values():
            assert f"the switch at {stack.names[0]} was restarted and lost the job's state" in last["message"], last
        wait_until(lambda: only_switch(stack)["state"] == "Ready", lambda: only_switch(stack), 90)
        with stack.ranks(FEW, job="first", world_size=2) as again:  # also under the name of the job that was lost
            again.end_well()
        finish(Setting(stack), FEW, "second", world_size=2)
        assert only_switch(stack)["ports"] == [{"number": PORT, "state": "UP"}]
