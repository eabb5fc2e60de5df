# SPDX-License-Identifier: Apache-2.0
"""If a switch of a job dies, the slots of its tree go on at the switches of another tree."""

from __future__ import annotations

import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.job import State, TakeoverStage
from p4reduce_controller.service import status
from p4reduce_controller.switches.aggregator import Counted
from tests.support.controller.failover import RANKS, SLOTS, SWITCHES, FailoverHarness, restarted, resumes, suspends
from tests.support.controller.jobs_harness import rejoin


def test_the_slots_go_on_at_another_switch() -> None:
    harness = FailoverHarness()
    own = harness.job.placements
    harness.kill(1)
    assert harness.job.lost_trees == {1}
    assert not suspends(harness, harness.sessions[0])  # a later controller would not know of it yet
    takeover = harness.stored()
    for session in harness.sessions:
        assert suspends(harness, session) == [pb.Suspend(aggregator=1, number=takeover.number)]
    harness.ask(harness.sessions[1], 2)  # nothing new
    harness.jobs.rounds(harness.sessions[0], pb.Rounds(number=takeover.number ^ 1, rounds=[7, 7]))
    harness.tell_rounds(takeover, [2**32 - 1, 8], [0, 8])
    [(at, placement)] = takeover.placements.items()
    assert at == takeover.via == 0
    assert placement.rounds == (2**32 - 1, 8)
    assert placement.slots.first == own[0].slots.end
    assert placement.slots.count == own[1].slots.count
    assert placement.workers == own[0].workers
    assert [(placement.job, placement.generation)] == list(takeover.jobs)
    assert placement.job not in {one.job for one in own.values()}
    assert not resumes(harness, harness.sessions[0])
    harness.taken_over()
    [(number, generation)] = takeover.jobs
    for session in harness.sessions:
        assert resumes(harness, session) == [
            pb.Resume(aggregator=1, number=takeover.number, via=0, job=number << 16 | generation, rounds=[2**32 - 1, 8])
        ]
    assert harness.job.placements_of(1) == takeover.placements
    assert not harness.job.movable
    for session in harness.sessions:
        harness.leave(session)
    harness.removed()
    assert all(harness.jobs.pool(number).free == 8 for number in range(SWITCHES))


@pytest.mark.parametrize("asks", range(3))
def test_the_slots_of_all_threads_go_on_at_another_switch(asks: int) -> None:
    """The threads have two, two and three of seven slots: at the second switch, each has one."""
    harness = FailoverHarness(threads=3, slots=7, pool=9)
    own = harness.job.placements
    harness.kill(1, half=2 * (1, 3, 5)[asks])
    takeover = harness.stored()
    assert [len(suspends(harness, session)) for session in harness.sessions] == [1, 1]
    harness.tell_rounds(takeover, [4, 5, 6], [4, 6, 5])
    assert [one.rounds for _, one in sorted(takeover.placements.items())] == [(4,), (5,), (5,)]
    assert [(one.job, one.generation) for _, one in sorted(takeover.placements.items())] == list(takeover.jobs)
    assert {one.slots.count for one in takeover.placements.values()} == {1}
    assert len({number for number, _ in takeover.jobs} | {one.job for one in own.values()}) == 6
    harness.taken_over()
    first, *more = [number << 16 | generation for number, generation in takeover.jobs]
    for session in harness.sessions:
        assert resumes(harness, session) == [
            pb.Resume(aggregator=1, number=takeover.number, via=0, job=first, more_jobs=more, rounds=[4, 5, 5])
        ]
    assert {at: one for tree in (1, 4, 7) for at, one in harness.job.placements_of(tree).items()} == takeover.placements
    harness.kill(0, half=2 * (0, 2, 4)[asks])
    second = harness.stored()
    assert (second.tree, second.via) == (0, 2)
    harness.tell_rounds(second, *[[4] * 3] * RANKS)
    assert [one.rounds for _, one in sorted(second.placements.items())] == [(4,), (4,), (4,)]
    harness.taken_over()
    harness.kill(0, half=2 * (1, 3, 5)[asks])
    harness.tick()
    third = harness.take_over(3)
    assert (third.tree, third.via) == (1, 2)
    for session in harness.sessions:
        harness.leave(session)
    harness.removed()
    assert all(harness.jobs.pool(number).free == 9 for number in range(SWITCHES))


def test_an_aggregator_without_slots_of_a_thread() -> None:
    """Threads have one slot each, all at the first switch, but the pools at the others have one as well."""
    harness = FailoverHarness(threads=2, slots=2)
    assert harness.jobs.lost_at(harness.job, 1, {harness.job.number}, "it was restarted", harness.now)
    harness.carry_out()
    takeover = harness.stored()
    harness.tell_rounds(takeover, [], [])
    assert {one.rounds for one in takeover.placements.values()} == {()}
    harness.taken_over()
    assert all(len(resumes(harness, session)) == 1 for session in harness.sessions)


def test_slots_of_all_threads_stay_if_there_is_no_room_for_one() -> None:
    harness = FailoverHarness(threads=2)
    pools = [harness.jobs.pool(number) for number in (0, 2)]
    for pool in pools:
        pool.take(pool.find(pool.free - 1))
    harness.kill(1)
    assert not harness.keeps
    assert [pool.free for pool in pools] == [1, 1]


def test_the_traffic_of_slots_that_are_elsewhere_is_the_jobs() -> None:
    harness = FailoverHarness(threads=2)
    harness.kill(1)
    takeover = harness.take_over()
    at_first = {pair: Counted(10, 100) for pair in (*harness.job.every_number, *takeover.jobs)}
    strangers = {(number, generation ^ 1): Counted(1, 1) for number, generation in takeover.jobs}
    [traffic] = status._traffic(harness.job, [at_first | strangers, strangers])
    assert (traffic.switch, traffic.packets, traffic.bytes) == (0, 40, 400)


@pytest.mark.parametrize("number", range(3))
def test_a_switch_that_lacks_the_entries_of_one_thread(number: int) -> None:
    harness = FailoverHarness(threads=3)
    lost = harness.job.numbers[3 * number][0]
    assert harness.jobs.lost_at(harness.job, 1, {lost}, "it was restarted", harness.now)
    harness.carry_out()
    assert harness.take_over(3).tree == 1


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("why_not", ["all well", "old rank", "leaving", "turned off", "none left", "a short half"])
def test_a_job_that_cannot_go_on_elsewhere_stays(why_not: str, threads: int) -> None:
    """An old rank with several threads does not say `moves` in Join."""
    harness = FailoverHarness(threads=threads, moves_slots=why_not != "turned off", moves=why_not != "old rank")
    if why_not == "leaving":
        harness.leave(harness.sessions[1])
    dead = {"all well": [], "none left": [1, 0, 2]}.get(why_not, [1])
    if dead:
        harness.kill(*dead, half=2 * SLOTS if why_not == "a short half" else None)
    else:
        harness.ask(harness.sessions[0], 2)
    assert not harness.keeps
    assert not harness.job.lost_trees
    assert harness.job.state is State.READY


@pytest.mark.parametrize("is_back", [True, False])
def test_a_switch_that_dies_while_a_job_gathers_is_left_out_unless_it_is_soon_back(is_back: bool) -> None:
    harness = FailoverHarness()
    sessions = [harness.join(rank, RANKS, "late", slots=3) for rank in range(RANKS)]
    harness.switches.dead, harness.switches.brief = frozenset({1}), True
    for session in sessions:
        for switch in range(SWITCHES):
            harness.hear(session, switch, port=5 + switch)
    [late] = [job for job in harness.jobs if job.name == "late"]
    harness.tick(0.1)
    assert late.state is State.GATHERING
    harness.switches.brief = False
    harness.switches.dead -= {1} if is_back else set()
    harness.tick(0.1)
    assert late.state is State.INSTALLING
    assert len(late.site.trees.roots) == (SWITCHES if is_back else SWITCHES - 1)


def test_a_switch_may_turn_out_to_be_dead_soon_after_the_question() -> None:
    """The controller may notice later than the ranks that a connection or a link is gone."""
    harness = FailoverHarness()
    harness.ask(harness.sessions[0], 2)
    harness.tick(3)
    assert not harness.keeps
    harness.switches.dead |= {1}
    harness.tick(0.1)
    assert harness.take_over().tree == 1
    harness.ask(harness.sessions[0], 4)
    harness.tick(4)
    harness.switches.dead |= {2}
    harness.tick(0.1)  # nobody misses it
    assert not harness.keeps


def test_the_switch_that_took_over_may_die_as_well() -> None:
    harness = FailoverHarness()
    harness.kill(1)
    first = harness.take_over()
    harness.kill(0)
    second = harness.take_over()
    harness.kill(0, half=2)  # the rank gets no answer from the first tree's slots, which were at the second's
    harness.tick()
    third = harness.take_over()
    assert [(one.tree, one.via) for one in (first, second, third)] == [(1, 0), (0, 2), (1, 2)]
    assert len({one.jobs for one in (first, second, third)}) == 3
    assert harness.job.placements_of(1) == third.placements
    harness.kill(2, half=4)
    assert not harness.keeps
    assert harness.job.state is State.READY  # it waits, as a job at one switch does


def test_another_switch_is_tried_if_one_fails() -> None:
    harness = FailoverHarness()
    harness.kill(1)
    first = harness.stored()
    harness.tell_rounds(first, [4, 4], [4, 5])
    harness.taken_over("the switch has no room")
    assert first.stage is TakeoverStage.FAILED
    second = harness.stored()
    assert second.via == 2
    harness.tell_rounds(second, [4, 4], [4, 5])
    harness.taken_over("it has none either")
    abort = harness.last(harness.sessions[0])
    assert abort.reason == pb.SWITCH_LOST
    problem = "the switch has no room; it has none either, and no other tree of switches can have them"
    assert f"it is dead; {problem}" in abort.message
    harness.removed()
    assert all(harness.jobs.pool(number).free == 8 for number in range(SWITCHES))


def test_a_switch_without_room_is_not_taken() -> None:
    harness = FailoverHarness()
    for number in (0, 2):
        pool = harness.jobs.pool(number)
        pool.take(pool.find(5))
    harness.kill(1)
    assert not harness.keeps
    assert not harness.job.lost_trees
    assert harness.job.state is State.READY


def test_a_switch_that_comes_back_empty_ends_no_job_that_can_go_on() -> None:
    harness = FailoverHarness()
    number = harness.job.number

    def lost() -> bool:
        lives = harness.jobs.lost_at(harness.job, 1, {number}, "it was restarted", harness.now)
        harness.carry_out()
        return lives

    assert lost()
    takeover = harness.take_over()
    assert takeover.tree == 1
    assert lost()  # its own slots are not there any more
    assert not harness.keeps
    assert harness.jobs.lost_at(harness.job, takeover.via, {number + 77}, "it was restarted", harness.now)
    assert not harness.keeps
    harness.switches.dead = frozenset({0, 2})
    [(number, _)] = takeover.jobs
    assert not harness.jobs.lost_at(harness.job, takeover.via, {number}, "it was restarted", harness.now)


@pytest.mark.parametrize("moves_slots", [True, False])
@pytest.mark.parametrize("others_connected", [True, False])
def test_a_switch_that_comes_back_empty_has_lost_no_slots_that_are_elsewhere(
    moves_slots: bool, others_connected: bool
) -> None:
    """A later controller may hear of it before it has any of these slots anywhere, and while it moves them."""
    harness = FailoverHarness()
    harness.kill(1)
    harness.take_over()
    later = restarted(harness, moves_slots=moves_slots)

    def comes_back_empty() -> bool:
        lives = later.jobs.lost_at(later.job, 1, {later.job.number}, "it was restarted", later.now)
        later.carry_out()
        return lives

    later.switches.dead = frozenset() if others_connected else frozenset({0, 2})
    assert comes_back_empty()
    assert not later.keeps
    later.switches.dead = frozenset()
    later.sessions = [rejoin(later, later.job, rank) for rank in range(RANKS)]
    later.tick()
    assert comes_back_empty()
    assert later.take_over().tree == 1
    assert comes_back_empty()
    assert not later.keeps


@pytest.mark.parametrize("stage", [TakeoverStage.SUSPENDING, TakeoverStage.INSTALLING])
def test_a_switch_that_comes_back_empty_ends_no_takeover(stage: TakeoverStage) -> None:
    """Not even if no other takeover could begin, because a rank's process has ended."""
    harness = FailoverHarness()
    harness.kill(1)
    takeover = harness.stored()
    harness.leave(harness.sessions[1], lingers=True)
    if stage is TakeoverStage.INSTALLING:
        harness.tell_rounds(takeover, [4, 4], [4, 5])
    else:
        harness.jobs.rounds(harness.sessions[1], pb.Rounds(number=takeover.number, rounds=[4, 5]))
    harness.jobs.lost(harness.sessions[1])
    assert takeover.stage is stage
    assert harness.jobs.lost_at(harness.job, 1, {harness.job.number}, "it was restarted", harness.now)


def test_a_switch_that_comes_back_empty_ends_a_job_that_cannot_go_on() -> None:
    harness = FailoverHarness(moves=False)
    assert not harness.jobs.lost_at(harness.job, 1, {harness.job.number}, "it was restarted", harness.now)
    assert not harness.job.lost_trees


@pytest.mark.parametrize("stage", list(TakeoverStage))
def test_a_job_that_ends_at_any_stage_frees_everything(stage: TakeoverStage) -> None:
    harness = FailoverHarness()
    harness.kill(1)
    if stage is not TakeoverStage.STORING:
        takeover = harness.stored()
        if stage is not TakeoverStage.SUSPENDING:
            harness.tell_rounds(takeover, [4, 4], [4, 5])
        if stage in (TakeoverStage.DONE, TakeoverStage.FAILED):
            harness.taken_over("it has failed" if stage is TakeoverStage.FAILED else "")
    assert stage in {one.stage for one in harness.job.takeovers}
    harness.lose(harness.sessions[1])
    assert harness.last(harness.sessions[0]).rank == 1
    for job, takeover in harness.keeps:
        harness.jobs.stored(job, takeover)  # comes too late
    for job, takeover in harness.takeovers:
        assert not harness.jobs.taken_over(job, takeover, "", harness.now)
    harness.carry_out()
    assert harness.kinds(harness.sessions[0])[-1] == "abort"
    harness.removed()
    assert not list(harness.jobs)
    assert all(harness.jobs.pool(number).free == 8 for number in range(SWITCHES))
    numbers = {harness.join(0, 1, f"job {count}") for count in range(3)}  # numbers are free as well
    assert len(numbers) == 3


def test_the_other_switch_may_lose_the_new_entries_while_they_are_installed() -> None:
    """Other switches of its tree may still be busy then, so that the installation ends without an error."""
    harness = FailoverHarness()
    harness.kill(1)
    first = harness.stored()
    harness.tell_rounds(first, [4, 4], [4, 5])
    assert harness.jobs.lost_at(harness.job, 0, {harness.job.number, first.jobs[0][0]}, "it was restarted", harness.now)
    harness.carry_out()
    second = harness.stored()
    assert (second.tree, second.via) == (0, 2)
    harness.taken_over()
    assert first.stage is TakeoverStage.FAILED
    third = harness.stored()
    assert (third.tree, third.via) == (1, 2)
    assert not resumes(harness, harness.sessions[0])


def test_the_other_tree_may_be_lost_in_a_takeover_that_ends_earlier() -> None:
    """Its own slots have gone on elsewhere, so ranks could not move others to it: a rank refuses that, and fails."""
    harness = FailoverHarness()
    harness.kill(1)
    harness.switches.dead = frozenset()
    assert harness.jobs.lost_at(harness.job, 0, {harness.job.number}, "it was restarted", harness.now)
    harness.carry_out()
    waiting = harness.keeps.pop(0)  # it could not be stored at once
    later = harness.take_over()
    assert (later.tree, later.via) == (0, 2)
    harness.keeps.append(waiting)
    first = harness.stored()
    assert (first.tree, first.via) == (1, 0)
    harness.tell_rounds(first, [4, 4], [4, 5])
    harness.taken_over()
    assert first.stage is TakeoverStage.FAILED
    assert [one.aggregator for one in resumes(harness, harness.sessions[0])] == [0]
    second = harness.take_over()
    assert (second.tree, second.via) == (1, 2)
