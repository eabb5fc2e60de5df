# SPDX-License-Identifier: Apache-2.0
"""Jobs on the switches while calls and streams are cancelled: no job stays between two states, and no slot is lost."""

from __future__ import annotations

import asyncio
import functools
import time
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.grpc_channels import open_grpc_channel
from p4reduce_controller.base import clock
from p4reduce_controller.base.listening import ServiceConfig
from p4reduce_controller.fabric import rollout as rollout_module
from p4reduce_controller.fabric.inventory import Inventory
from p4reduce_controller.fabric.rollout import NEXT, Rollout, Stage
from p4reduce_controller.jobs.job import Job, Takeover
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.service import streams
from p4reduce_controller.service.controller import Controller
from p4reduce_controller.switches.aggregator import Layout, Placement, SwitchError
from p4reduce_controller.switches.pools import SlotRange
from p4reduce_controller.switches.site import Site
from p4reduce_controller.switches.trees import Trees
from tests.support.controller.fake_switch import FakeSwitch
from tests.support.controller.running import Running, Starter
from tests.support.controller.streams import FakeStream
from tests.support.waiting import stays, wait_until

STEPS = 200  # of the event loop: more than there are until a job is ready


# --- calls to the switch ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("what", "error"),
    [
        ("fence", asyncio.CancelledError()),
        ("fence", SwitchError("busy")),
        ("fence", KeyError("surprise")),
        ("abort", asyncio.CancelledError()),
        ("abort", KeyError("surprise")),
        ("forget", SwitchError("busy")),
    ],
)
def test_a_removal_that_fails_is_tried_until_it_is_done(
    running: Running, monkeypatch: pytest.MonkeyPatch, what: str, error: Exception
) -> None:
    monkeypatch.setattr(rollout_module, "RETRY_INTERVAL", 0.1)
    running.switch.fail[what] = error
    ranks = running.job(2)
    ranks[1].session.close()
    wait_until(lambda: ranks[0].aborted_at, "the other to hear of it")
    if what != "abort":  # which ranks hear from the service, too
        stays(lambda: running.used() == 4, "its slots are freed before it is off", 0.05)
    running.loop.call(running.switch.fail.clear)
    wait_until(lambda: running.used() == 0, "the slots to be freed")
    assert running.switch.log[-1] == "forget"
    assert not running.loop.call(running.controller.failed.is_set)


def test_a_switch_that_is_away_holds_up_no_end_of_the_controller(running: Running) -> None:
    running.job(1)
    running.loop.call(running.switch.disconnect)
    [rollout] = [rollout for rollout, _ in running.controller.runner.supervisor._rollouts.values()]
    running.loop.run(running.controller.close())
    assert rollout.stage is Stage.ABANDONED


async def _never(*_: object) -> None:
    await asyncio.Event().wait()


async def _done(*_: object) -> None:
    pass


@pytest.mark.parametrize(("what", "doing"), [("install", "installing it"), ("reset", "resetting its slots")])
def test_a_step_that_takes_for_ever_fails_the_job_by_the_name_of_its_switch(
    start: Starter, monkeypatch: pytest.MonkeyPatch, what: str, doing: str
) -> None:
    monkeypatch.setattr(rollout_module, "STEP_TIMEOUT", 0.3)
    running = start(Running, switches=2)
    with monkeypatch.context() as patch:
        patch.setattr(running.switches[1], what, _never)
        for rank in [running.rank(rank, 2, timeout=2.0) for rank in range(2)]:  # which is longer
            said = f"job 'job': the switch at fake 1 has not finished {doing} within 2"
            assert said in str(rank.outcome())
        wait_until(lambda: running.used() == 0, "the slots to be freed")
    running.job(2)


@pytest.mark.parametrize("what", ["install", "reset", "fence", "forget"])
def test_time_in_which_the_controller_stands_still_is_not_the_switchs(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    monkeypatch.setattr(rollout_module, "STEP_TIMEOUT", 20.0)
    monkeypatch.setattr(clock, "LONGEST_WAIT", 0.02)
    stood_still = 0.0
    later = functools.partial(clock.Clock, lambda: time.monotonic() + stood_still)
    monkeypatch.setattr(clock, "Clock", later)
    done = getattr(running.switch, what)

    async def stand_still(*arguments: object) -> None:
        nonlocal stood_still
        stood_still += 60.0
        await asyncio.sleep(0.1)  # in which its time is looked at
        await done(*arguments)

    monkeypatch.setattr(running.switch, what, stand_still)
    ranks = running.job(2)
    ranks[1].session.close()
    wait_until(lambda: running.used() == 0, "the slots to be freed")
    assert "has not finished" not in caplog.text


@pytest.mark.parametrize("what", ["fence", "abort", "forget"])
def test_a_removal_that_takes_for_ever_is_begun_anew(
    running: Running, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(rollout_module, "STEP_TIMEOUT", 0.3)
    ranks = running.job(2)
    tried = []
    done = getattr(running.switch, what)

    async def hang_once(*arguments: object) -> None:
        tried.append(what)
        await (_never() if len(tried) == 1 else done(*arguments))

    monkeypatch.setattr(running.switch, what, hang_once)
    ranks[1].session.close()
    wait_until(lambda: running.used() == 0, "the slots to be freed")
    assert len(tried) == (1 if what == "abort" else 2)


# --- ranks' streams --------------------------------------------------------------------------------------------------


class SlowSwitch(FakeSwitch):
    """A switch that takes some steps of the event loop before and after each operation."""

    async def _slowly(self, work: Any) -> None:
        for _ in range(3):
            await asyncio.sleep(0)
        await work
        for _ in range(3):
            await asyncio.sleep(0)

    async def install(self, job: Placement) -> None:
        await self._slowly(super().install(job))

    async def reset(self, job: Placement, timeout: float) -> None:
        await self._slowly(super().reset(job, timeout))

    async def fence(self, job: Placement) -> None:
        await self._slowly(super().fence(job))

    async def forget(self, job: Placement) -> None:
        await self._slowly(super().forget(job))


def joining(rank: int) -> pb.ClientMessage:
    return pb.ClientMessage(join=pb.Join(job="job", rank=rank, world_size=2, slots=4))


async def steps(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def cancelled_after(count: int, victim: int) -> list[str]:
    """Let two ranks join, cancel one's call after so many steps, and return the messages that the other one gets.

    Nobody's time is up, so that no deadline mends what is wrong.
    """
    switch = SlowSwitch()
    inventory = Inventory([switch])
    jobs = Jobs(inventory)
    controller = Controller(inventory, jobs, ServiceConfig())
    await switch.start(controller.listener(0), 1.0)
    streams = [FakeStream(controller, switch, joining(rank)) for rank in range(2)]
    calls = [stream.call for stream in streams]
    await steps(count)
    calls[victim].cancel()
    await steps(STEPS)
    assert calls[victim].cancelled()
    if not calls[1 - victim].done():  # it joined after the victim had gone, and waits for a second rank
        assert [(list(job.members), job.state.value) for job in jobs] == [([1 - victim], "gathering")]
        calls[1 - victim].cancel()
        await steps(STEPS)
    assert list(jobs) == []
    assert [pool.used for pool in jobs.pools] == [0]
    assert switch.admitted == switch.groups == {}
    assert not controller.runner.supervisor._rollouts
    assert not controller.failed.is_set()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return streams[1 - victim].kinds


@pytest.mark.parametrize("victim", [0, 1])
def test_a_stream_that_is_cancelled_at_any_moment_leaves_nothing(victim: int) -> None:
    told = [asyncio.run(cancelled_after(count, victim)) for count in range(60)]
    assert told[0] == ["assigned"]
    assert ["assigned", "abort"] in told
    assert told[-1] == ["assigned", "ready", "abort"]


@pytest.mark.parametrize("what", ["join", "lost"])
def test_a_bug_costs_the_stream_that_met_it_and_is_not_lost(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, what: str
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(running.jobs, what, fail)
    with open_grpc_channel(running.address) as channel, pytest.raises(grpc.RpcError, match="ZeroDivisionError"):
        list(rpc.JobsStub(channel).Session(iter([joining(0)]), timeout=5))
    assert "a bug" in caplog.text
    monkeypatch.undo()
    running.job(1, job="another")


async def test_a_rank_that_does_not_read_is_ended_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages for the rank do not pile up."""
    monkeypatch.setattr(streams, "MOST_UNREAD", 8)

    class Deaf(FakeStream):
        async def write(self, message: pb.ServerMessage) -> None:
            await super().write(message)
            if message.HasField("waiting"):
                await asyncio.Event().wait()

    switch = FakeSwitch()
    inventory = Inventory([switch])
    jobs = Jobs(inventory)
    controller = Controller(inventory, jobs, ServiceConfig())
    await switch.start(controller.listener(0), 1.0)
    told: list[streams.Stream] = []
    said: list[str] = []

    def join(stream: streams.Stream, *what: Any, join=jobs.join) -> None:  # type: ignore[no-untyped-def]
        told.append(stream)
        join(stream, *what)

    monkeypatch.setattr(jobs, "join", join)
    monkeypatch.setattr(jobs, "lost", lambda _, what, lost=jobs.lost: (said.append(what), lost(_, what)))
    call = Deaf(controller, switch, joining(0)).call
    while not told:
        await asyncio.sleep(0.001)
    for _ in range(10):
        told[0].tell(pb.ServerMessage(waiting=pb.Waiting(ranks=[1])))
    with pytest.raises(streams.Unread, match="8 wait"):
        await asyncio.wait_for(call, 5.0)
    assert said[:1] == ["does not read the controller's messages: 8 wait"]
    await controller.close()


# --- one rollout -----------------------------------------------------------------------------------------------------


def test_every_stage_leads_to_an_end() -> None:
    ends = {stage for stage in Stage if not NEXT[stage]}
    assert ends == {Stage.REMOVED, Stage.ABANDONED}
    for stage in Stage:
        reached = {stage}
        while more := {after for one in reached for after in NEXT[one]} - reached:
            reached |= more
        assert reached & ends


@pytest.mark.parametrize(("before", "after"), [(Stage.REMOVED, Stage.REMOVING), (Stage.FAILED, Stage.INSTALLED)])
def test_a_stage_that_cannot_follow_is_refused(before: Stage, after: Stage) -> None:
    job = Job("job", 1, 1, 1, 1, {}, 2, 5.0, 0.0, 0.0, 0, Site(Layout(4, 64, 16), (), Trees([])))
    rollout = Rollout(job, [], Running.__new__(Running), asyncio.Event(), before)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=f"'job' is {before.value}, and cannot become {after.value}"):
        rollout._enter(after)


@pytest.mark.parametrize("what", ["installing it", "resetting its slots"])
async def test_a_takeover_does_not_wait_as_long_as_a_rank_would_to_join(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(rollout_module, "STEP_TIMEOUT", 0.1)
    switch = FakeSwitch(slots=1)
    site = Site(Layout(4, 64, 1), (switch.address,), Trees(["a switch"]))
    job = Job("job", 1, 1, 1, 1, {}, 2, 5.0, 0.0, 0.0, 0, site, timeout=1e6)
    monkeypatch.setattr(switch, "install", _never if what == "installing it" else _done)
    monkeypatch.setattr(switch, "reset", _never)
    placement = Placement(2, 1, SlotRange(0, 1), 0, ())
    progress: asyncio.Queue[str] = asyncio.Queue()
    takeover = Takeover(0, 1, ((2, 1),), 7, {0: placement}, "it is dead", 0.0)
    told: Any = SimpleNamespace(taken_over=lambda _, __, problem: progress.put_nowait(problem))
    rollout = Rollout(job, {0: switch}, told, asyncio.Event(), Stage.INSTALLED)
    rollout.take_over(takeover)
    task = asyncio.create_task(rollout.run())
    problem = await asyncio.wait_for(progress.get(), 60)
    assert f"has not finished {what} within" in problem
    task.cancel()


def test_a_bug_ends_the_service_and_is_not_lost(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def tick(_: float) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(running.jobs, "tick", tick)
    wait_until(running.controller.failed.is_set, "the service to give up")
    assert isinstance(running.controller.failure, ZeroDivisionError)


def test_a_service_that_a_rollouts_bug_has_ended_closes(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(_: Job) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(running.jobs, "installed", installed)
    running.rank(0, 1)
    wait_until(running.controller.failed.is_set, "the service to give up")
    assert isinstance(running.controller.failure, ZeroDivisionError)
    running.loop.run(running.controller.close())
