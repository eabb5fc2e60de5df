# SPDX-License-Identifier: Apache-2.0
"""A controller that dies and is started again: jobs carry on, with the right sums, and are looked after as before."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster.rank import Call
from tests.support.cluster.stack import (
    Stack,
    go_on,
    job,
    kept,
    placement,
    slots_used,
    wait_until_back,
)
from tests.support.waiting import wait_until

REJOIN_S = 8.0
STEPS = [Call((2000,), seed=seed, pause=0.02) for seed in range(5)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with kept(tmp_path_factory.mktemp("state"), REJOIN_S) as stack:
        yield stack


@pytest.mark.parametrize(
    ("shape", "threads", "number"),
    [
        pytest.param({"target": "sim"}, 1, signal.SIGTERM, marks=pytest.mark.slow),
        ({"target": "native"}, 1, signal.SIGKILL),
        pytest.param({"target": "native", "aggregators": 2}, 1, signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param({"target": "native", "leaves": 2}, 3, signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_jobs_carry_on_and_are_looked_after_as_before(
    tmp_path: Path, shape: dict[str, Any], threads: int, number: signal.Signals
) -> None:
    with kept(tmp_path, **shape) as stack:
        at = stack.names[1:] if shape.get("leaves") else ()
        with (
            stack.ranks(STEPS, job="one", world_size=4, repeat=True, at=at, threads=threads) as one,
            stack.ranks([Call(), Call(pause=6.0)], job="two", world_size=2, at=at) as two,
        ):
            go_on(one)
            two.wait_for("done")
            before = placement(stack, "one")
            stack.stop_controller(number)
            go_on(one)
            stack.start_controller()
            wait_until_back(stack, "one")
            assert placement(stack, "one") == before
            go_on(one)
            # Slots of others are not given away.
            with stack.ranks(STEPS, job="three", world_size=2, at=at) as three:
                three.end_well()
            two.end_well()
            wait_until(lambda: not job(stack, "two"), "the job that has ended to be forgotten")
            go_on(one)
            one.kill_and_end(1)
        wait_until(lambda: slots_used(stack) == 0, "the slots to be free")


def test_a_rank_that_dies_while_there_is_no_controller_is_named(stack: Stack) -> None:
    with stack.ranks(STEPS, job="killed", world_size=3, repeat=True) as ranks:
        go_on(ranks)
        stack.stop_controller()
        ranks.kill(1)
        stack.start_controller()
        started = time.monotonic()
        lasts = ranks.wait_for_ends(2 * REJOIN_S)
        assert time.monotonic() - started < 1.5 * REJOIN_S
        for rank in (0, 2):
            assert (lasts[rank].get("error"), lasts[rank].get("rank")) == ("JobAborted", 1), lasts[rank]
        assert any("rank 1 did not come back within 8 s" in lasts[rank]["message"] for rank in (0, 2)), lasts
    wait_until(lambda: slots_used(stack) == 0, "the slots to be free")


@pytest.mark.parametrize("target", [pytest.param("sim", marks=pytest.mark.slow), "native"])
def test_a_switch_that_is_restarted_meanwhile_has_lost_its_jobs(tmp_path: Path, target: str) -> None:
    with kept(tmp_path, target=target) as stack:
        with stack.ranks(STEPS, job="lost", world_size=2, repeat=True) as ranks:
            go_on(ranks)
            stack.stop_controller()
            stack.restart_switch(0)
            stack.start_controller()
            for last in ranks.wait_for_ends().values():
                assert last.get("error") == "JobAborted", last
                assert f"the switch at {stack.names[0]} was restarted and lost the job's state" in last["message"]
        wait_until(lambda: slots_used(stack) == 0, "the slots to be free")
        with stack.ranks(STEPS, job="lost", world_size=2) as ranks:
            ranks.end_well()


def test_ranks_that_leave_while_there_is_no_controller_leave_when_there_is_one(tmp_path: Path) -> None:
    with kept(tmp_path) as stack:
        with stack.ranks([Call(), Call(pause=2.0)], job="leaving", world_size=2) as ranks:
            ranks.wait_for("done")
            stack.stop_controller()
            ranks.wait_for("stats")  # from now on they leave
            stack.start_controller()
            ranks.end_well()
        wait_until(lambda: slots_used(stack) == 0, "the slots to be free")
        assert stack.status()["jobs_aborted"] == 0


def test_without_a_controller_the_job_ends_in_time(stack: Stack) -> None:
    with stack.ranks(STEPS, job="orphaned", world_size=2, repeat=True) as ranks:
        go_on(ranks)
        stack.stop_controller()
        stopped = time.monotonic()
        try:
            for last in ranks.wait_for_ends(2 * REJOIN_S).values():
                assert last.get("error") == "JobAborted", last
                assert f"the connection to the controller at {stack.controller} broke" in last["message"]
                assert "this rank could not rejoin its job for 8 s" in last["message"]
            assert REJOIN_S - 1 < time.monotonic() - stopped < 1.5 * REJOIN_S
        finally:
            stack.start_controller()
    wait_until(lambda: slots_used(stack) == 0, "the slots to be free", 2 * REJOIN_S)
