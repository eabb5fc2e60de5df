# SPDX-License-Identifier: Apache-2.0
"""If routers mark packets (CE), all ranks of a job send more slowly, and the sums stay exact."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from tests.support.cluster.rank import Call
from tests.support.cluster.stack import Stack, over_wires
from tests.support.marking import marks
from tests.support.own_network import Namespace

pytestmark = pytest.mark.root

CALLS = [Call((300_000,), density=0.5, seed=seed) for seed in range(2)]
WORKERS = 3


def stats_of(stack: Stack, **options: Any) -> list[dict[str, int]]:
    """Run a job that makes the calls, and return the counters of its ranks."""
    with stack.ranks(CALLS, world_size=WORKERS, slots=64, **options) as ranks:
        ends = ranks.wait_for_ends(120)
    for rank, last in ends.items():
        assert "stats" in last, f"rank {rank}: {last}"
    return [ends[rank]["stats"] for rank in range(WORKERS)]


WAYS = [
    ("native", "raw", "c"),
    pytest.param("native", "udp", "c", marks=pytest.mark.slow),
    pytest.param("native", "udp", "python", marks=pytest.mark.slow),
    pytest.param("native", "raw", "python", marks=pytest.mark.slow),
    pytest.param("native", "scapy", "python", marks=pytest.mark.slow),
    pytest.param("sim", "raw", "c", marks=pytest.mark.slow),
    pytest.param("bmv2", "raw", "c", marks=[pytest.mark.bmv2, pytest.mark.slow]),
]


@pytest.mark.parametrize("ipv6", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("target", "transport", "backend"), WAYS)
def test_marks_on_one_ranks_way_slow_all(
    monkeypatch: pytest.MonkeyPatch, target: str, transport: str, backend: str, ipv6: bool
) -> None:
    monkeypatch.setenv("P4REDUCE_BACKEND", backend)
    with over_wires(target, ipv6=ipv6) as stack:
        how = {"transport": transport, "interfaces": "worker"}
        before = stats_of(stack, job="before", **how)
        assert [stats["marks"] for stats in before] == [0] * WORKERS
        with stack.enter(), marks("worker1", 0.2):
            during = stats_of(stack, job="during", **how)
        assert min(stats["marks"] for stats in during) > 0
        # A rank that is never a round's last has no sample of a path as slow as scapy's, so its marks do not count.
        slowed = [stats["slowdowns"] > 0 for stats in during]
        assert any(slowed) if transport == "scapy" else all(slowed), during
        assert max(stats["marks"] for stats in during) < during[0]["rounds"]


@pytest.mark.parametrize("backend", ["c", pytest.param("python", marks=pytest.mark.slow)])
@pytest.mark.parametrize("target", ["native", pytest.param("sim", marks=pytest.mark.slow)])
def test_marks_between_sockets(monkeypatch: pytest.MonkeyPatch, target: str, backend: str) -> None:
    """On loopback, DATA and RESULTs are marked, also whole super-packets."""
    monkeypatch.setenv("P4REDUCE_BACKEND", backend)
    with (
        contextlib.closing(Namespace()) as namespace,
        Stack(target, ["1=udp:127.0.0.1:0"], enter=namespace.entered) as stack,
        namespace.entered(),
        marks("lo", 0.05),
    ):
        for stats in stats_of(stack, job="sockets"):
            assert stats["rounds"] > stats["marks"] > 0
            assert stats["slowdowns"] > 0
