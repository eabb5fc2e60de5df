# SPDX-License-Identifier: Apache-2.0
"""Real processes on several hosts, of which each sends one stream: every result is held against the reference."""

from __future__ import annotations

from typing import Any

import pytest

from p4reduce.local.host import digest
from p4reduce.protocol.numbers import WIRES
from tests.support.cluster.calls import SHAPES
from tests.support.cluster.rank import Call
from tests.support.cluster.stack import Event, Ranks, Stack, over_udp

HOSTS = (0, 1, 0, 1, 1)
LEADERS = (0, 1, 0, 1, 1)
CALLS = [
    *SHAPES,
    *(Call((300_001,), dtype="float16", wire=wire, density=0.4, seed=seed) for seed, wire in enumerate(WIRES, 50)),
    Call((40_000,), dtype="int32", density=0.9, seed=60),
    Call((100_000,), op="average", density=0.05, seed=61),
]


@pytest.fixture
def stack(native_udp_stack: Stack) -> Stack:
    if not digest():
        pytest.skip("this machine does not let processes share memory")
    return native_udp_stack


def start(stack: Stack, calls: list[Call], job: str, hosts: tuple[int | None, ...] = HOSTS, **options: Any) -> Ranks:
    return stack.ranks(calls, job=job, world_size=len(hosts), hosts=hosts, local="auto", **options)


def senders(ends: dict[int, Event]) -> list[int]:
    assert all("stats" in last and not last["stats"]["local"] for last in ends.values()), ends
    return [rank for rank, last in sorted(ends.items()) if last["stats"]["packets_sent"]]


def test_one_of_each_host_sends_and_results_are_those_of_a_switch(stack: Stack) -> None:
    with start(stack, CALLS[::3], "hosts") as ranks:
        assert senders(ranks.wait_for_ends(120)) == [0, 1]


@pytest.mark.slow
def test_every_call(stack: Stack) -> None:
    with start(stack, CALLS, "every call", (0, 0, 1)) as ranks:
        assert senders(ranks.wait_for_ends(240)) == [0, 2]


def test_people_see_who_sends(stack: Stack) -> None:
    with start(stack, [Call()], "seen", (0, 0, 1), repeat=True) as ranks:
        ranks.wait_for("done")
        (job,) = [one for one in stack.status()["jobs"] if one["name"] == "seen"]
        assert [member["leader"] for member in job["members"]] == [0, 0, 2]


def test_a_rank_that_keeps_its_stream_sends_for_itself(stack: Stack) -> None:
    with start(stack, CALLS[::5], "kept", (None, 0, 0, 1)) as ranks:
        assert senders(ranks.wait_for_ends(120)) == [0, 1, 3]


def test_beside_pythons_backend_all_send_for_themselves(stack: Stack) -> None:
    """It knows no others that share streams."""
    backends = {0: "python", 1: "c", 2: "c"}
    with start(stack, CALLS[::5], "partly", (0, 0, 1), backends=backends) as ranks:
        assert senders(ranks.wait_for_ends(120)) == [0, 1, 2]


@pytest.mark.parametrize("killed", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_a_rank_that_is_killed_is_named(stack: Stack, killed: int) -> None:
    """Be it the one that sends, or another of its host."""
    with start(stack, [Call((100_000,), density=1.0)], f"killed {killed}", repeat=True) as ranks:
        ranks.wait_for("done")
        ranks.kill(killed)
        ranks.wait_for("error", timeout=20)
        for rank in ranks.children:
            last = ranks.events[rank][-1]
            assert last["error"] == "JobAborted", last
            assert last["rank"] == killed, last  # whoever of the host has heard of it first


def test_who_does_not_call_is_named_with_its_host_elsewhere_and_alone_at_home(stack: Stack) -> None:
    """A host's sum waits for all of its ranks: they know for which, and others that it is one of them. Who gives up
    first ends the job, and the others may hear of that."""
    calls = {rank: [Call(timeout=5.0)] for rank in range(5)} | {3: [Call(pause=10.0)]}
    with start(stack, [], "late", calls_of=calls) as ranks:
        lasts = ranks.wait_for_ends()
        errors = {rank: last for rank, last in lasts.items() if last["error"] == "CollectiveTimeout"}
        assert errors, lasts  # how each ended
        for rank, last in lasts.items():
            assert last["error"] in ("CollectiveTimeout", "JobAborted"), last
            if rank in errors:
                assert last["awaited"] == ([3] if HOSTS[rank] == HOSTS[3] else [1, 3, 4]), last


@pytest.mark.slow
def test_a_job_outlives_its_controller(tmp_path: Any) -> None:
    if not digest():
        pytest.skip("this machine does not let processes share memory")
    with (
        over_udp("--state", str(tmp_path / "state"), "--rejoin-time", "60", target="native") as stack,
        start(stack, [Call((100_000,))], "kept", repeat=True) as ranks,
    ):
        ranks.wait_for("done")
        stack.stop_controller()
        stack.start_controller()
        (job,) = stack.status()["jobs"]
        assert [member["leader"] for member in job["members"]] == list(LEADERS)
        done = {rank: events[-1]["done"] for rank, events in ranks.events.items()}
        ranks.wait_until("done", lambda rank: ranks.events[rank][-1]["done"] > done[rank] + 2)
        ranks.kill(4)
        ranks.wait_for("error", timeout=20)
        lasts = {rank: ranks.events[rank][-1] for rank in ranks.children}
        assert all(last["rank"] == 4 for last in lasts.values()), lasts


@pytest.mark.slow
def test_below_leaves_a_host_is_one_worker_of_each_leaf() -> None:
    """Ranks 0, 2 and 4 are at the one, and the others at the other: so ranks 2 and 4 share, and 1 and 3."""
    if not digest():
        pytest.skip("this machine does not let processes share memory")
    with (
        over_udp(target="native", leaves=2) as stack,
        start(stack, CALLS[::4], "leaves", (0, 1, 1, 1, 1), at=stack.names[1:]) as ranks,
    ):
        assert senders(ranks.wait_for_ends(120)) == [0, 1, 2]
