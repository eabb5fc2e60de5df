# SPDX-License-Identifier: Apache-2.0
"""Spares are switches that have none of a job's slots while others have them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.fabric.changes import spec_of, specs_of, written
from p4reduce_controller.settings.settings import load
from p4reduce_controller.switches.aggregator import Layout
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.site import GONE, Site
from p4reduce_controller.switches.trees import NamedUplink, trees_of
from tests.support.controller.changing import FIRST, SECOND, UP, Changing, leave
from tests.support.controller.jobs_harness import TreeHarness
from tests.support.controller.stored_jobs import StoredJobs, entries
from tests.support.waiting import wait_until


def site_of(uplinks: dict[str, list[NamedUplink]], spares: Sequence[str]) -> Site:
    trees, nodes = trees_of(uplinks, spares)
    addresses = [Endpoint(f"02:00:00:00:00:{at:02x}", f"10.0.0.{at}", 31314) for at in nodes]
    return Site(Layout(4, 64, 64), tuple(addresses), trees, numbers=nodes)


def clos(roots: Sequence[str], leaves: int) -> dict[str, list[NamedUplink]]:
    """Return the uplinks of leaves that are below each root, and of the roots, which come last."""
    uplinks = {f"leaf{leaf}": [(11 + at, root) for at, root in enumerate(roots)] for leaf in range(leaves)}
    return {**uplinks, **{root: [] for root in roots}}


@given(st.lists(st.booleans(), min_size=1, max_size=6), st.integers(0, 4), st.integers(1, 3), st.integers(0, 40))
def test_spares_are_the_last_trees_and_have_no_slots(are_spares: list[bool], leaves: int, threads: int, n: int) -> None:
    roots = [f"root{at}" for at in range(len(are_spares))]
    spares = [root for root, is_spare in zip(roots, are_spares, strict=True) if is_spare]
    base = site_of(clos(roots, leaves), spares)
    site, slots = base.for_threads(threads), max(n, threads)
    names = [site.trees.names[root] for root in site.trees.roots]
    assert names == sorted(roots, key=lambda root: root in spares) * threads
    numbers = {name: number for number, name in enumerate(clos(roots, leaves))}
    assert [numbers[name] for name in base.trees.names] == list(base.numbers)
    striped = len(roots) - (len(spares) if len(spares) < len(roots) else 0)
    assert site.stripes == striped
    trees = [site.slot_at(half, slots)[0] for half in range(2 * slots)]
    assert {tree % len(roots) for tree in trees} <= set(range(striped))
    assert not set(trees) & site.trees.spare_trees
    alone = base.without([root for root in base.trees.roots if base.is_spare(root)])
    assert alone.stripes == striped
    assert (alone.capacity, alone.shares) == (base.capacity, base.shares)
    assert [alone.slot_at(half, slots) for half in range(2 * slots)] == [
        base.slot_at(half, slots) for half in range(2 * slots)
    ]
    rest = base.without([root for root in base.trees.roots if not base.is_spare(root)])
    assert rest.stripes == (len(spares) or len(roots))  # without other roots, they are roots like any other


def test_a_spare_has_no_parent() -> None:
    with pytest.raises(ValueError, match="the switch leaf0 is a spare and has a parent: accepted are switches without"):
        trees_of(clos(["top"], 1), ["leaf0"])


@pytest.mark.parametrize("at", [(0, 1), (1, 1)])
def test_a_spare_that_is_above_no_leaf_is_for_ranks_of_one_rack(at: tuple[int, int]) -> None:
    """Ranks have one worker number, which must be the same in each tree."""
    trees, nodes = trees_of({**clos(["top"], 2), "spare": []}, ["spare"])
    harness = TreeHarness(trees, 64, nodes)
    sessions = [harness.join(rank, 2, moves=True, spares=True) for rank in range(2)]
    for rank, session in enumerate(sessions):
        assert harness.hear(session, at[rank], port=20 + rank)
        assert harness.hear(session, 3, port=20 + rank)
    [job] = harness.installs
    assert {job.site.trees.names[node] for node in job.spares} == ({"spare"} if at == (1, 1) else set())
    assert job.excluded_switches == (
        []
        if at == (1, 1)
        else ["the switch spare is not used: ranks that share a switch do not share one there, or the other way round"]
    )


def test_a_later_controller_finds_the_spares_of_jobs(tmp_path: Path) -> None:
    stored = StoredJobs(tmp_path, *trees_of(clos(["top", "spare"], 2), ["spare"]))
    harness = stored.harness
    sessions = [harness.join(rank, 2, numbers=True, moves=True, spares=True) for rank in range(2)]
    for rank, session in enumerate(sessions):
        for tree in range(2):
            assert harness.hear(session, rank, port=20 + rank, tree=tree)
    [before] = harness.installs
    harness.installed()
    stored.save()
    [after] = stored.restored()
    assert after.site.trees.spares == before.site.trees.spares
    assert entries(after.placements) == entries(before.placements)
    assert entries(after.spares) == entries(before.spares)
    assert {after.site.trees.names[at] for at in after.spares} == {"leaf0", "leaf1", "spare"}
    assert all(member.spares for member in after.members.values())
    assert after.ranges == before.ranges
    # The spare is removed, which the job does not prevent.
    known = harness.switches.site
    site = known.without([node for node in range(known.nodes) if known.is_spare(node)])
    harness.switches.site = site
    stored.trees, stored.nodes = site.trees, site.numbers
    [alone] = stored.restored()
    assert not alone.spares
    assert [alone.site.trees.names[at] for at in range(alone.site.nodes) if alone.site.number(at) == GONE] == ["spare"]
    assert entries(alone.placements) == entries(before.placements)


def test_spares_in_the_settings() -> None:
    switches = [{"name": name, "switch": f"{name}:1", "address": [f"127.0.0.1:4000{name}"]} for name in "123"]
    settings = load(None, {"switches": switches, "spare": ["2"], "switch_insecure": True})
    assert [one.spare for one in specs_of(settings)] == [False, True, False]
    switches[2]["spare"] = True  # type: ignore[assignment]
    settings = replace(settings, switches=switches)
    specs = specs_of(settings)
    assert [one.spare for one in specs] == [False, True, True]
    for spec in specs:
        assert spec_of(json.dumps(written(spec)), settings) == spec
    for changes, said in (
        ({"spare": ["4"]}, "spare 4: it is not a switch; the switches are 1, 2, 3"),
        (
            {"switches": [{**switches[0], "spare": 1}], "spare": []},
            "spare = 1 of the switch 1: accepted are true and false",
        ),
        ({"uplink": ["2:2=1"]}, "the switch 2 is a spare and has a parent"),
    ):
        with pytest.raises(SettingsError, match=said):
            specs_of(replace(settings, **changes))


def test_a_spare_comes_and_goes_while_a_job_runs(changing: Changing) -> None:
    changing.add("third", spare=True)
    assert changing.status()["third"].spare
    [rank] = changing.job(1)
    assert not changing.status()["third"].jobs
    said = changing.refused(
        lambda: changing.add(
            "leaf", switch="o:1", address=["127.0.0.1:40101"], spare=True, uplink={"port": UP, "to": FIRST}
        )
    )
    assert "the switch leaf is a spare and has a parent" in said
    changing.remove("third")
    changing.wait_for(FIRST, SECOND)
    leave(changing, rank)
    wait_until(lambda: not changing.look().jobs, "the job to end")
