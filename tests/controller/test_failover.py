# SPDX-License-Identifier: Apache-2.0
"""If a switch of a job dies, the slots of its tree go on at the switches of another tree."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.deadlines import LEAVE_GRACE
from p4reduce_controller.jobs.failover import ROUNDS_TIMEOUT, STRANDED_TIMEOUT
from p4reduce_controller.jobs.gathering import SPARE_WAIT
from p4reduce_controller.jobs.job import Job, Rounds, State, Takeover, TakeoverStage
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.jobs.lifecycle import JobOptions, digest
from p4reduce_controller.jobs.switches import Switches
from p4reduce_controller.service import status
from p4reduce_controller.switches.aggregator import Counted, Layout
from p4reduce_controller.switches.availability import SwitchState, Unavailable
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.trees import Trees
from tests.support.controller.jobs_harness import JobsHarness, rejoin

SWITCHES, RANKS, SLOTS = 3, 2, 6


class MortalSwitches(Switches):
    """Switches of which some are dead."""

    dead: frozenset[int] = frozenset()
    brief = False

    draining: frozenset[int] = frozenset()

    def conditions(self, number: int) -> Iterable[Unavailable]:
        if number in self.dead:
            yield Unavailable("it is dead", brief=self.brief)
        if number in self.draining:
            yield Unavailable("it is being drained", SwitchState.DRAINING)


class FailoverHarness(JobsHarness):
    """A job of two ranks with six slots at three switches, each of which has eight.

    `pool`: how many those have. `spare_switches`: how many of them are spares.
    """

    def __init__(
        self,
        *,
        moves_slots: bool = True,
        threads: int = 1,
        slots: int = SLOTS,
        pool: int = 8,
        spare_switches: int = 0,
        **join: object,
    ) -> None:
        super().__init__()
        addresses = [Endpoint(f"02:00:0a:00:00:f{at}", f"10.0.0.25{at}", 31314) for at in range(SWITCHES)]
        spares = frozenset(range(SWITCHES)[SWITCHES - spare_switches :])
        trees = Trees([str(address) for address in addresses], spares=spares)
        self.switches: MortalSwitches = MortalSwitches(Layout(4, 64, pool), addresses, trees)
        self.jobs = Jobs(self.switches, JobOptions(moves_slots=moves_slots))
        join = {"moves": True, "spares": True, "slots": slots, "threads": threads if threads > 1 else 0, **join}
        self.sessions = [self.join(rank, RANKS, **join) for rank in range(RANKS)]
        for session in self.sessions:
            for switch in range(SWITCHES):
                for thread in range(threads):
                    self.hear(session, switch, port=5 + switch, thread=thread)
        self.installed()
        for rank, member in self.job.members.items():
            member.key = digest(str(rank))

    @property
    def job(self) -> Job:
        [job] = self.jobs
        return job

    def kill(self, *switches: int, half: int | None = None) -> None:
        """Let switches die, and a rank ask about a half there."""
        self.switches.dead |= set(switches)
        self.ask(self.sessions[0], 2 * switches[0] if half is None else half)

    def stored(self) -> Takeover:
        """Store the one takeover that is to be kept."""
        [(job, takeover)] = self.keeps
        self.keeps.clear()
        self.jobs.stored(job, takeover)
        self.carry_out()
        return takeover

    def tell_rounds(self, takeover: Takeover, *rounds: list[int]) -> None:
        for session, own in zip(self.sessions, rounds, strict=True):
            self.jobs.rounds(session, pb.Rounds(number=takeover.number, rounds=own))
            self.carry_out()

    def taken_over(self, problem: str = "") -> None:
        [(job, takeover)] = self.takeovers
        self.takeovers.clear()
        self.jobs.taken_over(job, takeover, problem, self.now)
        self.carry_out()

    def take_over(self, slots: int = 2) -> Takeover:
        """Run a takeover of so many slots to its end."""
        takeover = self.stored()
        self.tell_rounds(takeover, *[[4] * slots] * RANKS)
        self.taken_over()
        return takeover


def restarted(harness: FailoverHarness, *, moves_slots: bool = True) -> FailoverHarness:
    """Return the harness of a later controller, which has restored the job. All ranks are away."""
    later = FailoverHarness.__new__(FailoverHarness)
    JobsHarness.__init__(later)
    later.switches, later.now = harness.switches, harness.now
    later.jobs = Jobs(later.switches, JobOptions(moves_slots=moves_slots))
    later.sessions = list(harness.sessions)
    job = harness.job
    job.takeovers.clear()
    for member in job.members.values():
        member.session = None
    later.jobs.restore([job], {})
    later.jobs.expect_returns(later.now)
    return later


def suspends(harness: JobsHarness, session: object) -> list[pb.Suspend]:
    return [message.suspend for message in harness.told[session] if message.HasField("suspend")]


def resumes(harness: JobsHarness, session: object) -> list[pb.Resume]:
    return [message.resume for message in harness.told[session] if message.HasField("resume")]


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


def test_a_rank_that_cannot_suspend_its_slots_ends_the_job() -> None:
    harness = FailoverHarness()
    harness.kill(1)
    harness.jobs.rounds(harness.sessions[1], pb.Rounds(number=harness.stored().number, rounds=[4]))
    harness.carry_out()
    abort = harness.last(harness.sessions[0])
    assert (abort.rank, abort.reason) == (1, pb.SWITCH_LOST)
    assert "rank 1 cannot move its slots: it has told 1 rounds, of 2 slots" in abort.message


@pytest.mark.parametrize("leaves_first", [True, False])
def test_a_rank_that_has_no_operations_any_more_is_not_blamed(leaves_first: bool) -> None:
    """Its engine has ended, before the controller knows that it leaves or after."""
    harness = FailoverHarness()
    harness.kill(1)
    if leaves_first:
        harness.leave(harness.sessions[1])
    harness.jobs.rounds(harness.sessions[1], pb.Rounds(number=harness.stored().number))
    harness.carry_out()
    abort = harness.last(harness.sessions[0])
    assert (abort.HasField("rank"), abort.reason) == (False, pb.SWITCH_LOST)
    assert "it is dead, and rank 1 had ended its operations" in abort.message


@pytest.mark.parametrize("left", ["before", "meanwhile", "after"])
def test_who_leaves_is_blamed_for_no_lost_switch(left: str) -> None:
    """The other rank may lack a sum, for which the switch, or the packets of the rank that has left, are needed."""
    harness = FailoverHarness()
    if left == "before":
        harness.leave(harness.sessions[1])
    harness.kill(1)
    if left != "before":
        takeover = harness.stored()
        harness.tell_rounds(takeover, [4, 4], [5, 5])
        if left == "meanwhile":
            harness.leave(harness.sessions[1])
        harness.taken_over()
        if left == "after":
            harness.leave(harness.sessions[1])
    harness.tick(LEAVE_GRACE + 0.1)
    abort = harness.last(harness.sessions[0])
    if left == "after":
        assert (abort.rank, abort.reason) == (1, pb.LEFT_EARLY)
    else:
        assert (abort.HasField("rank"), abort.reason) == (False, pb.SWITCH_LOST)
        assert "rank 1 left while other ranks stayed; the switch " in abort.message
        assert abort.message.endswith(" cannot be used: it is dead")


@pytest.mark.parametrize("left", ["before", "meanwhile", "after"])
def test_a_rank_that_has_left_sends_its_packets_again(left: str) -> None:
    """The other rank may lack the last sum. When it has it, it leaves, too."""
    harness = FailoverHarness()

    def leave_if(now: str) -> None:
        if left == now:
            harness.leave(harness.sessions[1], lingers=True)

    leave_if("before")
    harness.tick(LEAVE_GRACE - 1)
    harness.kill(1)
    takeover = harness.stored()
    leave_if("meanwhile")
    harness.tell_rounds(takeover, [4, 4], [5, 5])
    harness.taken_over()
    leave_if("after")
    for session in harness.sessions:
        assert [list(one.rounds) for one in resumes(harness, session)] == [[4, 4]]
    harness.tick(LEAVE_GRACE - 1)  # the time for the other rank starts again
    harness.leave(harness.sessions[0], lingers=True)
    assert [harness.kinds(session)[-1] for session in harness.sessions] == ["left", "left"]
    harness.removed()
    assert all(harness.jobs.pool(number).free == 8 for number in range(SWITCHES))


@pytest.mark.parametrize("stage", [None, TakeoverStage.STORING, TakeoverStage.SUSPENDING, TakeoverStage.INSTALLING])
def test_a_process_that_ends_after_it_has_left_sends_nothing_again(stage: TakeoverStage | None) -> None:
    harness = FailoverHarness()
    harness.leave(harness.sessions[1], lingers=True)
    if stage is None:
        harness.jobs.lost(harness.sessions[1])
        harness.carry_out()
    harness.kill(1)
    if stage is None:
        assert not harness.keeps
    elif stage is not TakeoverStage.STORING:
        takeover = harness.stored()
        if stage is TakeoverStage.INSTALLING:
            harness.tell_rounds(takeover, [4, 4], [5, 5])
    if stage is not None:
        harness.jobs.lost(harness.sessions[1])
        harness.carry_out()
    if stage is TakeoverStage.INSTALLING:
        harness.taken_over()
    if stage in (None, TakeoverStage.INSTALLING):
        harness.tick(LEAVE_GRACE + 0.1)
    abort = harness.last(harness.sessions[0])
    assert (abort.HasField("rank"), abort.reason) == (False, pb.SWITCH_LOST)
    assert "the switch 10.0.0.251:31314 cannot be used: it is dead" in abort.message


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


def test_a_second_takeover_does_not_wait_for_a_process_that_has_ended() -> None:
    harness = FailoverHarness()
    harness.kill(1)
    takeover = harness.stored()
    harness.leave(harness.sessions[1], lingers=True)
    harness.tell_rounds(takeover, [4, 4], [4, 5])
    harness.jobs.lost(harness.sessions[1])
    harness.taken_over("it died, too")
    harness.stored()
    abort = harness.last(harness.sessions[0])
    assert (abort.HasField("rank"), abort.reason) == (False, pb.SWITCH_LOST)
    assert "rank 1 had ended its operations" in abort.message


def test_ranks_too_far_apart_end_the_job() -> None:
    harness = FailoverHarness()
    harness.kill(1)
    harness.tell_rounds(harness.stored(), [4, 4], [4, 6])
    abort = harness.last(harness.sessions[0])
    assert abort.reason == pb.SWITCH_LOST
    assert "its ranks are in rounds [4, 6] of one slot" in abort.message


@pytest.mark.parametrize("told", [True, False])
def test_a_rank_that_tells_no_rounds_in_time_ends_the_job(told: bool) -> None:
    harness = FailoverHarness()
    harness.kill(1)
    takeover = harness.stored()
    harness.tick(ROUNDS_TIMEOUT / 2)
    harness.jobs.rounds(harness.sessions[0], pb.Rounds(number=takeover.number, rounds=[4, 4]))
    if told:
        harness.jobs.rounds(harness.sessions[1], pb.Rounds(number=takeover.number, rounds=[4, 4]))
    harness.carry_out()
    harness.tick(ROUNDS_TIMEOUT / 2)
    assert harness.job.state is State.READY
    harness.tick(1)
    if told:
        assert harness.job.state is State.READY
        return
    abort = harness.last(harness.sessions[0])
    assert (abort.rank, abort.reason) == (1, pb.SWITCH_LOST)
    assert "rank 1 cannot move slots: their rounds were not told within 60 s (" in abort.message


def test_a_rank_that_is_away_may_tell_its_rounds_when_it_is_back() -> None:
    """It was away when the takeover began. Its own time limit is that for coming back."""
    harness = restarted(FailoverHarness())
    harness.sessions[0] = rejoin(harness, harness.job, 0)
    harness.kill(1)
    takeover = harness.stored()
    harness.job.rejoin_time = 2 * ROUNDS_TIMEOUT
    harness.tick(ROUNDS_TIMEOUT + 1)
    harness.sessions[1] = rejoin(harness, harness.job, 1)
    assert len(suspends(harness, harness.sessions[1])) == 1
    harness.tick(ROUNDS_TIMEOUT - 1)
    harness.tell_rounds(takeover, [4, 4], [4, 4])
    assert harness.takeovers


def test_only_the_first_rounds_of_a_rank_count() -> None:
    harness = FailoverHarness()
    harness.kill(1)
    takeover = harness.stored()
    for rounds in ([4, 4], [9, 9], [], [4]):
        harness.jobs.rounds(harness.sessions[0], pb.Rounds(number=takeover.number, rounds=rounds))
        harness.carry_out()
    harness.jobs.rounds(harness.sessions[1], pb.Rounds(number=takeover.number, rounds=[4, 5]))
    harness.jobs.rounds(harness.sessions[1], pb.Rounds(number=takeover.number, rounds=[3, 3]))
    harness.carry_out()
    assert harness.job.state is State.READY
    harness.taken_over()
    assert list(resumes(harness, harness.sessions[0])[0].rounds) == [4, 4]


ROUNDS = st.lists(st.one_of(st.integers(2, 7), st.integers(0, 2**32 - 1)), max_size=4)


@given(st.lists(st.tuples(st.sampled_from(["own", "other", "none", "honest"]), ROUNDS), max_size=12), st.integers(1, 2))
def test_a_hostile_rank_harms_no_other_job(said: list[tuple[str, list[int]]], threads: int) -> None:
    """It tells rounds of any takeover, false ones, too many, and again and again, in between those of honest ranks."""
    harness = FailoverHarness(threads=threads, pool=12)
    job, hostile = harness.job, harness.sessions[1]
    others = [harness.join(rank, RANKS, "other", slots=3, moves=True) for rank in range(RANKS)]
    for session in others:
        for switch in range(SWITCHES):
            harness.hear(session, switch, port=5 + switch)
    harness.installed()
    [other] = [one for one in harness.jobs if one.name == "other"]
    harness.kill(1)
    harness.ask(others[0], 2)
    found = {}
    for kept, takeover in harness.keeps:
        harness.jobs.stored(kept, takeover)
        found[kept.name] = takeover
    own, theirs = found["job"], found["other"]
    numbers = {"own": own.number, "other": theirs.number, "none": 7}
    honest = [(harness.sessions[0], pb.Rounds(number=own.number, rounds=[4, 5]))]
    honest += [(session, pb.Rounds(number=theirs.number, rounds=[5 + rank])) for rank, session in enumerate(others)]
    for what, rounds in [*said, *[("honest", [])] * len(honest)]:
        if what != "honest":
            harness.jobs.rounds(hostile, pb.Rounds(number=numbers[what], rounds=rounds))
        elif honest:
            harness.jobs.rounds(*honest.pop())
        harness.carry_out()
    harness.tick()
    assert other.state is State.READY
    assert theirs.stage is TakeoverStage.INSTALLING
    [placement] = theirs.placements.values()
    assert placement.rounds == (5,)
    if job.over:
        assert harness.last(harness.sessions[0]).reason == pb.SWITCH_LOST
    elif own.stage is TakeoverStage.INSTALLING:
        told = [seq for _, one in sorted(own.placements.items()) for seq in one.rounds]
        assert all((seq - true) % 2**32 in (0, 2**32 - 1) for seq, true in zip(told, [4, 5], strict=True))
        assert all(len(one.rounds) <= one.slots.count for one in own.placements.values())
    else:
        harness.tick(ROUNDS_TIMEOUT + 1)
        assert harness.last(harness.sessions[0]).rank == 1
    assert [taken for taken, _ in harness.takeovers].count(other) == 1
    harness.jobs.taken_over(other, theirs, "", harness.now)
    harness.carry_out()
    assert all([list(one.rounds) for one in resumes(harness, session)] == [[5]] for session in others)


def test_a_rank_on_a_new_stream_gets_the_message_that_it_may_lack() -> None:
    harness = FailoverHarness()
    harness.kill(1)
    takeover = harness.stored()
    again = rejoin(harness, harness.job, 0)
    assert suspends(harness, again) == suspends(harness, harness.sessions[0])
    harness.sessions[0] = again
    harness.tell_rounds(takeover, [4, 4], [4, 5])
    again = rejoin(harness, harness.job, 1)
    assert harness.kinds(again) == ["ready", "release"][: len(harness.kinds(again))]
    harness.sessions[1] = again
    harness.taken_over()
    later = rejoin(harness, harness.job, 1, attempt=1)
    assert resumes(harness, later) == resumes(harness, again) != []


def test_a_rank_on_a_new_stream_gets_messages_of_several_takeovers_in_their_order() -> None:
    """A rank refuses to move slots to an aggregator that has moved itself, though not the other way round."""
    harness = FailoverHarness()
    harness.kill(1)
    first = harness.take_over()
    assert harness.jobs.lost_at(harness.job, 0, {harness.job.number}, "it was restarted", harness.now)
    harness.carry_out()
    second = harness.stored()
    assert [(one.tree, one.via) for one in (first, second)] == [(1, 0), (0, 2)]
    again = rejoin(harness, harness.job, 0)
    assert [one.aggregator for one in resumes(harness, again)] == [1]
    assert [one.aggregator for one in suspends(harness, again)] == [0]
    harness.sessions[0] = again
    harness.tell_rounds(second, [4, 4], [4, 5])
    harness.taken_over()
    later = rejoin(harness, harness.job, 1)
    assert [one.aggregator for one in resumes(harness, later)] == [1, 0]


def test_a_later_controller_takes_the_slots_over_again_when_all_ranks_are_back() -> None:
    """It does not know which ranks have heard where the slots went."""
    harness = FailoverHarness()
    harness.kill(1)
    first = harness.take_over()
    later, job = restarted(harness), harness.job
    later.sessions = [rejoin(later, job, 0)]
    assert not later.keeps
    later.switches.dead |= {0, 2}  # they are not connected yet
    later.sessions.append(rejoin(later, job, 1))
    later.tick()
    assert not later.keeps
    later.switches.dead = frozenset({1})
    later.tick()
    second = later.take_over()
    assert (second.tree, second.via) == (1, 0)
    assert second.jobs != first.jobs or second.number != first.number
    assert all(len(resumes(later, session)) == 1 for session in later.sessions)


def test_a_later_controller_that_moves_no_slots_finishes_a_move() -> None:
    """No switch has these slots: they have to go on somewhere. Other slots stay."""
    harness = FailoverHarness()
    harness.kill(1)
    harness.take_over()
    later = restarted(harness, moves_slots=False)
    later.sessions = [rejoin(later, later.job, rank) for rank in range(RANKS)]
    later.tick()
    assert later.take_over().tree == 1
    later.kill(2)
    assert not later.keeps


@pytest.mark.parametrize("why", ["no room", "nothing works", "a rank leaves"])
@pytest.mark.parametrize("moves_slots", [True, False])
def test_a_job_ends_if_a_later_controller_has_no_switch_for_its_slots(why: str, moves_slots: bool) -> None:
    harness = FailoverHarness()
    harness.kill(1)
    harness.take_over()
    later = restarted(harness, moves_slots=moves_slots)
    later.sessions = [rejoin(later, later.job, rank) for rank in range(RANKS)]
    if why == "no room":
        for number in (0, 2):
            pool = later.jobs.pool(number)
            pool.take(pool.find(5))
    elif why == "nothing works":
        later.switches.dead |= {0, 2}
    else:
        later.leave(later.sessions[1])
    later.tick()
    later.tick(STRANDED_TIMEOUT / 2)
    if why != "a rank leaves":  # it waits less long
        assert later.job.state is State.READY
    later.tick(STRANDED_TIMEOUT / 2 + 1)
    assert not later.keeps
    abort = later.last(later.sessions[0])
    assert (abort.HasField("rank"), abort.reason) == (False, pb.SWITCH_LOST)
    if why != "a rank leaves":
        assert f"the slots of {_root(later, 1)} were elsewhere when the controller was restarted" in abort.message


def _root(harness: FailoverHarness, tree: int) -> str:
    return harness.job.site.trees.names[tree]


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.lists(st.booleans(), min_size=3, max_size=3)), max_size=5))
def test_the_least_of_rounds_that_wrap_around(slots: list[tuple[int, list[bool]]]) -> None:
    rounds = Rounds()
    for rank in range(3):
        rounds.add([(first + ahead[rank]) % 2**32 for first, ahead in slots])
    assert rounds.least == [(first + all(ahead)) % 2**32 for first, ahead in slots]


@given(st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=4), st.integers(-3, 3))
def test_rounds_too_far_apart_are_refused_in_any_order(told: list[int], near: int) -> None:
    told[1] = (told[0] + near) % 2**32
    distance = max((one - other) % 2**32 for one in told for other in told if (one - other) % 2**32 < 2**31)
    rounds = Rounds()
    try:
        for one in told:
            rounds.add([one])
    except ValueError:
        assert distance > 1
    else:
        assert distance <= 1


# Spares.


def test_slots_go_on_at_a_spare_if_no_other_switch_is_left() -> None:
    """The spare's port of the rank's host is not known there before."""
    harness = FailoverHarness(spare_switches=1)
    assert harness.job.ranges.keys() == harness.job.placements.keys() == {0, 1}
    assert harness.jobs.pool(2).free == 8
    assert harness.job.holds == {0, 1}
    for session in harness.sessions:
        [ready] = [message.ready for message in harness.told[session] if message.HasField("ready")]
        assert (list(ready.aggregators), list(ready.spares)) == ([0, 1], [2])
    harness.kill(1)
    first = harness.stored()
    harness.tell_rounds(first, *[[4, 4, 4]] * RANKS)
    harness.taken_over()
    assert (first.tree, first.via) == (1, 0)
    harness.kill(0)
    harness.tick()
    both = [takeover for _, takeover in harness.keeps]
    assert [(one.tree, one.via) for one in both] == [(0, 2), (1, 2)]
    for one in both:
        harness.jobs.stored(harness.job, one)
        harness.carry_out()
        harness.tell_rounds(one, *[[4, 4, 4]] * RANKS)
        harness.taken_over()
        [placement] = one.placements.values()
        assert placement.hosts == (("02:00:00:00:00:00", 7), ("02:00:00:00:00:01", 7))
    assert harness.job.holds == {0, 1, 2}
    assert not harness.job.is_at_spares
    for session in harness.sessions:
        harness.leave(session)
    harness.removed()
    assert all(harness.jobs.pool(number).free == 8 for number in range(SWITCHES))


@pytest.mark.parametrize("why_not", ["draining", "dead", "gone", "no room"])
def test_a_spare_that_cannot_have_slots_is_not_taken(why_not: str) -> None:
    harness = FailoverHarness(spare_switches=2)
    if why_not == "draining":
        harness.switches.draining = frozenset({1})
    elif why_not == "gone":
        harness.switches.site = replace(harness.switches.site, numbers=(0, -1, 2))
        harness.jobs.switch_goes(1)
        harness.switches.dead = frozenset({1})  # a switch that was removed cannot be used, either
    elif why_not == "no room":
        pool = harness.jobs.pool(1)
        pool.take(pool.find(5))
    harness.kill(0, *([1] if why_not == "dead" else []))
    takeover = harness.stored()
    harness.tell_rounds(takeover, *[[4] * SLOTS] * RANKS)
    harness.taken_over()
    assert takeover.via == 2
    harness.switches.draining = frozenset({2})  # too late to matter
    harness.ask(harness.sessions[0], 0)
    assert not harness.keeps


@pytest.mark.parametrize("missing", ["moves", "spares"])
def test_a_rank_of_an_earlier_release_has_no_spares(missing: str) -> None:
    harness = FailoverHarness(spare_switches=1, **{missing: False})
    [left_out] = harness.job.excluded_switches
    assert left_out == "the switch 10.0.0.252:31314 is not used: ranks 0, 1 cannot use a spare"
    for session in harness.sessions:
        [ready] = [message.ready for message in harness.told[session] if message.HasField("ready")]
        assert (list(ready.aggregators), list(ready.spares)) == ([0, 1], [])
    harness.kill(0, 1)
    assert not harness.keeps


def test_a_job_begins_at_a_spare_only_if_no_other_switch_can_be_used() -> None:
    """It can use the spare like any switch, whatever release its ranks are of."""
    harness = FailoverHarness(spare_switches=1)
    harness.switches.dead = frozenset({0, 1})
    sessions = [harness.join(rank, RANKS, "other", slots=5) for rank in range(RANKS)]
    for session in sessions:
        harness.hear(session, 2, 7)
    [other] = harness.installs
    assert other.is_at_spares
    assert [str(taken) for taken in other.ranges.values()] == ["SlotRange(first=0, count=5)"]
    harness.installed()
    harness.switches.dead = frozenset({1})
    sessions = [harness.join(rank, RANKS, "third", slots=2, moves=True, spares=True) for rank in range(RANKS)]
    for session in sessions:
        for switch in (0, 2):
            harness.hear(session, switch, 5 + switch)
    [third] = harness.installs
    assert [third.site.number(at) for at in third.ranges] == [0]
    assert not third.is_at_spares


def test_a_job_whose_switches_die_while_it_gathers_begins_at_the_spare() -> None:
    harness = FailoverHarness(spare_switches=1)
    sessions = [harness.join(rank, RANKS, "other", slots=5, spares=True) for rank in range(RANKS)]
    for switch in range(SWITCHES):
        for session in sessions:
            if (switch, session) == (2, sessions[1]):
                harness.switches.dead = frozenset({0, 1})
            harness.hear(session, switch, 5 + switch)
    [other] = harness.installs
    assert other.is_at_spares
    assert [taken.count for taken in other.ranges.values()] == [5]
    assert len(other.excluded_switches) == 2


@pytest.mark.parametrize("dead", [True, False])
def test_a_spare_that_does_not_hear_the_ranks_keeps_no_job_from_beginning(dead: bool) -> None:
    harness = FailoverHarness(spare_switches=1)
    sessions = [harness.join(rank, RANKS, "other", slots=2, moves=True, spares=True) for rank in range(RANKS)]
    harness.switches.dead = frozenset({2}) if dead else frozenset()
    for switch in range(2):
        for session in sessions:
            harness.hear(session, switch, 5 + switch)
    harness.hear(sessions[0], 2, 7)
    harness.tick()
    assert not harness.installs
    harness.tick(SPARE_WAIT)
    [other] = harness.installs
    assert other.excluded_switches == ["the switch 10.0.0.252:31314 is not used: it has not heard rank 1"]
    assert not harness.hear(sessions[1], 2, 7)
    harness.installed()
    for session in sessions:
        ready = harness.told[session][-1].ready
        assert (list(ready.aggregators), list(ready.spares)) == ([0, 1], [])
        harness.leave(session)
    harness.removed()
