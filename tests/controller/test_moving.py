# SPDX-License-Identifier: Apache-2.0
"""A job gets other slots on its switch while things go wrong: it is there as a whole, or over, and no slot is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.jobs.pools import SlotRange
from p4reduce_controller.service import service as service_module
from p4reduce_controller.service.listening import ServiceConfig
from p4reduce_controller.service.service import Service
from p4reduce_controller.store.state import StateError, StateFile
from p4reduce_controller.switches import rollout
from p4reduce_controller.switches.aggregator import Heard, SwitchError
from p4reduce_controller.switches.frames import Endpoint

from .fake_switch import FakeSwitch
from .ranks import DEADLINE

SEQ = 500


class Call:
    """The stream of a job's only rank, in memory. It is heard as soon as it is assigned, and holds when it is asked."""

    def __init__(self, service: Service, switch: FakeSwitch, message: pb.ClientMessage) -> None:
        self.told: list[pb.ServerMessage] = []
        self.said: asyncio.Queue[pb.ClientMessage] = asyncio.Queue()
        self.said.put_nowait(message)
        self._switch = switch
        self.task = asyncio.create_task(service.Session(None, self))  # type: ignore[arg-type]

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def read(self) -> pb.ClientMessage:
        return await self.said.get()

    async def write(self, message: pb.ServerMessage) -> None:
        self.told.append(message)
        if message.HasField("assigned"):
            one = message.assigned
            sender = Endpoint("02:00:00:00:00:01", "10.0.0.1", 5000 + one.job)
            self._switch.hear(Heard(1, sender, one.job, one.generation, one.worker, one.hello_nonce))
        elif message.HasField("hold"):
            self.hold()

    def hold(self) -> None:
        self.said.put_nowait(pb.ClientMessage(held=pb.Held(operations=3, quiet=True, first_seq=SEQ)))

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


class Hall:
    """Of 16 slots, jobs a (4), b (4) and c (4), of which b ends; d waits for 8."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.switch = FakeSwitch()

    async def open(self) -> None:
        self.state = StateFile(self.path) if self.path else None
        self.jobs = Jobs(self.switch.layout, [self.switch.address], returns=self.path is not None)
        self.service = Service([self.switch], self.jobs, ServiceConfig(), self.state)
        self.service.restore()
        await self.switch.start(self.service.listener(0), 1.0)
        self.jobs.expect_returns(self.service._clock())
        self.service._tasks.start(self.service._tick(), "ticks")

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
        return Call(self.service, self.switch, pb.ClientMessage(join=join))

    def wants_room(self) -> Call:
        return self.join("d", 8, queue_s=1000.0)

    async def close(self) -> None:
        self.service._supervisor.stop()
        await self.service._tasks.close()
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
    monkeypatch.setattr(service_module, "SAVE_AGAIN", 0.02)

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
        assert tries == 1 or told.abort.message == "job 'c': no space left on the device"

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
        back = hall.calls["c"] = Call(hall.service, hall.switch, pb.ClientMessage(rejoin=rejoin))
        back.hold()
        assert (await back.until("release")).release == pb.Release(slots=4, first_seq=SEQ)
        assert "abort" not in back.kinds
        assert hall.switch.admitted[3].slots == SlotRange(4, 4)
        assert [(one.job, one.first_seq) for one in hall.switch.resets] == [(3, SEQ)]

    moving(work, tmp_path / "state")


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
