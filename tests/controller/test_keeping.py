# SPDX-License-Identifier: Apache-2.0
"""What is kept of jobs while others come and go: a store takes a while to write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

import pytest

from p4reduce_controller.jobs.job import Job
from p4reduce_controller.switches.aggregator import Heard
from tests.support.controller.ranks import ready
from tests.support.controller.running import Loop, Running
from tests.support.waiting import wait_until


@pytest.fixture
def running(loop: Loop, tmp_path: Path) -> Iterator[Running]:
    running = Running(loop, state=tmp_path / "state")
    yield running
    running.close()


def test_what_an_earlier_controller_kept_of_switches_stays_until_they_may_change(running: Running) -> None:
    """A switch may have lost a job before all have come, which is kept at once."""
    assert running.state is not None
    kept = {"added": [], "removed": [], "leaving": [], "replaced": [], "draining": ["leaf"]}
    running.state.fabric = kept
    running.loop.run(running.controller.saver.save())
    assert running.state.fabric == kept


def test_a_job_that_gathers_under_the_number_of_one_that_died_is_not_kept(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one was on its switches, and was about to be kept."""
    may_write, written = asyncio.Event(), []
    assert running.state is not None

    async def keep(jobs: Callable[[], Iterable[Job]], _: Mapping[int, Heard], __: float) -> None:
        await may_write.wait()
        written.append([job.name for job in jobs()])

    monkeypatch.setattr(running.state, "keep", keep)
    dying = [running.rank(rank, 2, job="dying") for rank in range(2)]
    wait_until(lambda: any(job.installed for job in running.jobs), "it to be on its switches")
    for rank in dying:
        rank.session.close()
    wait_until(lambda: not list(running.jobs), "its end")
    gathering = running.rank(0, 2, job="gathering")
    wait_until(lambda: gathering.assigned, "the other to have its number")
    assert gathering.assigned is not None
    assert gathering.assigned.job == 1
    running.loop.call(may_write.set)
    wait_until(lambda: written, "all to be written")
    assert not any("gathering" in names for names in written)


def test_a_job_that_is_just_kept_is_not_forgotten_with_another(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its being written and its ranks' hearing of it, another job's end has all written again."""
    written: list[list[str]] = []
    assert running.state is not None

    async def keep(jobs: Callable[[], Iterable[Job]], _: Mapping[int, Heard], __: float) -> None:
        written.append([job.name for job in jobs()])
        if len(written) == 1:
            await running.controller.saver.save_within(None)

    monkeypatch.setattr(running.state, "keep", keep)
    ready([running.rank(rank, 2, job="new") for rank in range(2)])
    assert written[:2] == [["new"], ["new"]]
