# SPDX-License-Identifier: Apache-2.0
"""Jobs over two leaves and a spine: every sum is held against the reference, bit for bit."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable

import pytest

from p4reduce_bench.processes import network
from tests.support.cluster.calls import SHAPES, finish
from tests.support.cluster.rank import Call
from tests.support.cluster.stack import REPEATED, Setting, Stack, added
from tests.support.own_network import Namespace


@pytest.fixture
def stack(stacks: Callable[[str], Stack]) -> Stack:
    return stacks("tree")


def test_each_leaf_turns_its_ranks_packets_into_one(stack: Stack) -> None:
    before = added(stack)
    finish(Setting(stack), SHAPES, "shapes", at=stack.names[1:])
    spine, *leaves = [now - then for then, now in zip(before, added(stack), strict=True)]
    assert 0 < 2 * spine <= sum(leaves) * 1.1


def test_ranks_need_not_say_where_they_are(stack: Stack) -> None:
    finish(Setting(stack), SHAPES[:3], "anywhere")


def test_a_rack_by_itself_leaves_the_spine_alone(stack: Stack) -> None:
    before = added(stack)[0]
    finish(Setting(stack), SHAPES[:3], "rack", world_size=2, at=stack.names[1:2])
    assert added(stack)[0] == before


@pytest.mark.usefixtures("backend")
def test_the_rack_of_a_rank_that_does_not_call_is_named(stack: Stack) -> None:
    """Its own rack names the rank that does not call, and the other rack names the ranks of that rack."""
    calls = {1: [Call((20_000,), pause=6.0)]}
    with stack.ranks([Call((20_000,), timeout=3.0)], calls_of=calls, job="timeout", at=stack.names[1:]) as ranks:
        lasts = ranks.wait_for_ends()
    told = {rank: last["awaited"] for rank, last in lasts.items() if last.get("error") == "CollectiveTimeout"}
    assert told
    for rank, awaited in told.items():
        assert awaited == ([1] if rank == 3 else [1, 3]), lasts


@pytest.mark.slow
def test_more_ranks_than_a_switch_can_count(stack: Stack) -> None:
    with stack.ranks(REPEATED, job="many", world_size=34, at=stack.names[1:], slots=4, timeout=120.0) as ranks:
        ranks.end_well(200)


def test_status_tells_how_the_switches_hang_together(stack: Stack) -> None:
    switches = stack.status()["switches"]
    assert [switch["name"] for switch in switches] == stack.names
    assert [switch["parent"] for switch in switches] == ["", stack.names[0], stack.names[0]]


def test_a_cable_that_is_not_there_is_named() -> None:
    """The leaf's port leads nowhere. Jobs of its rack alone are served."""
    with Stack("native", ["1=udp:127.0.0.1:0"], aggregators=2, uplink=3, options=["--switch-timeout", "1"]) as stack:
        said = stack.controller_process.tail()
        assert re.search(r"the switch \S+ has sent HELLOs out of its port 3 for \S+ s, and none has reached", said)


@pytest.mark.root
@pytest.mark.parametrize(
    "target",
    [
        "native",
        pytest.param("sim", marks=pytest.mark.slow),
        pytest.param("bmv2", marks=[pytest.mark.bmv2, pytest.mark.slow]),
    ],
)
def test_frames_between_switches(target: str) -> None:
    """Leaves and spine on cables; a rank's HELLO to the other leaf crosses its own, which counts."""
    if target == "bmv2" and shutil.which("simple_switch_grpc") is None:
        pytest.skip("needs simple_switch_grpc")
    with contextlib.closing(Namespace()) as namespace:
        with namespace.entered():
            for port in (1, 2):
                network.cable(f"switch1p{port}", f"switch{port + 1}p3")
            network.cable("switch1p3", "spare")
            for rank in range(4):
                leaf, port = 2 + rank % 2, 1 + rank // 2
                network.cable(f"worker{rank}", f"switch{leaf}p{port}")
                network.run("ip", "address", "add", f"10.0.0.{rank + 1}/24", "dev", f"worker{rank}")
        ports = [f"{port}=eth:switch{{}}p{port}" for port in (1, 2, 3)]
        with Stack(target, ports, "10.0.0.25{}:31314", enter=namespace.entered, aggregators=3, uplink=3) as stack:
            finish(Setting(stack), SHAPES, "raw", transport="raw", interfaces="worker")
            assert all(switch["outcomes"]["stored"] > 0 for switch in stack.status()["switches"][1:])


@pytest.mark.parametrize("setting", ["tree"], indirect=True)
def test_ranks_of_one_host_behind_several_leaves_reduce_in_its_memory(setting: Setting) -> None:
    with setting.ranks(SHAPES, job="leaves", local="auto") as ranks:
        for rank, last in ranks.wait_for_ends(120).items():
            assert "stats" in last, f"rank {rank}: {last}"
            assert last["stats"]["local"], last
