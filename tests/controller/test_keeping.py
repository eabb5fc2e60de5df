# SPDX-License-Identifier: Apache-2.0
"""A service and its store, which may be another controller's by now, and takes a while to write."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.grpc_channels import open_grpc_channel
from p4reduce_controller.jobs.job import Job
from p4reduce_controller.service import saver
from p4reduce_controller.store.state_names import StateError
from p4reduce_controller.switches.aggregator import Heard
from p4reduce_controller.switches.availability import Unavailable
from tests.support.controller.running import Running, Starter
from tests.support.waiting import stays, wait_until


@pytest.fixture
def running(start: Starter, tmp_path: Path) -> Iterator[Running]:
    running = start(Running, state=tmp_path / "state")
    yield running
    running.state.maybe_lost_leadership, running.state.shared = None, False


def in_doubt(running: Running, why: str) -> None:
    assert running.state is not None
    running.loop.call(setattr, running.state, "maybe_lost_leadership", Unavailable(why) if why else None)


class Asked:
    """A fake of the store's `is_ours`, whose answer the test sets later."""

    def __init__(self, running: Running) -> None:
        self.answer: asyncio.Future[bool] = asyncio.Future(loop=running.loop.loop)
        self.times = 0
        running.state.shared = True
        running.state.is_ours = self  # type: ignore[assignment]

    async def __call__(self) -> bool:
        self.times += 1
        return await self.answer


@pytest.mark.parametrize("ours", [True, False])
def test_nobody_is_lost_before_it_is_known_that_the_store_was_ours_then(running: Running, ours: bool) -> None:
    """Else another controller has taken over, and the rank is there."""
    ranks = running.job(2)
    asked = Asked(running)
    ranks[1].session.close()
    wait_until(lambda: asked.times, "the question")
    assert ranks[0].session.aborted is None
    running.loop.call(asked.answer.set_result, ours)
    if ours:
        wait_until(lambda: ranks[0].aborted_at, "the abort")
    else:
        stays(lambda: ranks[0].session.aborted is None, "it is told of a loss", 0.3)


@pytest.mark.parametrize("first", [pb.ClientMessage(join=pb.Join(job="j", world_size=1)), pb.ClientMessage(rejoin={})])
def test_nobody_is_let_in_meanwhile(running: Running, first: pb.ClientMessage) -> None:
    """Ranks of this controller's own jobs are refused, too, because they may be back at another controller."""
    in_doubt(running, "etcd is away")
    with open_grpc_channel(running.address) as channel, pytest.raises(grpc.RpcError) as error:
        list(rpc.JobsStub(channel).Session(iter([first]), timeout=10))
    assert isinstance(error.value, grpc.Call)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert error.value.details() == "this controller stands by: etcd is away"


# --- a store that takes a while to write -----------------------------------------------------------------------------


def test_what_an_earlier_controller_kept_of_switches_stays_until_they_may_change(running: Running) -> None:
    """A switch may have lost a job before all have come, which is kept at once."""
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
    assert gathering.assigned.job == 1
    running.loop.call(may_write.set)
    wait_until(lambda: written, "all to be written")
    assert not any("gathering" in names for names in written)


def test_a_job_that_is_just_kept_is_not_forgotten_with_another(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of another job writes the state again, after this job is written and before its ranks know of it."""
    written: list[list[str]] = []
    assert running.state is not None

    async def keep(jobs: Callable[[], Iterable[Job]], _: Mapping[int, Heard], __: float) -> None:
        written.append([job.name for job in jobs()])
        if len(written) == 1:
            await running.controller.saver.save_within(None)

    monkeypatch.setattr(running.state, "keep", keep)
    running.job(2, job="new")
    assert written[:2] == [["new"], ["new"]]


def test_a_save_that_fails_is_tried_again(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the store has a job that has ended for as long as nothing else changes."""
    monkeypatch.setattr(saver, "RETRY_S", 0.05)
    ranks = running.job(2)
    keep, left = running.state.keep, [2]

    async def failing(*arguments: Any) -> None:
        if left:
            left.pop()
            raise StateError("the disk is full")
        await keep(*arguments)

    running.state.keep = failing  # type: ignore[method-assign]
    left.append(1)
    ranks[0].session.close()
    wait_until(lambda: json.loads(running.state.path.read_text())["jobs"] == [], "the store to be empty")
    assert not left
