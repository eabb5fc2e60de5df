# SPDX-License-Identifier: Apache-2.0
"""Jobs that run are moved, shrunk and grown while they add up, every result held against the reference."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster.rank import Call
from tests.support.cluster.stack import Ranks, Stack, go_on, job, kept, over_udp, over_wires
from tests.support.waiting import pass_time, wait_until

# Calls of SMALL use at most 8 slots, and calls of LARGE use all slots that their job has.
SMALL = [Call((2000,), seed=seed, pause=0.01) for seed in range(5)]
LARGE = [Call((60_000,), seed=seed, density=0.1, pause=0.01) for seed in range(3)]
# Ranks that a busy machine kept from holding in time are left alone for a minute, and the second time for two.
AFTER_A_REST_S = 200.0


@pytest.fixture(autouse=True)
def _they_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_QUEUE", str(AFTER_A_REST_S))


@contextlib.contextmanager
def working(stack: Stack, name: str, slots: int, calls: list[Call], **options: Any) -> Iterator[Ranks]:
    """Yield a job of two ranks that call these collectives again and again."""
    with stack.ranks(calls, job=name, world_size=2, repeat=True, slots=slots, local="off", **options) as ranks:
        yield ranks


def comes_again(stack: Stack, waiting: Ranks) -> None:
    """Check that waiting ranks go on, or are told to join again, and that the job runs after that.

    Ranks have to join again if their job was gathering when the controller ended.
    """
    try:
        go_on(waiting)
    except AssertionError as error:
        if "join again" not in str(error):
            raise
        leave(waiting)
        with working(stack, "d", 300, SMALL) as anew:
            go_on(anew)


def comes(waiting: Ranks, *others: Ranks) -> None:
    """Wait until ranks that wait for slots have made a call. The others' output is read meanwhile."""

    def has_come(rank: int) -> bool:
        for other in others:
            other.work(0.01)
        return any("done" in event for event in waiting.events[rank])

    waiting.wait_until("a first call", has_come, AFTER_A_REST_S)


def leave(ranks: Ranks) -> None:
    for rank in list(ranks.children):
        ranks.kill(rank)


def first_slots(stack: Stack, name: str) -> list[int]:
    return [pool["first"] for pool in job(stack, name).get("pools", [])]


@pytest.mark.parametrize("backend", ["python", "c"])
@pytest.mark.parametrize(
    "network",
    [
        {},
        pytest.param({"target": "native", "aggregators": 2}, marks=pytest.mark.slow),
        pytest.param({"target": "native", "leaves": 2}, marks=pytest.mark.slow),
        pytest.param({"target": "bmv2"}, marks=[pytest.mark.bmv2, pytest.mark.root]),
    ],
    ids=str,
)
def test_results_are_the_same_while_a_job_is_moved(network: dict[str, Any], backend: str) -> None:
    """Job b of a, b and c ends, and job d finds room when another is moved."""
    trees = network.get("aggregators", 1)  # over which slots are striped
    with over_wires("bmv2") if network == {"target": "bmv2"} else over_udp(**network) as stack:
        options: dict[str, Any] = {"backends": dict.fromkeys(range(2), backend)}
        if "leaves" in network:
            options["at"] = stack.names[1:]
        if network == {"target": "bmv2"}:
            options["interfaces"] = "worker"
        with (
            working(stack, "a", 100 * trees, SMALL, **options) as a,
            working(stack, "b", 200 * trees, SMALL, **options) as b,
            working(stack, "c", 100 * trees, LARGE, **options) as c,
        ):
            go_on(a, b, c)
            wait_until(lambda: first_slots(stack, "c") != [], "c")
            firsts = {name: first_slots(stack, name) for name in "abc"}
            leave(b)
            must_move = max(firsts.values()) != firsts["b"]  # else the free slots are in a row anyhow
            with working(stack, "d", 300 * trees, SMALL, **options) as d:
                comes(d, a, c)
                go_on(a, c, d)
            if must_move:
                assert any(first_slots(stack, name) != firsts[name] for name in "ac")
            go_on(a, c)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_who_hardly_uses_its_slots_gives_some_back_and_grows_again() -> None:
    with over_udp(target="native") as stack, working(stack, "a", 400, SMALL) as a, stack.losing(0.05):

        def has(slots: int) -> bool:
            a.work(0.1)  # or its ranks would stand still when nobody reads what they say
            return bool(job(stack, "a")["slots"] == slots)

        a.work(14)  # reports of 2 s each
        with working(stack, "b", 300, LARGE) as b:
            wait_until(lambda: has(8), "a to give some back", AFTER_A_REST_S)
            assert job(stack, "a")["most_slots"] == 400
            go_on(a, b)
            leave(b)
        wait_until(lambda: has(400), "a to have its slots again", AFTER_A_REST_S)
        go_on(a)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "still", "after"), [("c", False, 0.1), ("c", False, 0.7), ("python", True, 0.5), ("c", True, 0.2)]
)
def test_a_controller_that_is_killed_meanwhile_costs_nothing(
    tmp_path: Path, backend: str, still: bool, after: float
) -> None:
    """still: one rank of each job is stopped until then, so that the other ranks' hold never completes."""
    backends = dict.fromkeys(range(2), backend)
    with (
        kept(tmp_path, target="native") as stack,
        working(stack, "a", 100, SMALL, backends=backends) as a,
        working(stack, "b", 200, SMALL) as b,
        working(stack, "c", 100, LARGE, backends=backends) as c,
    ):
        go_on(a, b, c)
        stopped = [ranks.children[1].process for ranks in (a, c) if still]
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        leave(b)
        with working(stack, "d", 300, SMALL) as d:
            wait_until(lambda: stack.status().get("queue") or first_slots(stack, "d"), "d to come")
            pass_time(after)
            stack.stop_controller()
            for process in stopped:
                process.send_signal(signal.SIGCONT)
            stack.start_controller()
            go_on(a, c)
            comes_again(stack, d)
