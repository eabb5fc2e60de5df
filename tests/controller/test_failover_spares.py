# SPDX-License-Identifier: Apache-2.0
"""Slots go on at spares, and jobs begin there, if no other switch is left."""

from __future__ import annotations

from dataclasses import replace

import pytest

from p4reduce_controller.jobs.gathering import SPARE_WAIT
from tests.support.controller.failover import RANKS, SLOTS, SWITCHES, FailoverHarness


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
