# SPDX-License-Identifier: Apache-2.0
"""Processes that are stopped for a while are not lost, nor are ranks that let no other thread run."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from p4reduce.control.channel import LEASE
from p4reduce_bench.processes.children import Child
from tests.support.cluster.rank import Call
from tests.support.cluster.stack import Stack, go_on, over_udp
from tests.support.own_network import Namespace
from tests.support.waiting import pass_time

STOPPED_S = 10.0
LEASE_S = 4  # much less than each process stands still
STEPS = [Call((2000,), seed=seed, pause=0.02) for seed in range(5)]


@pytest.fixture(scope="module", params=["native", "sim"])
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    with over_udp("--lease", str(LEASE_S), target=request.param) as stack:
        yield stack


def stop(*children: Child, seconds: float = STOPPED_S) -> None:
    for child in children:
        child.process.send_signal(signal.SIGSTOP)
    pass_time(seconds)
    for child in children:
        child.process.send_signal(signal.SIGCONT)


@pytest.mark.slow
def test_any_process_may_be_stopped_for_a_while(stack: Stack) -> None:
    """A rank, the controller and the switch in turn, then two at once; the job goes on, and is looked after as ever."""
    with stack.ranks(STEPS, job="stopped", world_size=3, repeat=True) as ranks:
        go_on(ranks)
        controller, switch = stack.controller_process, stack.switches[0]
        for stopped in ([ranks.children[1]], [controller], [switch], [controller, ranks.children[2]]):
            stop(*stopped)
            go_on(ranks)
        ranks.kill_and_end(1, within=10)
    with stack.ranks([Call()], job="stopped", world_size=3) as ranks:
        ranks.end_well()


@pytest.mark.slow
def test_a_job_may_begin_while_the_controller_stands_still(stack: Stack) -> None:
    stopped = stack.controller_process
    stopped.process.send_signal(signal.SIGSTOP)
    try:
        with stack.ranks([Call()], job="begins", world_size=2) as ranks:
            pass_time(STOPPED_S)
            stopped.process.send_signal(signal.SIGCONT)
            ranks.end_well()
    finally:
        stopped.process.send_signal(signal.SIGCONT)


def test_a_rank_that_holds_the_interpreters_lock_is_alive(stack: Stack) -> None:
    """The rank holds the lock for longer than a lease, and no other Python thread runs there meanwhile."""
    calls = {rank: [Call(), Call(hold=2 * LEASE_S if rank == 1 else 0), Call()] for rank in range(3)}
    with stack.ranks([], calls_of=calls, job="lock", world_size=3) as ranks:
        ranks.end_well()


def test_a_killed_rank_is_named_though_a_child_of_it_lives(stack: Stack) -> None:
    """The child has inherited the rank's sockets, as a data loader's workers do."""
    calls = {rank: [Call(fork=rank == 1), *STEPS * 100] for rank in range(3)}
    with stack.ranks([], calls_of=calls, job="forked", world_size=3) as ranks:
        go_on(ranks)
        ranks.kill_and_end(1, within=10)  # long before the child ends


@pytest.mark.slow
@pytest.mark.root
def test_a_controller_whose_host_vanishes_is_noticed() -> None:
    """No packet comes through any more, and none says so. For a rank's host see tests/topos."""
    with (
        contextlib.closing(Namespace()) as namespace,
        Stack("native", ["1=udp:127.0.0.1:0"], enter=namespace.entered) as stack,
        stack.ranks(STEPS, job="vanished", world_size=2, repeat=True) as ranks,
    ):
        go_on(ranks)
        with namespace.entered():
            subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
        vanished_at = time.monotonic()
        for last in ranks.wait_for_ends(2 * LEASE).values():
            assert last.get("error") == "JobAborted", last
            assert f"the connection to the controller at {stack.controller} broke" in last["message"]
        assert time.monotonic() - vanished_at < 1.2 * LEASE
