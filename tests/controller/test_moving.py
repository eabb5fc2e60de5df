# SPDX-License-Identifier: Apache-2.0
"""A job gets other slots on its switch while things go wrong: it is there as a whole, or over, and no slot is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
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
from p4reduce_controller.switches.aggregator import HalfState, Heard, Placement, SwitchError
from p4reduce_controller.switches.availability import Unavailable
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.pools import SlotRange
from tests.support.controller.fake_switch import FakeSwitch
from tests.support.controller.ranks import DEADLINE

SEQ = 500


pytestmark = pytest.mark.usefixtures("few_slots_do")


class Call:
    """The stream of a job's only rank, in memory. It is heard as soon as it is assigned, and holds when it is asked."""

    def __init__(self, controller: Controller, switch: FakeSwitch, message: pb.ClientMessage) -> None:
        self.told: list[pb.ServerMessage] = []
        self.said: asyncio.Queue[pb.ClientMessage] = asyncio.Queue()
        self.said.put_nowait(message)
        self._switch = switch
        self.task = asyncio.create_task(controller.service.Session(None, self))  # type: ignore[arg-type]

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    def invocation_metadata(self) -> tuple[()]:
        return ()

    async def read(self) -> pb.ClientMessage:
        return await self.said.get()

    async def write(self, message: pb.ServerMessage) -> None:
        self.told.append(message)
        if message.HasField("assigned"):
            one = message.assigned
            sender = Endpoint("02:00:00:00:00:01", "10.0.0.1", 5000 + one.job)
            self._switch.hear(Heard(1, sender, one.job, one.generation, one.worker, one.hello_nonce))
        elif message.HasField("hold"):
            self.hold(message.hold.number)

    def hold(self, number: int = 0) -> None:
        self.said.put_nowait(pb.ClientMessage(held=pb.Held(operations=3, quiet=True, first_seq=SEQ, number=number)))

    @property
    def kinds(self) -> list[str]:
        return [message.WhichOneof("message") or "" for message in self.told]

    async def until(self, kind: str) -> pb.ServerMessage:
        await wait(lambda: kind in self.kinds, kind)
        return self.told[self.kinds.index(kind)]


async def wait(condition: Callable[[], object], what: str) -> None:
    for _ in range(int(100 * DEADLINE)):
        if condition():
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"waited in vain for {what}")


class BrieflyAway(FakeSwitch):
    """However long it is away, jobs count on it, as on a real switch for the first moments."""

    @property
    def unavailable(self) -> Unavailable | None:
        return replace(why, brief=True) if (why := super().unavailable) else None


class Hall:
    """Jobs a, b and c have 4 of 16 slots each. Then b ends, and d waits for 8."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.switch = BrieflyAway()

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
        self.calls = {name: self.join(name, 4) for name in "abc"}
        for call in self.calls.values():
            await call.until("ready")
        self.calls["b"].said.put_nowait(pb.ClientMessage(leave=pb.Leave()))
        await self.calls["b"].until("left")
        await wait(lambda: self.jobs.pools[0].used == 8, "b to be off")
        self.switch.log.clear()

    def join(self, name: str, slots: int, **options: Any) -> Call:
        join = pb.Join(job=name, world_size=1, slots=slots, holds=True, **options)
        return Call(self.controller, self.switch, pb.ClientMessage(join=join))

    def wants_room(self) -> Call:
        return self.join("d", 8, queue_s=1000.0)

    async def close(self) -> None:
        self.controller.runner.supervisor.stopping.set()
        await self.controller.tasks.close()
        for call in self.calls.values():
            call.task.cancel()
        await asyncio.gather(*(call.task for call in self.calls.values()), return_exceptions=True)
        if self.state is not None:
            self.state.close()


def moving(
    work: Callable[[Hall], Coroutine[Any, Any, None]], path: Path | None = None, hall: type[Hall] = Hall
) -> None:
    async def run() -> None:
        here = hall(path)
        await here.begin()
        try:
            await work(here)
        finally:
            await here.close()

    asyncio.run(run())


def test_the_switch_has_it_in_its_new_slots_before_its_rank_goes_on() -> None:
    async def work(hall: Hall) -> None:
        hall.switch.hold_resets.clear()
        waiting = hall.wants_room()
        await wait(lambda: "reset" in hall.switch.log, "its new slots to be reset")
        await asyncio.sleep(0.3)
        assert "release" not in hall.calls["c"].kinds
        placement = hall.switch.resets[-1]
        assert (placement.slots, placement.first_seq) == (SlotRange(4, 4), SEQ)
        assert hall.switch.admitted[placement.job] == placement
        hall.switch.hold_resets.set()
        assert (await hall.calls["c"].until("release")).release == pb.Release(slots=4, first_seq=SEQ)
        await waiting.until("ready")
        assert hall.switch.log == ["install", "reset"] * 2
        assert hall.calls["a"].kinds == ["assigned", "ready"]

    moving(work)


@pytest.mark.parametrize("what", ["install", "reset"])
def test_a_switch_that_refuses_is_asked_again_after_fencing(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(rollout, "RETRY", 0.05)

    async def work(hall: Hall) -> None:
        hall.switch.fail[what] = SwitchError("busy")
        waiting = hall.wants_room()
        await wait(lambda: hall.switch.log.count("fence") >= 2, "further tries")
        assert "release" not in hall.calls["c"].kinds
        hall.switch.fail.clear()
        await hall.calls["c"].until("release")
        await waiting.until("ready")
        assert hall.switch.admitted[3].slots == SlotRange(4, 4)

    moving(work)


@pytest.mark.parametrize("at", ["reset", "install"])
def test_a_rank_that_is_lost_meanwhile_ends_the_job_and_the_slots_are_the_next_ones(at: str) -> None:
    async def work(hall: Hall) -> None:
        hall.switch.hold_resets.clear()
        if at == "install":
            hall.switch.fail["install"] = SwitchError("busy")
        waiting = hall.wants_room()
        await wait(lambda: [job for job in hall.jobs if job.moving], "the move")
        await asyncio.sleep(0.05)
        hall.calls["c"].task.cancel()
        hall.switch.fail.clear()
        await asyncio.sleep(0.05)
        hall.switch.hold_resets.set()
        await waiting.until("ready")
        await wait(lambda: hall.jobs.pools[0].used == 12, "its slots")
        assert 3 not in hall.switch.admitted
        assert 3 not in hall.switch.groups

    moving(work)


def test_a_switch_that_was_restarted_meanwhile_is_set_up_again_and_later_ends_the_job() -> None:
    async def work(hall: Hall) -> None:
        hall.switch.hold_resets.clear()
        hall.wants_room()
        await wait(lambda: "reset" in hall.switch.log, "its new slots to be reset")
        hall.switch.disconnect()
        hall.switch.reconnect(frozenset({3}))
        await asyncio.sleep(0.05)
        hall.switch.hold_resets.set()
        await hall.calls["c"].until("release")
        assert hall.switch.admitted[3].slots == SlotRange(4, 4)
        assert hall.switch.log.count("reset") >= 2
        hall.switch.disconnect()
        hall.switch.reconnect(frozenset({3}))
        assert "lost the job's state" in (await hall.calls["c"].until("abort")).abort.message

    moving(work)


def test_what_cannot_be_kept_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(hall: Hall) -> None:
        assert hall.state is not None

        async def full(*_: object) -> None:
            raise StateError("no space left on the device")

        monkeypatch.setattr(hall.state, "keep", full)
        hall.wants_room()
        assert (await hall.calls["c"].until("release")).release == pb.Release()
        assert hall.switch.log == []
        [job] = [job for job in hall.jobs if job.name == "c"]
        assert (job.ranges, hall.jobs.pools[0].used) == ({0: SlotRange(8, 4)}, 8)

    moving(work, tmp_path / "state")


@pytest.mark.parametrize("tries", [1, 100])
def test_no_rank_goes_on_before_it_is_kept_where_its_job_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tries: int
) -> None:
    monkeypatch.setattr(effect_runner, "SAVE_AGAIN", 0.02)

    async def work(hall: Hall) -> None:
        state = hall.state
        assert state is not None
        failed: list[bool] = []

        async def sometimes_full(*arguments: Any, keep: Any = state.keep) -> None:
            if "reset" in hall.switch.log and len(failed) < tries:
                failed.append("release" in hall.calls["c"].kinds)
                raise StateError("no space left on the device")
            await keep(*arguments)

        monkeypatch.setattr(state, "keep", sometimes_full)
        hall.wants_room()
        kind = "release" if tries == 1 else "abort"
        told = await hall.calls["c"].until(kind)
        assert not any(failed)
        assert tries == 1 or told.abort.message == (
            "job 'c': the controller cannot store it: no space left on the device"
        )

    moving(work, tmp_path / "state")


@pytest.mark.parametrize("at", ["before the switch", "after the switch"])
def test_the_next_controller_ends_what_this_one_began(tmp_path: Path, at: str) -> None:
    async def work(hall: Hall) -> None:
        if at == "before the switch":
            hall.switch.fail["install"] = SwitchError("busy")
        else:
            hall.switch.hold_resets.clear()
        hall.wants_room()
        await wait(lambda: [job for job in hall.jobs if job.moving], "the move")
        await asyncio.sleep(0.1)
        assigned = hall.calls["c"].told[0].assigned
        await hall.close()
        hall.switch.fail.clear()
        hall.switch.hold_resets.set()
        hall.switch.log.clear()
        hall.switch.resets.clear()
        hall.calls.clear()
        await hall.open()
        rejoin = pb.Rejoin(job=assigned.job, generation=assigned.generation, key=assigned.rejoin_key)
        back = hall.calls["c"] = Call(hall.controller, hall.switch, pb.ClientMessage(rejoin=rejoin))
        back.hold()
        assert (await back.until("release")).release == pb.Release(slots=4, first_seq=SEQ)
        assert "abort" not in back.kinds
        assert hall.switch.admitted[3].slots == SlotRange(4, 4)
        assert [(one.job, one.first_seq) for one in hall.switch.resets] == [(3, SEQ)]

    moving(work, tmp_path / "state")


class Slow:
    """A store like etcd, where what is kept of a job that moves takes a while, and fails then so many times: after it
    was kept, or before."""

    shared = True

    def __init__(self, state: StateFile, fails: int = 0, kept: bool = False) -> None:
        self._state = state
        self._fails = fails
        self._kept = kept
        self._busy = asyncio.Lock()
        self.maybe_lost_leadership: Unavailable | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    async def keep(self, jobs: Callable[[], Iterable[Job]], children: Any, now: float) -> None:
        async with self._busy:
            fails = any(job.moving for job in jobs()) and self._fails > 0
            self._fails -= fails
            await asyncio.sleep(0.2 if fails or any(job.moving for job in jobs()) else 0)
            if not fails or self._kept:
                await self._state.keep(jobs, children, now)
            if fails:
                raise StateError("etcd: nothing can be kept there for 10 s")


def use(hall: Hall, store: Slow) -> Slow:
    hall.controller.saver.store = store  # type: ignore[assignment]
    return store


@pytest.mark.parametrize("fails", [0, 2])
@pytest.mark.parametrize("when", [0.05, 0.3, 0.5])
def test_a_switch_that_was_restarted_while_it_is_kept_is_reset_before_any_rank_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: int, when: float
) -> None:
    monkeypatch.setattr(effect_runner, "SAVE_AGAIN", 0.02)

    async def work(hall: Hall) -> None:
        assert hall.state is not None
        use(hall, Slow(hall.state, fails))
        gone_on: list[bool] = []
        reset = hall.switch.reset

        async def noted(placement: Placement, timeout: float) -> None:
            if placement.job == 3:
                gone_on.append("release" in hall.calls["c"].kinds)
            await reset(placement, timeout)

        hall.switch.reset = noted  # type: ignore[method-assign]
        waiting = hall.wants_room()
        await wait(lambda: [job for job in hall.jobs if job.moving], "the move")
        await asyncio.sleep(when)
        hall.switch.disconnect()
        hall.switch.reconnect(frozenset({3}))
        await wait(lambda: {"release", "abort"} & {*hall.calls["c"].kinds}, "an end")
        if "release" in hall.calls["c"].kinds:
            await waiting.until("ready")
        await asyncio.sleep(0.3)
        assert gone_on
        assert not any(gone_on)
        assert hall.controller.failure is None
        slots = [one.slots for one in hall.switch.admitted.values()]
        assert sorted(slots) == sorted({*slots})

    moving(work, tmp_path / "state")


def test_a_switch_that_was_restarted_before_it_could_not_be_kept_ends_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(hall: Hall) -> None:
        assert hall.state is not None
        keep = hall.state.keep

        async def full(jobs: Callable[[], Iterable[Job]], *rest: Any) -> None:
            if any(job.moving for job in jobs()):
                hall.switch.disconnect()
                hall.switch.reconnect(frozenset({3}))
                raise StateError("no space left on the device")
            await keep(jobs, *rest)

        monkeypatch.setattr(hall.state, "keep", full)
        hall.wants_room()
        assert "lost the job's state" in (await hall.calls["c"].until("abort")).abort.message
        assert "release" not in hall.calls["c"].kinds
        assert hall.controller.failure is None

    moving(work, tmp_path / "state")


def test_where_it_may_be_kept_or_not_no_rank_goes_on_before_that_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply came too late; and then this controller ends."""
    monkeypatch.setattr(effect_runner, "SAVE_AGAIN", 0.1)
    monkeypatch.setattr(effect_runner, "SAVE_TRIES", 2)

    async def work(hall: Hall) -> None:
        assert hall.state is not None
        store = use(hall, Slow(hall.state, 1000, kept=True))
        hall.wants_room()
        await wait(lambda: [job for job in hall.jobs if job.moving], "the move")
        store.maybe_lost_leadership = Unavailable("the lease has not been renewed")
        await asyncio.sleep(1.5)
        assert hall.calls["c"].kinds == ["assigned", "ready", "hold"], "another controller may go on with it"
        assert hall.switch.log == []
        store.maybe_lost_leadership = None
        await hall.calls["c"].until("abort")

    moving(work, tmp_path / "state")


def test_a_job_whose_switch_is_away_is_not_asked() -> None:
    async def work(hall: Hall) -> None:
        hall.wants_room()
        hall.switch.disconnect()
        await asyncio.sleep(1.5)
        assert hall.calls["a"].kinds == hall.calls["c"].kinds == ["assigned", "ready"]
        hall.switch.reconnect(frozenset())
        await hall.calls["c"].until("release")

    moving(work)


def test_what_is_looked_up_while_the_slots_change_is_not_told() -> None:
    """In the new slots are rounds of whoever had them."""

    async def work(hall: Hall) -> None:
        asked: list[int] = []

        async def query(half: int) -> HalfState:
            asked.append(half)
            await asyncio.sleep(1.2)
            return HalfState(half, 1_000_000_000, 1, 0)

        hall.switch.query = query  # type: ignore[method-assign]
        hall.switch.hold_resets.clear()
        hall.calls["c"].said.put_nowait(pb.ClientMessage(unanswered=pb.Unanswered(half=1)))
        await wait(lambda: asked, "the question")
        hall.wants_room()
        await wait(lambda: "reset" in hall.switch.log, "its new slots to be reset")
        hall.calls["c"].said.put_nowait(pb.ClientMessage(unanswered=pb.Unanswered(half=0)))
        await asyncio.sleep(1.5)
        hall.switch.hold_resets.set()
        await hall.calls["c"].until("release")
        assert len(asked) == 1
        assert "counted" not in hall.calls["c"].kinds

    moving(work)


def test_what_was_asked_of_other_slots_is_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be no such slot any more."""
    monkeypatch.setattr(effect_runner, "LOOK_AFTER", 1.0)

    async def work(hall: Hall) -> None:
        asked: list[int] = []

        async def query(half: int) -> HalfState:
            asked.append(half)
            return HalfState(half, SEQ + 2, 1, 0)

        hall.switch.query = query  # type: ignore[method-assign]
        for half in (7, 6):
            hall.calls["c"].said.put_nowait(pb.ClientMessage(unanswered=pb.Unanswered(half=half)))
        [job] = [job for job in hall.jobs if job.name == "c"]
        await wait(lambda: job.looking, "the question")
        hall.wants_room()
        await hall.calls["c"].until("release")
        await wait(lambda: not job.looking, "the look")
        await asyncio.sleep(1.2)
        assert asked == []
        assert "counted" not in hall.calls["c"].kinds
        hall.calls["c"].said.put_nowait(pb.ClientMessage(unanswered=pb.Unanswered(half=1)))
        await hall.calls["c"].until("counted")

    moving(work)


def test_ranks_that_share_memory_are_not_asked() -> None:
    class InMemory(Hall):
        def join(self, name: str, slots: int, **options: Any) -> Call:
            return super().join(name, slots, host="here", **options)

    async def work(hall: Hall) -> None:
        waiting = Hall.join(hall, "d", 14, queue_s=1000.0)
        await waiting.until("ready")
        assert hall.calls["a"].kinds == hall.calls["c"].kinds == ["assigned", "ready"]
        assert hall.jobs.pools[0].used == 16

    moving(work, hall=InMemory)
