# SPDX-License-Identifier: Apache-2.0
"""A job's place in the queue outlives the controller at which it waits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from p4reduce_controller.jobs.waitlist import RETURN_TIMEOUT
from p4reduce_controller.tenants.quotas import Policy, Quota
from tests.support.controller.jobs_harness import ALICE, BOB, CAROL, TenantsHarness
from tests.support.controller.ranks import ready
from tests.support.controller.running import Running, Starter
from tests.support.waiting import wait_until


def two_in_the_queue() -> tuple[TenantsHarness, list[Any]]:
    harness = TenantsHarness(slots=4)
    harness.begin(CAROL, "running")
    harness.come(ALICE, "first", queue_s=60)
    harness.tick(1)
    harness.come(BOB, "second", queue_s=60)
    harness.tick(1)
    return harness, harness.jobs.queue.to_json(harness.now)


def taken_over(kept: list[Any], policy: Policy | None = None) -> TenantsHarness:
    harness = TenantsHarness(policy, slots=4)
    harness.jobs.queue.restore(kept, harness.now)
    return harness


def test_who_comes_back_has_the_place_it_had() -> None:
    _, kept = two_in_the_queue()
    harness = taken_over(kept)
    new = harness.come(CAROL, "new", queue_s=60)
    second = harness.come(BOB, "second", queue_s=60)
    first = harness.come(ALICE, "first", queue_s=60)
    assert "assigned" in harness.kinds(first)  # the others wait until it is back
    harness.tick(0.1)
    assert [harness.place(one) for one in (second, new)] == [1, 2]


def test_who_does_not_come_back_soon_has_none() -> None:
    _, kept = two_in_the_queue()
    harness = taken_over(kept)
    new = harness.come(CAROL, "new", queue_s=60)
    harness.tick(0.1)
    assert harness.place(new) == 3
    assert next((one.name, one.why) for one in harness.status().queue) == (
        "first",
        "its ranks waited at a previous controller and have not rejoined yet",
    )
    harness.jobs.expect_returns(harness.now)
    harness.tick(RETURN_TIMEOUT - 0.1)
    assert harness.kinds(new)[-1] == "waiting"
    harness.tick(0.2)
    harness.tick(0.1)
    assert "assigned" in harness.kinds(new)


def test_who_may_have_no_more_keeps_nobody_waiting() -> None:
    _, kept = two_in_the_queue()
    harness = taken_over(kept, Policy(quotas={"alice": Quota(jobs=0), "bob": Quota(slots=1)}))
    assert "assigned" in harness.kinds(harness.come(CAROL, "new"))


def test_who_asks_for_something_else_comes_last() -> None:
    _, kept = two_in_the_queue()
    harness = taken_over(kept)
    harness.come(ALICE, "first", slots=3, queue_s=60)
    other = harness.come(CAROL, "other", queue_s=60)
    harness.come(BOB, "second", queue_s=60)
    harness.tick(0.1)
    assert [one.name for one in harness.status().queue] == ["first", "other"]
    assert harness.kinds(other)[-1] == "waiting"


def test_it_is_kept_until_it_is_back_or_gone() -> None:
    _, kept = two_in_the_queue()
    harness = taken_over(kept)
    assert harness.jobs.queue.take_change()
    assert not harness.jobs.queue.take_change()
    assert harness.jobs.queue.to_json(harness.now) == kept


@pytest.mark.parametrize("kept", [[3], [{}], [{"tenant": 1, "name": "x", "slots": 1, "world_size": 1, "since": 1.0}]])
def test_what_cannot_be_is_refused(kept: list[Any]) -> None:
    with pytest.raises(ValueError, match="queue"):
        taken_over(kept)


@pytest.fixture
def running(start: Starter, tmp_path: Path) -> Running:
    return start(Running, slots=4, state=tmp_path / "state")


def queue(running: Running) -> list[str]:
    return [one.name for one in running.look().queue]


@pytest.mark.parametrize("killed", [True, False])
def test_places_are_kept_over_a_restart(running: Running, tmp_path: Path, killed: bool) -> None:
    [busy] = running.job(1, job="busy")
    waiting = []
    for name in ("first", "second"):
        waiting.append(running.rank(0, 1, job=name, queue=60.0))
        wait_until(lambda name=name: name in queue(running), "it to wait")

    def kept() -> list[str]:
        return [one["name"] for one in json.loads((tmp_path / "state").read_text())["queue"]]

    wait_until(lambda: kept() == ["first", "second"], "the state to have them")
    if killed:
        running.crash()
    else:
        running.loop.run(running.controller.close())
        running.release()
    running.start_again()
    wait_until(lambda: [len(one.ranks) for one in running.jobs.queue.waitlist] == [1, 1], "both to be back")
    assert queue(running) == ["first", "second"]
    busy.session.leave()
    ready(waiting[:1])
    assert waiting[1].assigned is None
    waiting[0].session.leave()
    ready(waiting[1:])
