# SPDX-License-Identifier: Apache-2.0
"""Leaves with several parents: they are in the tree of each spine, and each job deals its slots over the trees."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4reduce.control import jobs_pb2 as pb
from p4reduce.protocol.aggregators import slots_at_each, slots_of
from p4reduce_controller.fabric.changes import Changes, changes_from, specs_of
from p4reduce_controller.jobs.job import Job, State
from p4reduce_controller.p4runtime.switch_config import SwitchConfig
from p4reduce_controller.store.state_names import StateError
from p4reduce_controller.switches.availability import SwitchState, Unavailable
from p4reduce_controller.switches.trees import NamedUplink, Trees, Uplink, trees_of
from tests.support.controller.changing import FIRST, SECOND, UP, Changing
from tests.support.controller.fake_switch import FakeSwitch
from tests.support.controller.jobs_harness import TreeHarness
from tests.support.controller.stored_jobs import StoredJobs, entries
from tests.support.waiting import wait_until

pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")


def clos(spines: int, leaves: int) -> dict[str, list[NamedUplink]]:
    """Return the uplinks of switches of which each leaf is cabled to each spine, by its ports 11, 12 and so on."""
    tops = [f"spine{number}" for number in range(1, spines + 1)]
    uplinks: dict[str, list[NamedUplink]] = {name: [] for name in tops}
    return uplinks | {f"leaf{n}": [(11 + at, top) for at, top in enumerate(tops)] for n in range(1, leaves + 1)}


def harness_of(spines: int, leaves: int, slots: int = 64) -> TreeHarness:
    trees, nodes = trees_of(clos(spines, leaves))
    return TreeHarness(trees, slots, nodes)


class Clos:
    """A job of ranks at the leaves of a Clos network. at: the leaf of each rank. room: slots of a switch."""

    def __init__(
        self,
        spines: int,
        leaves: int,
        at: Sequence[int],
        room: int = 64,
        harness: TreeHarness | None = None,
        **options: Any,
    ) -> None:
        self.spines, self.at = spines, at
        self.harness = harness or harness_of(spines, leaves, room)
        self.join(**options)

    def join(self, name: str = "job", **options: Any) -> list[object]:
        self.sessions = [
            self.harness.join(rank, len(self.at), name, numbers=True, **options) for rank in range(len(self.at))
        ]
        return self.sessions

    def hear(self, threads: int = 1) -> None:
        for tree in range(self.spines):
            for rank, leaf in enumerate(self.at):
                for thread in range(threads):
                    where = self.spines + leaf  # the controller's number
                    assert self.harness.hear(self.sessions[rank], where, 20 + rank, thread=thread, tree=tree)

    @property
    def job(self) -> Job:
        [job] = self.harness.installs
        return job


@given(st.integers(1, 5), st.integers(1, 6), st.data())
def test_each_slot_and_rank_has_its_place_in_every_tree(spines: int, leaves: int, data: st.DataObject) -> None:
    at = data.draw(st.lists(st.integers(0, leaves - 1), min_size=1, max_size=8))
    threads = data.draw(st.integers(1, 3))
    slots = data.draw(st.integers(max(threads, spines), 40))
    one = Clos(spines, leaves, at, 256, slots=slots, threads=threads)
    one.hear(threads)
    job = one.job
    site = job.site.for_threads(threads)
    # The pools of one switch do not overlap, and numbers there are different.
    for number in range(spines + leaves):
        there = [index for index in job.ranges if site.number(index) == number]
        taken = [slot for index in there for slot in range(job.ranges[index].first, job.ranges[index].end)]
        assert len(set(taken)) == len(taken)
        assert one.harness.jobs.pool(number).used == len(taken)
        assert len({job.placements[index].job for index in there}) == len(there)
    for tree in range(spines * threads):
        own = {index: job.placements[index] for index in job.ranges if site.trees.tree(index) == tree}
        assert {(placed.job, placed.generation) for placed in own.values()} == {job.numbers[tree]}
        assert {placed.slots.count for placed in own.values()} == {
            slots_at_each(slots_of(tree // spines, slots, threads), spines)
        }
        ranks = [worker.worker for placed in own.values() for worker in placed.workers[: _ranks(placed)]]
        assert sorted(ranks) == list(range(len(at)))
        [root] = [placed for placed in own.values() if placed.parent is None]
        below = [placed.parent.worker for placed in own.values() if placed.parent is not None]
        assert sorted(below) == list(range(_ranks(root), len(root.workers)))
    one.harness.installed()
    for session in one.sessions:
        ready = one.harness.told[session][-1].ready
        told = one.harness.assigned(session)
        chosen = [told.aggregators[index % len(told.aggregators)] for index in ready.aggregators]
        if spines > 1:
            assert [at.tree for at in chosen] == list(range(spines)) * threads
            assert len({job for at in chosen for job in at.jobs}) == spines * threads
        else:
            assert not any(at.jobs for at in told.aggregators)


def _ranks(placed: Any) -> int:
    return len(placed.workers) - placed.children


@given(st.lists(st.lists(st.integers(0, 5), max_size=3, unique=True), min_size=1, max_size=7))
def test_trees_of_any_switches(parents: list[list[int]]) -> None:
    """Each node's path follows the uplinks of its switch; each switch is once below each root that is above it."""
    names = [f"s{number}" for number in range(len(parents))]
    uplinks: dict[str, list[NamedUplink]] = {
        name: [(port, names[up % len(names)]) for port, up in enumerate(ups, 1)]
        for name, ups in zip(names, parents, strict=True)
    }
    try:
        trees, nodes = trees_of(uplinks)
    except ValueError:
        return
    assert [names[switch] for switch in nodes] == list(trees.names)
    assert len(set(zip(nodes, map(trees.tree, range(len(nodes))), strict=True))) == len(nodes)
    assert [trees.names[root] for root in trees.roots] == [name for name, ups in uplinks.items() if not ups]
    assert sorted(nodes) == list(nodes)
    assert len(set(trees.labels)) == len(nodes)
    above = {name: {name} if not ups else set() for name, ups in uplinks.items()}
    for _ in names:
        for name, ups in uplinks.items():
            above[name] |= {root for _, up in ups for root in above[up]}
    for node, up in trees.uplinks.items():
        assert (up.port, trees.names[up.parent]) in uplinks[trees.names[node]]
    times = Counter(trees.names)
    assert times == {name: len(roots) for name, roots in above.items()}


PODS = {
    "core1": [], "core2": [],
    "agg1": [(1, "core1")], "agg2": [(1, "core2")],
    "agg3": [(1, "core1")], "agg4": [(1, "core2")],
    "leaf1": [(1, "agg1"), (2, "agg2")], "leaf2": [(1, "agg3"), (2, "agg4")],
}  # fmt: skip


def test_three_levels() -> None:
    trees, nodes = trees_of(PODS)
    assert trees.roots == (0, 1)
    assert [[trees.names[at] for at in trees.path(node)] for node in range(6, len(nodes))] == [
        ["leaf1", "agg1", "core1"], ["leaf1", "agg2", "core2"], ["leaf2", "agg3", "core1"], ["leaf2", "agg4", "core2"],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"agg2": [(1, "core1")]}, "the switch leaf1 has two ways to core1, by agg1 and agg2: give it one"),
        ({"leaf2": [(1, "agg3")], "agg4": [(1, "agg2")]}, "leaf1 is below core2 and leaf2 is not, although both are "),
        ({"core1": [(1, "leaf1")]}, "the uplinks form a cycle: "),
    ],
)
def test_what_no_tree_is_made_of(changes: dict[str, list[NamedUplink]], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        trees_of(PODS | changes)


def test_trees_without_a_common_switch_share_a_number() -> None:
    harness = TreeHarness(Trees(["a", "b"]))
    told = harness.assigned(harness.join(0, 1))
    assert [list(at.jobs) for at in told.aggregators] == [[], []]


def test_a_rank_of_an_earlier_release_is_refused() -> None:
    harness = harness_of(2, 2)
    refused = harness.last(harness.join(0, 2))
    assert refused.reason == pb.JOIN_REFUSED
    assert refused.message.endswith("cannot use switches with several parents, which are here; update it")


def test_a_leaf_has_room_for_the_share_of_every_tree() -> None:
    one = Clos(2, 2, [0, 1], 8)
    harness = one.harness
    assert (
        "slots=17, and the 2 switches have 8"
        in harness.last(harness.join(0, 1, "more", numbers=True, slots=17)).message
    )
    two = harness.join(0, 1, "whole", numbers=True, slots=8)
    for tree in range(2):
        assert harness.hear(two, 2, 20, tree=tree)
    assert [job.name for job in harness.installs] == ["whole"]
    one.hear()  # at leaf 2 there is no room now
    assert "asked, 0 of 8 free" in harness.last(one.sessions[0]).message


def test_a_tree_is_left_out_if_a_needed_uplink_does_not_work() -> None:
    one = Clos(3, 3, [0, 1], threads=2, slots=6)
    del one.harness.switches.children[3, 1]
    down = Unavailable("port 13 of leaf2 is down", SwitchState.UPLINK_DOWN)
    trouble = {(4, 2): down, (5, 0): down}  # leaf 3 is not needed
    one.harness.switches.uplink_trouble = lambda site, at: trouble.get(  # type: ignore[method-assign]
        (site.number(at), site.number(site.trees.uplinks[at].parent))
    )
    before = numbers_of(one)
    one.hear(2)
    job = one.job
    assert job.excluded_switches == [
        "the switch spine2 is not used: the switch leaf1 has not been heard by its parent spine2; check the cable at "
        "its port 12, and that both switches run",
        "the switch spine3 is not used: port 13 of leaf2 is down",
    ]
    assert {job.site.trees.names[at % job.site.nodes] for at in job.ranges} == {"spine1", "leaf1", "leaf2"}
    assert len(job.numbers) == 2
    one.harness.installed()
    for rank, session in enumerate(one.sessions):
        told, ready = one.harness.assigned(session), one.harness.told[session][-1].ready
        count = len(told.aggregators)
        chosen = [told.aggregators[index % count] for index in ready.aggregators]
        assert [(at.tree, at.ip) for at in chosen] == [(0, f"10.0.255.{3 + rank}")] * 2
        assert [at.jobs[index // count] for at, index in zip(chosen, ready.aggregators, strict=True)] == [
            number << 16 | generation for number, generation in job.numbers
        ]
    # Others get the numbers that were left out, with other generations.
    one.at = [2]
    one.join("other", slots=6)
    after = numbers_of(one)
    assert {number for number, _ in after} & {number for number, _ in before - set(job.numbers)}
    assert not after & before


def test_trees_may_be_left_out_one_after_the_other() -> None:
    """There is no room at first, and meanwhile another uplink breaks."""
    one = Clos(3, 2, [0, 1], 6, slots=6)
    harness = one.harness
    in_the_way = harness.join(0, 1, "in the way", numbers=True, slots=6)
    for tree in range(3):
        assert harness.hear(in_the_way, 3, 20, tree=tree)
    harness.installed()
    harness.lose(in_the_way)  # its slots are free once its switches have forgotten it
    del harness.switches.children[3, 0]
    one.hear()
    del harness.switches.children[3, 1]
    harness.tick(0.1)
    assert not harness.installs
    harness.removed()
    harness.tick(0.1)
    assert {one.job.site.trees.names[at] for at in one.job.ranges} == {"spine3", "leaf1", "leaf2"}
    harness.installed()
    for session in one.sessions:
        told, ready = harness.assigned(session), harness.told[session][-1].ready
        assert [told.aggregators[index].tree for index in ready.aggregators] == [2]


def numbers_of(one: Clos) -> set[tuple[int, int]]:
    told = one.harness.assigned(one.sessions[0])
    return {divmod(job, 1 << 16) for at in told.aggregators for job in at.jobs}


def test_a_job_without_any_tree_is_refused() -> None:
    one = Clos(2, 2, [0, 1])
    one.harness.absent = {0: "gone for long", 1: "gone for long"}
    one.hear()
    assert "the switch spine1 cannot be used: gone for long" in one.harness.last(one.sessions[0]).message
    assert all(job.state is not State.INSTALLING for job in one.harness.jobs)


def test_a_spine_that_is_gone_is_none_of_later_jobs() -> None:
    one = Clos(2, 2, [0, 1])
    one.harness.absent = {0: "gone for long"}
    one.join("later")
    told = one.harness.assigned(one.sessions[0])
    assert {at.tree for at in told.aggregators} == {0}
    assert not any(at.jobs for at in told.aggregators)
    one.harness.absent = {}
    one.spines = 1
    for rank, leaf in enumerate(one.at):
        assert one.harness.hear(one.sessions[rank], 2 + leaf)
    assert [job.site.trees.names[at] for job in one.harness.installs for at in job.ranges] == [
        "spine2",
        "leaf1",
        "leaf2",
    ]


def test_a_port_to_any_parent_is_no_ranks_port() -> None:
    """A HELLO for leaf 2 may come there through either spine."""
    one = Clos(2, 2, [0, 0])
    for tree in range(2):
        for port in (11, 12):
            assert not one.harness.hear(one.sessions[0], 3, port, tree=tree)
        assert not one.harness.hear(one.sessions[0], tree, 3, tree=tree)  # of the spine, toward leaf 2


def test_a_rank_is_at_the_same_leaf_in_every_tree() -> None:
    """Every leaf hears it, as over UDP, and it has not named one."""
    one = Clos(2, 2, [0])
    [session] = one.sessions
    assert one.harness.hear(session, 2, 20, tree=0)
    assert not one.harness.hear(session, 3, 20, tree=1)
    assert one.harness.hear(session, 2, 20, tree=1)


def test_a_later_controller_finds_jobs_in_every_tree(tmp_path: Path) -> None:
    trees, nodes = trees_of(clos(3, 3))
    stored = StoredJobs(tmp_path, trees, nodes)
    whole = Clos(3, 3, [0, 1, 1], harness=stored.harness, slots=7, threads=2, name="whole")
    whole.hear(2)
    before = {job.name: job for job in stored.harness.installs}
    stored.harness.installed()
    del stored.harness.switches.children[3, 1]
    narrow = Clos(3, 3, [0, 1], harness=stored.harness, slots=5, name="narrow")
    narrow.hear()
    before |= {job.name: job for job in stored.harness.installs}
    stored.harness.installed()
    stored.save()
    after = {job.name: job for job in stored.restored()}
    assert after.keys() == before.keys()
    for name, job in before.items():
        found = after[name]
        assert (found.numbers, found.number, found.threads) == (job.numbers, job.number, job.threads)
        assert found.ranges == job.ranges
        assert entries(found.placements) == entries(job.placements)
        assert [found.site.number(at) for at in found.ranges] == [job.site.number(at) for at in job.ranges]
    assert len(after["narrow"].numbers) == 2
    text = stored.path.read_text()
    stored.path.write_text(text.replace('"numbers": [\n', '"numbers": [[9, 9],\n', 1))
    with pytest.raises(StateError, match="numbers has 7 entries: must have 6, one for each tree and thread"):
        stored.load()
    changed = Trees(trees.names, {node: Uplink(up.port + 1, up.parent) for node, up in trees.uplinks.items()})
    stored.harness.switches.site = replace(stored.harness.switches.site, trees=changed)
    stored.path.write_text(text)
    with pytest.raises(StateError, match=r"below spine1 by port 11; now there is leaf1 .* below spine1 by port 12"):
        stored.load()


def test_a_spine_goes_and_its_leaf_keeps_the_other(changing: Changing) -> None:
    original = changing._make

    def make(spec: SwitchConfig) -> FakeSwitch:
        switch = original(spec)
        switch.cables.update({UP: [(changing.switches[0], 7)], UP + 1: [(changing.switches[1], 8)]})
        return switch

    beginning = Changes().begin_with(specs_of(changing.settings))
    changing.loop.call(changing.controller.open, changing.settings, make, beginning)
    both = [{"port": UP, "to": FIRST}, {"port": UP + 1, "to": SECOND}]
    changing.add("leaf", uplink=both)
    wait_until(lambda: not changing.status()["leaf"].problem, "it to be heard")
    assert list(changing.status()["leaf"].parents) == [FIRST, SECOND]
    said = changing.refused(lambda: changing.add("other", switch="o:1", address=["127.0.0.1:40101"], uplink=both[0]))
    assert "is not, although both are below" in said
    changing.remove(FIRST)
    changing.wait_for(SECOND, "leaf")
    assert list(changing.status()["leaf"].parents) == [SECOND]
    assert (changing.status()["leaf"].state, changing.status()["leaf"].problem) == ("Ready", "")
    assert f"the switch {SECOND} has leaf below it; remove those first" in changing.refused(
        lambda: changing.remove(SECOND)
    )
    kept = changes_from(json.loads(json.dumps(changing.controller.fabric.changes().to_json())), changing.settings)
    beginning = kept.begin_with(specs_of(changing.settings))
    assert [(one.name, len(one.uplinks)) for one in beginning.specs] == [(SECOND, 0), ("leaf", 2)]
