# SPDX-License-Identifier: Apache-2.0
"""A job is moved to other slots when all its ranks hold; otherwise it stays where it is, and goes on."""

from __future__ import annotations

import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.job import Job
from p4reduce_controller.jobs.slot_compaction import CHECK_INTERVAL_S, LONG_COOLDOWN_S, PAUSE_TIMEOUT_S
from p4reduce_controller.switches.availability import Unavailable
from p4reduce_controller.switches.pools import SlotRange
from tests.support.controller.jobs_harness import ONE, CompactionHarness, ThreadsHarness

pytestmark = pytest.mark.usefixtures("few_slots_do")


def test_a_job_is_moved_when_all_its_ranks_hold_and_who_waited_is_let_in() -> None:
    harness = CompactionHarness()
    waiting = harness.make_room()
    assert harness.asked("c") == [[0], [0]]
    assert harness.asked("a") == [[], []]
    harness.hold("c", 7, rank=0, quiet=False)
    harness.hold("c", 9, rank=1, quiet=False)
    assert harness.asked("c") == [[0, 9], [0]], "who is behind catches up"
    harness.hold("c", 9, rank=0)
    assert not harness.changes
    harness.hold("c", 9, rank=1)
    [job] = harness.changes
    assert job is harness.job("c")
    placement = job.placements[0]
    assert (placement.slots, placement.first_seq) == (SlotRange(4, 4), 100)
    assert harness.jobs.pools[0].used == 12, "some switch may have it where it was"
    harness.tick(60.0)
    assert harness.kinds(waiting)[-1] == "waiting"
    assert harness.released("c") == [[], []]
    harness.moved()
    assert harness.released("c") == [[(4, 100)], [(4, 100)]]
    assert harness.jobs.pools[0].used == 8
    harness.tick(0.1)
    assert harness.kinds(waiting)[-1] == "assigned"
    assert harness.job("d").ranges == {0: SlotRange(8, 8)}


def test_ranks_that_do_not_hold_soon_go_on_as_they_were_and_are_left_alone_for_long() -> None:
    harness = CompactionHarness()
    harness.make_room()
    harness.hold("c", 7, rank=0, quiet=False)
    harness.tick(PAUSE_TIMEOUT_S)
    assert harness.released("c") == [[(0, 0)], [(0, 0)]]
    assert harness.job("c").ranges == {0: SlotRange(8, 4)}
    harness.tick(LONG_COOLDOWN_S / 2)
    assert harness.asked("c") == [[0], [0]]
    harness.tick(LONG_COOLDOWN_S)
    assert harness.asked("c") == [[0, 0], [0, 0]]


def test_ranks_of_different_rounds_stay_where_they_are() -> None:
    harness = CompactionHarness()
    harness.make_room()
    harness.hold("c", 7, rank=0, first_seq=100)
    harness.hold("c", 7, rank=1, first_seq=102)
    assert not harness.changes
    assert harness.released("c") == [[(0, 0)], [(0, 0)]]


@pytest.mark.parametrize("changing", [False, True])
def test_a_rank_that_is_lost_meanwhile_ends_the_job_and_all_its_slots_are_freed(changing: bool) -> None:
    harness = CompactionHarness()
    waiting = harness.make_room()
    harness.hold("c", 7, rank=0)
    if changing:
        harness.hold("c", 7, rank=1)
        assert harness.changes
    harness.lose(harness.sessions["c"][1])
    assert harness.last(harness.sessions["c"][0]).reason == pb.WORKER_LOST
    if changing:
        harness.moved()  # too late
        assert harness.released("c") == [[], []]
    harness.removed()
    assert harness.jobs.pools[0].used == 4
    harness.tick(CHECK_INTERVAL_S)
    assert harness.kinds(waiting)[-1] == "assigned"


def test_what_could_not_be_kept_is_undone() -> None:
    harness = CompactionHarness()
    harness.make_room()
    first_seq = harness.job("c").first_seq
    harness.all_hold("c", 7)
    [job] = harness.changes
    harness.jobs.not_moved(job, "no space left on the device", harness.now)
    harness.carry_out()
    assert (job.ranges, job.slots, job.first_seq) == ({0: SlotRange(8, 4)}, 4, first_seq)
    assert (job.placements[0].slots, job.placements[0].first_seq) == (SlotRange(8, 4), first_seq)
    assert harness.released("c") == [[(0, 0)], [(0, 0)]]
    assert harness.jobs.pools[0].used == 8


def test_who_cannot_hold_is_not_asked() -> None:
    harness = CompactionHarness(holds=False)
    harness.queue(8)
    harness.tick(60.0)
    assert harness.asked("a") + harness.asked("c") == [[], [], [], []]


def test_ranks_that_share_memory_are_not_asked() -> None:
    harness = CompactionHarness("")
    harness.sessions = {name: harness.begin(name, 4, host="here") for name in "abc"}
    harness.leave(harness.sessions["b"][0])
    harness.leave(harness.sessions["b"][1])
    harness.removed()
    harness.make_room()
    assert harness.changes
    assert harness.asked("a") == harness.asked("c") == [[], []]


def test_a_job_of_several_threads_in_memory_is_left_where_it_is() -> None:
    harness = ThreadsHarness(ONE)
    gone = harness.enter(0, 1, "gone", slots=1, threads=1)
    assert harness.hear(gone, thread=0)
    harness.installed()
    harness.installs.clear()
    harness.all_heard(0, 0, slots=8, host="one")
    harness.installed()
    harness.leave(gone)
    harness.removed()
    job = harness.jobs.named("job")
    assert job.in_memory
    harness.join(0, 1, "waits", slots=8, queue_s=100.0)
    harness.tick(CHECK_INTERVAL_S)
    assert not harness.changes
    assert (job.slots, harness.jobs.pools[0].used) == (8, 8)


def test_an_error_of_ours_in_looking_costs_nobody_anything(caplog: pytest.LogCaptureFixture) -> None:
    harness = CompactionHarness()

    def fails(_: list[Job]) -> None:
        raise RuntimeError("ours")

    harness.jobs._compaction._wanted, wanted = fails, harness.jobs._compaction._wanted
    harness.make_room()
    assert "no slots are moved for the next 60 s" in caplog.text
    harness.jobs._compaction._wanted = wanted
    harness.tick(LONG_COOLDOWN_S / 2)
    assert harness.asked("c") == [[], []]
    harness.tick(LONG_COOLDOWN_S)
    assert harness.asked("c") == [[0], [0]]


def test_a_job_is_not_moved_while_its_switch_is_away() -> None:
    harness = CompactionHarness()
    away = [Unavailable("it is not reached", brief=True)]
    harness.switches.conditions = lambda _: away  # type: ignore[method-assign]
    harness.make_room()
    assert harness.asked("c") == [[], []]
    away.clear()
    harness.tick(CHECK_INTERVAL_S)
    harness.hold("c", 7, rank=0)
    away.append(Unavailable("it is not reached"))
    harness.hold("c", 7, rank=1)
    assert not harness.changes
    assert harness.released("c") == [[(0, 0)], [(0, 0)]]


def test_who_does_not_hold_is_asked_ever_more_rarely_and_after_the_others() -> None:
    harness = CompactionHarness()
    harness.queue(8)
    asked = 0
    for _ in range(int(1000 / (10 * PAUSE_TIMEOUT_S))):
        harness.tick(10 * PAUSE_TIMEOUT_S)
        asked += bool(harness.asked("c")[0])
        harness.told.clear()
    assert 4 <= asked <= 6, "after 60, 120, 240 and 480 s"
    [other] = [harness.begin("e", 4, holds=True)]
    harness.jobs._compaction._look_at = harness.now  # e is at 4 to 8; a, c and e are in a row
    harness.sessions["e"] = other
    assert harness.job("e").ranges == {0: SlotRange(4, 4)}
    harness.job("c").cooldown_until = harness.now
    tried: list[list[str]] = []

    def wanted(jobs: list[Job]) -> None:
        tried.append([job.name for job in jobs])

    harness.jobs._compaction._wanted = wanted
    harness.job("a").tenant, harness.job("c").tenant = "anna", "carla"
    harness.job("e").tenant = "carla"
    harness.tick(CHECK_INTERVAL_S)
    assert tried == [["a"], ["a", "e"], ["a", "c", "e"]]
