# SPDX-License-Identifier: Apache-2.0
"""Jobs whose ranks have several engine threads: each has a share of the slots, with numbers and entries of its own."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from p4reduce_controller.fabric.slots import look
from p4reduce_controller.jobs.placement import find_slots
from p4reduce_controller.service.status import _job as told_of
from p4reduce_controller.store.state import StateError
from p4reduce_controller.switches.aggregator import Layout, Parent
from p4reduce_controller.switches.pools import SlotPool, SlotRange
from p4reduce_controller.switches.site import Site
from p4reduce_controller.switches.trees import Trees
from tests.support.controller.fake_switch import FakeSwitch
from tests.support.controller.jobs_harness import ADDRESSES, LEAF1, LEAF2, ONE, SPINE, TWO_LEAVES, UP, ThreadsHarness
from tests.support.controller.stored_jobs import StoredJobs, as_version_3, entries

TWO = Trees(["one", "two"])


def test_each_thread_is_a_job_of_its_own_to_the_switch() -> None:
    harness = ThreadsHarness(ONE)
    sessions = harness.all_heard(0, 0)
    numbers = {placement.job for placement in harness.placements()}
    assert len(numbers) == 3
    assert [placement.slots for placement in harness.placements()] == [
        SlotRange(0, 2),
        SlotRange(2, 2),
        SlotRange(4, 3),
    ]
    ports = [[worker.sender.udp_port for worker in placement.workers] for placement in harness.placements()]
    assert ports == [[5000, 5001], [5100, 5101], [5200, 5201]]
    assert len({(one.first_seq, one.abort_secret) for one in harness.placements()}) == 1
    assert harness.jobs.pools[0].used == 7
    harness.installed()
    assert [harness.told[session][-1].WhichOneof("message") for session in sessions] == ["ready", "ready"]
    harness.lose(sessions[0])
    harness.removed()
    assert harness.jobs.pools[0].used == 0
    harness.all_heard(0, 0, name="next")
    assert {placement.job for placement in harness.placements()} == numbers  # which are free again


def test_every_thread_has_to_be_heard() -> None:
    harness = ThreadsHarness(ONE)
    session = harness.enter(0, 1)
    assert harness.hear(session, thread=0)
    assert harness.hear(session, thread=2)
    assert not harness.hear(session, thread=2)
    assert not harness.installs
    harness.tick(100)
    (abort,) = [said.abort for said in harness.told[session] if said.HasField("abort")]
    assert abort.message.count("rank 0 joined, but no HELLO from there reached the switch at 10.0.255.0:31314") == 1


def test_slots_are_dealt_over_switches_within_each_thread() -> None:
    harness = ThreadsHarness(TWO)
    session = harness.enter(0, 1)
    assert [at.tree for at in harness.assigned(session).aggregators] == [0, 1]
    for thread in range(3):
        for switch in (0, 1):
            assert harness.hear(session, switch, thread=thread)
    (job,) = harness.installs
    assert [job.ranges[place].count for place in range(6)] == [1, 1, 1, 1, 2, 2]
    assert [placement.job for placement in job.placements.values()] == [1, 1, 2, 2, 3, 3]


@given(threads=st.integers(1, 16), slots=st.integers(1, 512), trees=st.integers(1, 2))
def test_every_thread_has_a_pool_as_large_as_its_share(threads: int, slots: int, trees: int) -> None:
    assume(threads <= slots)
    names = [str(tree) for tree in range(trees)]
    site = Site(Layout(4, 64, 512), tuple(ADDRESSES[:trees]), Trees(names)).for_threads(threads)
    pools = {switch: SlotPool(512) for switch in range(trees)}
    ranges = find_slots(site, slots, pools, range(threads * trees))
    for place, taken in sorted(ranges.items()):
        pools[place % trees].take(taken)  # which none of the others has
    there = [site.slot_at(2 * slot, slots) for slot in range(slots)]
    assert len(set(there)) == slots
    for place, taken in ranges.items():
        own = sum(at == place for at, _ in there)
        assert own <= taken.count <= own + (trees > 1)
        assert all(half < 2 * taken.count for at, half in there if at == place)
    assert pools[0].used == slots if trees == 1 else pools[0].used <= slots // 2 + threads


def test_a_job_may_have_all_slots_of_a_switch() -> None:
    harness = ThreadsHarness(ONE)
    harness.all_heard(0, slots=16)
    assert [placement.slots.count for placement in harness.placements()] == [5, 5, 6]
    assert harness.jobs.pools[0].free == 0


def test_a_tree_for_each_thread() -> None:
    harness = ThreadsHarness(TWO_LEAVES)
    sessions = harness.all_heard(LEAF1, LEAF2)
    (job,) = harness.installs
    assert sorted(job.placements) == list(range(9))
    for thread in range(3):
        spine, *leaves = (job.placements[3 * thread + switch] for switch in (SPINE, LEAF1, LEAF2))
        assert {one.job for one in (spine, *leaves)} == {job.numbers[thread][0]}
        assert [leaf.parent for leaf in leaves] == [Parent(UP, ADDRESSES[SPINE], index) for index in range(2)]
        assert [worker.sender for worker in spine.workers] == ADDRESSES[1:]
    harness.installed()
    ready = [harness.told[session][-1].ready for session in sessions]
    assert [list(one.aggregators) for one in ready] == [[1, 4, 7], [2, 5, 8]]
    assert [list(one.peers) for one in ready] == [[0], [1]]


@pytest.mark.parametrize(
    ("trees", "options", "text"),
    [
        (ONE, {"threads": 17, "slots": 16}, "threads=17: must be at most 16"),
        (ONE, {"threads": 3, "slots": 2}, "threads=3 of 2 slots, and each needs one of its own"),
        (ONE, {"threads": 5, "slots": 0}, "threads=5 of 4 slots, and each needs one of its own"),
        (ONE, {"threads": 5, "slots": 17}, "slots=17, and the switch has 16"),
        (TWO, {"threads": 3, "slots": 32}, "slots=32 of threads=3 take 17 at each switch, which has 16"),
    ],
)
def test_what_cannot_be_is_refused(trees: Trees, options: dict[str, int], text: str) -> None:
    harness = ThreadsHarness(trees)
    session = harness.join(0, 1, **options)
    assert text in harness.last(session).message
    assert harness.jobs.pools[0].used == 0


def test_ranks_have_to_agree() -> None:
    harness = ThreadsHarness(ONE)
    first, second = harness.enter(0), harness.enter(1, threads=1)
    assert "rank 1 is refused: it has threads=1, but rank 0 said 3" in harness.last(second).message
    assert "threads=1, but rank 0 said 3" in harness.last(first).message


def test_numbers_that_are_not_enough_are_not_taken() -> None:
    harness = ThreadsHarness(ONE)
    harness.jobs._registry._numbers._last = 2
    assert "all 2 job numbers are in use" in harness.last(harness.enter(0, 1)).message
    assert harness.hear(harness.enter(0, 1, "small", threads=2), thread=1)


def test_a_look_is_at_the_threads_own_slots() -> None:
    harness = ThreadsHarness(ONE)
    harness.all_heard(0)
    (job,) = harness.installs

    async def work() -> tuple[list[int], list[str]]:
        switch = FakeSwitch()
        switch._connected.set()
        switch.halves = dict.fromkeys(range(32), (0, 1))
        return [(await look(job, half, {0: switch})).half for half in range(14)], switch.log

    looked, log = asyncio.run(work())
    assert looked == list(range(14))
    assert log == [f"query {half}" for half in range(14)]


def test_the_state_file_keeps_them(tmp_path: Path) -> None:
    stored = StoredJobs(tmp_path)
    stored.harness = harness = ThreadsHarness(TWO_LEAVES)
    stored.job("plain", LEAF1)
    harness.installs.clear()
    harness.all_heard(LEAF1, LEAF2)
    (before,) = harness.installs
    harness.installed()
    stored.save()
    after = {job.name: job for job in stored.restored()}["job"]
    assert (after.numbers, after.ranges) == (before.numbers, before.ranges)
    assert entries(after.placements) == entries(before.placements)
    text = stored.path.read_text()
    older = as_version_3(json.loads(text), stored.harness.switches.site, stored.setup())
    assert any(job["slots_elsewhere"] for job in older["jobs"])
    stored.path.write_text(json.dumps(older))
    assert {job.name: job for job in stored.restored()}["job"].ranges == before.ranges
    stored.path.write_text(text.replace('"more_numbers": [\n    [', '"more_numbers": [\n    [70000,', 1))
    with pytest.raises(StateError, match=r"more_numbers has \[70000"):
        stored.load()


def test_the_numbers_of_all_threads_are_told() -> None:
    """Packets of a job are known by these numbers."""
    harness = ThreadsHarness(ONE)
    harness.all_heard(0)
    (job,) = harness.installs
    told = told_of(job, {0: FakeSwitch(16, 0)}, 0.0)
    assert [told.number, *told.more_numbers] == [number for number, _ in job.numbers]
    assert len(told.more_numbers) == 2
