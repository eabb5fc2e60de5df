# SPDX-License-Identifier: Apache-2.0
"""A job gets other slots on its switch while things go wrong: it is there as a whole, or over, and no slot is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.base.listening import ServiceConfig
from p4reduce_controller.fabric import rollout
from p4reduce_controller.fabric.inventory import Inventory
from p4reduce_controller.jobs.job import Job
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.jobs.lifecycle import JobOptions
from p4reduce_controller.service import effect_runner
from p4reduce_controller.service.controller import Controller
from p4reduce_controller.store.state import StateError, StateFile
from p4reduce_controller.switches.aggregator import HalfState, Placement, SwitchError
from p4reduce_controller.switches.availability import Unavailable
from p4reduce_controller.switches.pools import SlotRange
from tests.support.controller.fake_switch import FakeSwitch
from tests.support.controller.p4runtime_server import until
from tests.support.controller.streams import FakeStream

SEQ = 500


pytestmark = pytest.mark.usefixtures("few_slots_do")


class Stream(FakeStream):
    """The stream of a job's only rank, which holds when it is asked."""

    async def write(self, message: pb.ServerMessage) -> None:
        await super().write(message)
        if message.HasField("hold"):
            self.hold(message.hold.number)

    def hold(self, number: int = 0) -> None:
        self.said.put_nowait(pb.ClientMessage(held=pb.Held(operations=3, quiet=True, first_seq=SEQ, number=number)))

    def ask(self, half: int) -> None:
        self.said.put_nowait(pb.ClientMessage(unanswered=pb.Unanswered(half=half)))

    async def until(self, kind: str) -> pb.ServerMessage:
        await until(lambda: kind in self.kinds)
        return self.told[self.kinds.index(kind)]


class BrieflyAway(FakeSwitch):
    """A switch on which jobs rely however long it is away, as on a real switch in the first moments."""

    @property
    def unavailable(self) -> Unavailable | None:
        return replace(why, brief=True) if (why := super().unavailable) else None


class CompactionService:
    """A controller whose jobs a, b and c have 4 of 16 slots each. Then b ends, and d waits for 8."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.switch = BrieflyAway()
        self.streams: list[Stream] = []

    async def open(self) -> None:
        self.state = StateFile(self.path) if self.path else None
        inventory = Inventory([self.switch])
        self.jobs = Jobs(inventory, JobOptions(returns=self.path is not None))
        self.controller = Controller(inventory, self.jobs, ServiceConfig(), self.state)
        self.controller.restore()
        await self.switch.start(self.controller.listener(0), 1.0)
        self.jobs.expect_returns(self.controller.clock())
        self.controller.tasks.start(self.controller.tick(), "ticks")

    async def begin(self) -> None:
        await self.open()
        self.ranks = {name: self.join(name, 4) for name in "abc"}
        for rank in self.ranks.values():
            await rank.until("ready")
        self.ranks["b"].said.put_nowait(pb.ClientMessage(leave=pb.Leave()))
        await self.ranks["b"].until("left")
        await until(lambda: self.jobs.pools[0].used == 8)
        self.switch.log.clear()

    def join(self, name: str, slots: int, **options: Any) -> Stream:
        join = pb.Join(job=name, world_size=1, slots=slots, holds=True, **options)
        return self.connect(pb.ClientMessage(join=join))

    def connect(self, first: pb.ClientMessage) -> Stream:
        self.streams.append(Stream(self.controller, self.switch, first))
        return self.streams[-1]

    def wants_room(self) -> Stream:
        return self.join("d", 8, queue_s=1000.0)

    async def wants_room_until(self, what: str) -> None:
        """Queue a job that needs room, and wait until c is to be moved, or until the switch got this call."""
        self.wants_room()
        await until(lambda: any(job.moving for job in self.jobs) if what == "moving" else what in self.switch.log)

    def restart_switch(self) -> None:
        """Restart the switch, which loses job c."""
        self.switch.disconnect()
        self.switch.reconnect(frozenset({3}))

    async def close(self) -> None:
        self.controller.runner.supervisor.stopping.set()
        await self.controller.tasks.close()
        calls = [stream.call for stream in self.streams]
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        if self.state is not None:
            self.state.close()


@asynccontextmanager
async def moving(path: Path | None = None) -> AsyncIterator[CompactionService]:
    service = CompactionService(path)
    await service.begin()
    try:
        yield service
    finally:
        await service.close()


async def test_the_switch_has_it_in_its_new_slots_before_its_rank_goes_on() -> None:
    async with moving() as service:
        service.switch.hold_resets.clear()
        waiting = service.wants_room()
        await until(lambda: "reset" in service.switch.log)
        await asyncio.sleep(0.1)
        assert "release" not in service.ranks["c"].kinds
        placement = service.switch.resets[-1]
        assert (placement.slots, placement.first_seq) == (SlotRange(4, 4), SEQ)
        assert service.switch.admitted[placement.job] == placement
        service.switch.hold_resets.set()
        assert (await service.ranks["c"].until("release")).release == pb.Release(slots=4, first_seq=SEQ)
        await waiting.until("ready")
        assert service.switch.log == ["install", "reset"] * 2
        assert service.ranks["a"].kinds == ["assigned", "ready"]


@pytest.mark.parametrize("what", ["install", "reset"])
async def test_a_switch_that_refuses_is_asked_again_after_fencing(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(rollout, "RETRY_INTERVAL", 0.05)
    async with moving() as service:
        service.switch.fail[what] = SwitchError("busy")
        waiting = service.wants_room()
        await until(lambda: service.switch.log.count("fence") >= 2)
        assert "release" not in service.ranks["c"].kinds
        service.switch.fail.clear()
        await service.ranks["c"].until("release")
        await waiting.until("ready")
        assert service.switch.admitted[3].slots == SlotRange(4, 4)


@pytest.mark.parametrize("at", ["reset", "install"])
async def test_a_rank_that_is_lost_meanwhile_ends_the_job_and_the_slots_are_the_next_ones(at: str) -> None:
    async with moving() as service:
        service.switch.hold_resets.clear()
        if at == "install":
            service.switch.fail["install"] = SwitchError("busy")
        waiting = service.wants_room()
        await until(lambda: [job for job in service.jobs if job.moving])
        await asyncio.sleep(0.05)
        service.ranks["c"].call.cancel()
        service.switch.fail.clear()
        await asyncio.sleep(0.05)
        service.switch.hold_resets.set()
        await waiting.until("ready")
        await until(lambda: service.jobs.pools[0].used == 12)
        assert 3 not in service.switch.admitted
        assert 3 not in service.switch.groups


async def test_a_switch_that_was_restarted_meanwhile_is_set_up_again_and_later_ends_the_job() -> None:
    async with moving() as service:
        service.switch.hold_resets.clear()
        await service.wants_room_until("reset")
        service.restart_switch()
        await asyncio.sleep(0.05)
        service.switch.hold_resets.set()
        await service.ranks["c"].until("release")
        assert service.switch.admitted[3].slots == SlotRange(4, 4)
        assert service.switch.log.count("reset") >= 2
        service.restart_switch()
        assert "lost the job's state" in (await service.ranks["c"].until("abort")).abort.message


async def test_what_cannot_be_kept_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with moving(tmp_path / "state") as service:

        async def full(*_: object) -> None:
            raise StateError("no space left on the device")

        monkeypatch.setattr(service.state, "keep", full)
        service.wants_room()
        assert (await service.ranks["c"].until("release")).release == pb.Release()
        assert service.switch.log == []
        [job] = [job for job in service.jobs if job.name == "c"]
        assert (job.ranges, service.jobs.pools[0].used) == ({0: SlotRange(8, 4)}, 8)


@pytest.mark.parametrize("tries", [1, 100])
async def test_no_rank_goes_on_before_it_is_kept_where_its_job_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    monkeypatch.setattr(effect_runner, "SAVE_RETRY_INTERVAL", 0.02)
    async with moving(tmp_path / "state") as service:
        state = service.state
        failed: list[bool] = []

        async def sometimes_full(*arguments: Any, keep: Any = state.keep) -> None:
            if "reset" in service.switch.log and len(failed) < tries:
                failed.append("release" in service.ranks["c"].kinds)
                raise StateError("no space left on the device")
            await keep(*arguments)

        monkeypatch.setattr(state, "keep", sometimes_full)
        service.wants_room()
        kind = "release" if tries == 1 else "abort"
        told = await service.ranks["c"].until(kind)
        assert not any(failed)
        assert tries == 1 or told.abort.message == (
            "job 'c': the controller cannot store it: no space left on the device"
        )


@pytest.mark.parametrize("at", ["before the switch", "after the switch"])
async def test_the_next_controller_ends_what_this_one_began(tmp_path: Path, at: str) -> None:
    async with moving(tmp_path / "state") as service:
        if at == "before the switch":
            service.switch.fail["install"] = SwitchError("busy")
        else:
            service.switch.hold_resets.clear()
        await service.wants_room_until("moving")
        await asyncio.sleep(0.1)
        assigned = service.ranks["c"].told[0].assigned
        await service.close()
        service.switch.fail.clear()
        service.switch.hold_resets.set()
        service.switch.log.clear()
        service.switch.resets.clear()
        await service.open()
        rejoin = pb.Rejoin(job=assigned.job, generation=assigned.generation, key=assigned.rejoin_key)
        back = service.connect(pb.ClientMessage(rejoin=rejoin))
        back.hold()
        assert (await back.until("release")).release == pb.Release(slots=4, first_seq=SEQ)
        assert "abort" not in back.kinds
        assert service.switch.admitted[3].slots == SlotRange(4, 4)
        assert [(one.job, one.first_seq) for one in service.switch.resets] == [(3, SEQ)]


class Slow:
    """A store like etcd, in which writes of moving jobs are slow.

    fails: the number of such writes that fail, at first.
    kept: whether these have stored the jobs all the same.
    """

    shared = True

    def __init__(self, state: StateFile, fails: int = 0, kept: bool = False) -> None:
        self._state = state
        self.fails = fails
        self._kept = kept
        self._busy = asyncio.Lock()
        self.maybe_lost_leadership: Unavailable | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    async def keep(self, jobs: Callable[[], Iterable[Job]], children: Any, now: float) -> None:
        async with self._busy:
            fails = any(job.moving for job in jobs()) and self.fails > 0
            self.fails -= fails
            await asyncio.sleep(0.1 if fails or any(job.moving for job in jobs()) else 0)
            if not fails or self._kept:
                await self._state.keep(jobs, children, now)
            if fails:
                raise StateError("etcd: nothing can be kept there for 10 s")


def use(service: CompactionService, store: Slow) -> Slow:
    service.controller.saver.store = store  # type: ignore[assignment]
    return store


@pytest.mark.parametrize("fails", [0, 2])
@pytest.mark.parametrize("when", [0.03, 0.15, 0.25])
async def test_a_switch_that_was_restarted_while_it_is_kept_is_reset_before_any_rank_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int, when: float
) -> None:
    monkeypatch.setattr(effect_runner, "SAVE_RETRY_INTERVAL", 0.02)
    async with moving(tmp_path / "state") as service:
        assert service.state is not None
        use(service, Slow(service.state, fails))
        gone_on: list[bool] = []
        reset = service.switch.reset

        async def noted(placement: Placement, timeout: float) -> None:
            if placement.job == 3:
                gone_on.append("release" in service.ranks["c"].kinds)
            await reset(placement, timeout)

        service.switch.reset = noted  # type: ignore[method-assign]
        waiting = service.wants_room()
        await until(lambda: [job for job in service.jobs if job.moving])
        await asyncio.sleep(when)
        service.restart_switch()
        await until(lambda: {"release", "abort"} & {*service.ranks["c"].kinds})
        if "release" in service.ranks["c"].kinds:
            await waiting.until("ready")
        await asyncio.sleep(0.1)
        assert gone_on
        assert not any(gone_on)
        assert service.controller.failure is None
        slots = [one.slots for one in service.switch.admitted.values()]
        assert sorted(slots) == sorted({*slots})


async def test_a_switch_that_was_restarted_before_it_could_not_be_kept_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with moving(tmp_path / "state") as service:
        keep = service.state.keep

        async def full(jobs: Callable[[], Iterable[Job]], *rest: Any) -> None:
            if any(job.moving for job in jobs()):
                service.restart_switch()
                raise StateError("no space left on the device")
            await keep(jobs, *rest)

        monkeypatch.setattr(service.state, "keep", full)
        service.wants_room()
        assert "lost the job's state" in (await service.ranks["c"].until("abort")).abort.message
        assert "release" not in service.ranks["c"].kinds
        assert service.controller.failure is None


async def test_where_it_may_be_kept_or_not_no_rank_goes_on_before_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply came too late; and then this controller ends."""
    monkeypatch.setattr(effect_runner, "SAVE_RETRY_INTERVAL", 0.02)
    monkeypatch.setattr(effect_runner, "MAX_SAVE_TRIES", 2)
    async with moving(tmp_path / "state") as service:
        assert service.state is not None
        store = use(service, Slow(service.state, 1000, kept=True))
        await service.wants_room_until("moving")
        store.maybe_lost_leadership = Unavailable("the lease has not been renewed")
        await until(lambda: store.fails < 1000 - 2 * effect_runner.MAX_SAVE_TRIES)
        assert service.ranks["c"].kinds == ["assigned", "ready", "hold"], "another controller may go on with it"
        assert service.switch.log == []
        store.maybe_lost_leadership = None
        await service.ranks["c"].until("abort")


async def test_what_is_looked_up_while_the_slots_change_is_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new slots still have rounds of the jobs that had them before."""
    monkeypatch.setattr(effect_runner, "LOOK_DELAY", 0.05)
    async with moving() as service:
        asked, changing = [], asyncio.Event()

        async def query(half: int) -> HalfState:
            asked.append(half)
            await changing.wait()
            return HalfState(half, 1_000_000_000, 1, 0)

        service.switch.query = query  # type: ignore[method-assign]
        service.switch.hold_resets.clear()
        service.ranks["c"].ask(1)
        await until(lambda: asked)
        await service.wants_room_until("reset")
        service.ranks["c"].ask(0)
        changing.set()
        await asyncio.sleep(0.2)
        service.switch.hold_resets.set()
        await service.ranks["c"].until("release")
        assert len(asked) == 1
        assert "counted" not in service.ranks["c"].kinds


async def test_what_was_asked_of_other_slots_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be no such slot any more."""
    over = asyncio.Event()

    class Held:
        """A substitute for the module `asyncio`, in which all delays last until `over`."""

        def __getattr__(self, name: str) -> Any:
            return getattr(asyncio, name)

        async def sleep(self, _: float) -> None:
            await over.wait()

    monkeypatch.setattr(effect_runner, "asyncio", Held())
    async with moving() as service:
        asked: list[int] = []

        async def query(half: int) -> HalfState:
            asked.append(half)
            return HalfState(half, SEQ + 2, 1, 0)

        service.switch.query = query  # type: ignore[method-assign]
        for half in (7, 6):
            service.ranks["c"].ask(half)
        [job] = [job for job in service.jobs if job.name == "c"]
        await until(lambda: job.looking)
        service.wants_room()
        await service.ranks["c"].until("release")
        over.set()
        await until(lambda: not job.looking)
        assert "counted" not in service.ranks["c"].kinds
        service.ranks["c"].ask(1)
        await service.ranks["c"].until("counted")
        assert asked == [2 * 4 + 1]
