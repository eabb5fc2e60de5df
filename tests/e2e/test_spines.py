# SPDX-License-Identifier: Apache-2.0
"""Jobs over two spines and leaves with cables to both: sums have the bits of the reference, and loads are shared."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster.calls import SHAPES, finish
from tests.support.cluster.rank import Call
from tests.support.cluster.stack import REPEATED, Setting, Stack, added, go_on, job, kept, over_udp, wait_until_back

SPINES = 2


@pytest.fixture(scope="module", params=["native", pytest.param("sim", marks=pytest.mark.slow)])
def clos(request: pytest.FixtureRequest) -> Iterator[Stack]:
    with over_udp(target=request.param, leaves=4, spines=SPINES) as stack:
        yield stack


def leaves(stack: Stack) -> list[str]:
    return stack.names[SPINES:]


@pytest.mark.parametrize("engine", ["c", pytest.param("python", marks=pytest.mark.slow)])
def test_each_spine_adds_its_share(monkeypatch: pytest.MonkeyPatch, clos: Stack, engine: str) -> None:
    """Each leaf sends as many packets up as one of its workers, half of them to each spine."""
    monkeypatch.setenv("P4REDUCE_BACKEND", engine)
    calls = [Call((60_000,), density=0.5, seed=seed) for seed in range(3)]
    before = added(clos)
    finish(Setting(clos), calls, "shares", world_size=8, at=leaves(clos), slots=32)
    spines, racks = [], []
    for number, (then, now) in enumerate(zip(before, added(clos), strict=True)):
        (spines if number < SPINES else racks).append(now - then)
    assert sum(racks) > 0
    for spine in spines:  # in a round, the leaves add 8 packets, and one of the spines 4
        assert spine == pytest.approx(sum(racks) / 4, rel=0.2)


def test_an_uplink_carries_a_part_of_one_workers_bytes(clos: Stack) -> None:
    """All blocks are non-zero, so packets to and from a leaf are as long as those of its workers."""
    calls = [Call((60_000,), density=1.0, seed=seed) for seed in range(3)]
    with clos.ranks(calls, job="bytes", world_size=8, at=leaves(clos), slots=32, repeat=True) as ranks:
        go_on(ranks)
        traffic = {one["switch"]: int(one["bytes"]) for one in job(clos, "bytes")["traffic"]}
    spines, racks = ([traffic[at] for at in range(6) if (at < SPINES) is top] for top in (True, False))
    worker = sum(racks) / 4 / 3  # a leaf hears two workers, and the same amount from the spines together
    for spine in spines:
        assert spine / 4 == pytest.approx(worker / SPINES, rel=0.1)


@pytest.mark.usefixtures("backend")
def test_calls_of_every_shape_at_places_that_ranks_do_not_name(clos: Stack) -> None:
    finish(Setting(clos), SHAPES, "shapes", world_size=3)


def test_threads_have_a_share_in_each_tree(clos: Stack) -> None:
    finish(Setting(clos), SHAPES, "threads", world_size=4, at=leaves(clos), threads=3, slots=12)


@pytest.mark.usefixtures("backend")
def test_losses(clos: Stack) -> None:
    with clos.losing(0.02):
        finish(Setting(clos), SHAPES[:8], "losses", world_size=4, at=leaves(clos))


def test_status_names_every_parent(clos: Stack) -> None:
    switches = clos.status()["switches"]
    assert [switch["parents"] for switch in switches] == [[]] * SPINES + [clos.names[:SPINES]] * 4
    assert [switch["parent"] for switch in switches[SPINES:]] == [clos.names[0]] * 4


@pytest.mark.slow
def test_jobs_go_on_when_the_controller_is_restarted(tmp_path: Path) -> None:
    with kept(tmp_path, target="native", leaves=2, spines=SPINES) as stack:
        with stack.ranks(REPEATED, job="kept", repeat=True, at=leaves(stack)) as ranks:
            ranks.wait_for("done")
            stack.stop_controller()
            stack.start_controller()
            wait_until_back(stack, "kept")
            go_on(ranks)
        finish(Setting(stack), REPEATED, "next", at=leaves(stack))


def test_a_spine_that_is_gone_is_left_out() -> None:
    with over_udp(target="native", leaves=2, spines=SPINES) as stack:
        stack.switches[0].process.kill()
        with stack.ranks(REPEATED, job="rest", at=leaves(stack), timeout=60.0) as ranks:
            ranks.end_well(120)
        first, second, *_ = stack.status()["switches"]
        assert not first["connected"]
        assert second["outcomes"]["completed"] > 0
