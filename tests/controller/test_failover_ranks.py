# SPDX-License-Identifier: Apache-2.0
"""Ranks that do not do their part when slots of theirs go on at another switch, and ranks that have left."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.deadlines import LEAVE_GRACE
from p4reduce_controller.jobs.failover import ROUNDS_TIMEOUT
from p4reduce_controller.jobs.job import Rounds, State, TakeoverStage
from tests.support.controller.failover import RANKS, SWITCHES, FailoverHarness, restarted, resumes, suspends
from tests.support.controller.jobs_harness import rejoin


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
