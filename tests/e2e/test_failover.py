# SPDX-License-Identifier: Apache-2.0
"""A switch of a job is killed while the ranks work: the job lives, with the right sums."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from p4reduce.local.host import digest
from tests.support.c_library import needs_c_library
from tests.support.cluster.stack import REPEATED, Stack, go_on, job, kept, over_udp, slots_used, wait_until_back
from tests.support.waiting import wait_until

TWO: dict[str, Any] = {"target": "native", "aggregators": 2}
CLOS: dict[str, Any] = {"target": "native", "leaves": 2, "spines": 2}


def trouble(stack: Stack) -> str:
    return "; ".join(job(stack, "job")["in_trouble"])


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize(("shape", "killed"), [(TWO, 1), (TWO, 0), (CLOS, 1), (CLOS, 0)])
def test_a_job_lives_when_a_switch_is_killed(shape: dict[str, Any], killed: int) -> None:
    """The killed switch is an aggregator, or the spine of a tree. Later it comes back, without the job."""
    with over_udp(**shape) as stack:
        at = stack.names[shape.get("spines", len(stack.names)) :]
        with stack.ranks(REPEATED, job="job", world_size=4, repeat=True, timeout=60, at=at) as ranks:
            go_on(ranks)
            stack.switches[killed].process.kill()
            go_on(ranks)
            wait_until(lambda: "went on at" in trouble(stack), "the slots to be elsewhere")
            stack.restart_switch(killed)
            wait_until(lambda: all(one["connected"] for one in stack.status()["switches"]), "the switch to be back")
            go_on(ranks)
        wait_until(lambda: slots_used(stack) == 0, "all slots to be free")


@pytest.mark.parametrize(
    ("shape", "killed", "threads"),
    [
        (TWO, 0, 2),
        pytest.param(TWO, 1, 4, marks=pytest.mark.slow),
        (CLOS, 1, 3),
        pytest.param(CLOS, 0, 2, marks=pytest.mark.slow),
    ],
)
def test_a_job_of_several_threads_lives_when_a_switch_is_killed(
    shape: dict[str, Any], killed: int, threads: int
) -> None:
    needs_c_library()
    with over_udp(**shape) as stack:
        options = {"threads": threads, "slots": 13, "at": stack.names[shape.get("spines", len(stack.names)) :]}
        with stack.ranks(REPEATED, job="job", world_size=4, repeat=True, timeout=60, **options) as ranks:
            go_on(ranks)
            stack.switches[killed].process.kill()
            go_on(ranks)
            wait_until(lambda: "went on at" in trouble(stack), "the slots to be elsewhere")
            stack.restart_switch(killed)
            wait_until(lambda: all(one["connected"] for one in stack.status()["switches"]), "the switch to be back")
            go_on(ranks)
        wait_until(lambda: slots_used(stack) == 0, "all slots to be free")


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 3])
def test_a_switch_that_is_restarted_at_once(tmp_path: Path, threads: int) -> None:
    """The controller notices that the job's entries are gone, before any rank asks."""
    with kept(tmp_path, **TWO) as stack:
        with stack.ranks(REPEATED, job="job", world_size=3, repeat=True, timeout=60, threads=threads) as ranks:
            go_on(ranks)
            stack.restart_switch(1)
            go_on(ranks)
            wait_until(lambda: "went on at" in trouble(stack), "the slots to be elsewhere")
        wait_until(lambda: slots_used(stack) == 0, "all slots to be free")


@pytest.mark.slow
@pytest.mark.parametrize(("first", "threads"), [("switch", 1), ("controller", 1), ("switch", 2), ("controller", 3)])
def test_the_controller_is_killed_as_well(tmp_path: Path, first: str, threads: int) -> None:
    """The next one takes the slots over, whichever of the two was killed first."""
    with kept(tmp_path, **TWO) as stack:
        with stack.ranks(REPEATED, job="job", world_size=3, repeat=True, timeout=90, threads=threads) as ranks:
            go_on(ranks)
            if first == "controller":
                stack.stop_controller(signal.SIGKILL)
            stack.switches[1].process.kill()
            if first == "switch":
                wait_until(lambda: "on at" in trouble(stack), "the takeover")
                stack.stop_controller(signal.SIGKILL)
            stack.start_controller()
            wait_until_back(stack, "job")
            go_on(ranks)
            wait_until(lambda: "went on at" in trouble(stack), "the slots to be elsewhere")
        stack.restart_switch(1)  # until then, the ended job holds its slots there
        wait_until(lambda: slots_used(stack) == 0, "all slots to be free")


@pytest.mark.skipif(not digest(), reason="this machine does not let processes share memory")
def test_ranks_of_a_host_whose_leader_sends_for_all() -> None:
    with over_udp(**TWO) as stack:
        options: dict[str, Any] = {"world_size": 5, "hosts": (0, 1, 0, 1, 1), "local": "auto"}
        with stack.ranks(REPEATED, job="job", repeat=True, timeout=60, **options) as ranks:
            go_on(ranks)
            assert len({member["leader"] for member in job(stack, "job")["members"]}) == 2
            stack.switches[1].process.kill()
            go_on(ranks)
            wait_until(lambda: "went on at" in trouble(stack), "the slots to be elsewhere")
            go_on(ranks)
