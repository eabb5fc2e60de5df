# SPDX-License-Identifier: Apache-2.0
"""Real processes on several hosts, of which each sends one stream: every result is held against the reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from p4reduce.local.host import digest
from p4reduce.protocol.numbers import WIRES
from tests.support.cluster.calls import SHAPES
from tests.support.cluster.rank import Call
from tests.support.cluster.stack import Event, Ranks, Stack, go_on, job, kept, over_udp

HOSTS = (0, 1, 0, 1, 1)
LEADERS = [0, 1, 0, 1, 1]
CALLS = [
    *SHAPES,
    *(Call((300_001,), dtype="float16", wire=wire, density=0.4, seed=seed) for seed, wire in enumerate(WIRES, 50)),
    Call((40_000,), dtype="int32", density=0.9, seed=60),
    Call((100_000,), op="average", density=0.05, seed=61),
]

pytestmark = pytest.mark.skipif(not digest(), reason="this machine does not let processes share memory")


def start(stack: Stack, calls: list[Call], name: str, hosts: tuple[int | None, ...] = HOSTS, **options: Any) -> Ranks:
    return stack.ranks(calls, job=name, world_size=len(hosts), hosts=hosts, local="auto", **options)


def senders(ends: dict[int, Event]) -> list[int]:
    assert all("stats" in last and not last["stats"]["local"] for last in ends.values()), ends
    return [rank for rank, last in sorted(ends.items()) if last["stats"]["packets_sent"]]


@pytest.mark.parametrize(
    ("calls", "hosts", "backends", "send"),
    [
        pytest.param(CALLS[::3], HOSTS, None, [0, 1], id="one of each host"),
        pytest.param(CALLS, (0, 0, 1), None, [0, 2], id="every call", marks=pytest.mark.slow),
        pytest.param(CALLS[::5], (None, 0, 0, 1), None, [0, 1, 3], id="a rank that keeps its stream"),
        # Python's backend knows no others that share streams.
        pytest.param(CALLS[::5], (0, 0, 1), {0: "python", 1: "c", 2: "c"}, [0, 1, 2], id="all beside Python"),
    ],
)
def test_who_sends(
    native_udp_stack: Stack, calls: list[Call], hosts: tuple[int | None, ...], backends: Any, send: list[int]
) -> None:
    with start(native_udp_stack, calls, "hosts", hosts, backends=backends) as ranks:
        assert senders(ranks.wait_for_ends(240)) == send


def test_a_rank_that_is_killed_is_named_though_another_of_its_host_sends(native_udp_stack: Stack) -> None:
    with start(native_udp_stack, [Call((100_000,), density=1.0)], "killed", repeat=True) as ranks:
        ranks.wait_for("done")
        ranks.kill_and_end(3, within=20)


def test_who_does_not_call_is_named_with_its_host_elsewhere_and_alone_at_home(native_udp_stack: Stack) -> None:
    """A host's sum waits for all of its ranks. These know which rank is late, and other hosts know only the host.

    The rank that times out first ends the job, so the other ranks may see an abort instead of a timeout.
    """
    calls = {rank: [Call(timeout=5.0)] for rank in range(5)} | {3: [Call(pause=10.0)]}
    with start(native_udp_stack, [], "late", calls_of=calls) as ranks:
        lasts = ranks.wait_for_ends()
    errors = {rank: last for rank, last in lasts.items() if last["error"] == "CollectiveTimeout"}
    assert errors, lasts  # how each ended
    for rank, last in lasts.items():
        assert last["error"] in ("CollectiveTimeout", "JobAborted"), last
        if rank in errors:
            assert last["awaited"] == ([3] if HOSTS[rank] == HOSTS[3] else [1, 3, 4]), last


@pytest.mark.slow
def test_a_job_outlives_its_controller(tmp_path: Path) -> None:
    with kept(tmp_path, target="native") as stack, start(stack, [Call((100_000,))], "kept", repeat=True) as ranks:
        ranks.wait_for("done")
        stack.stop_controller()
        stack.start_controller()
        assert [member["leader"] for member in job(stack, "kept")["members"]] == LEADERS
        go_on(ranks, steps=2)
        ranks.kill_and_end(4, within=20)


@pytest.mark.slow
def test_below_leaves_a_host_is_one_worker_of_each_leaf() -> None:
    """Ranks 0, 2 and 4 are at the one, and the others at the other: so ranks 2 and 4 share, and 1 and 3."""
    with (
        over_udp(target="native", leaves=2) as stack,
        start(stack, CALLS[::4], "leaves", (0, 1, 1, 1, 1), at=stack.names[1:]) as ranks,
    ):
        assert senders(ranks.wait_for_ends(120)) == [0, 1, 2]
