# SPDX-License-Identifier: Apache-2.0
"""Says random things to a controller, by its service and by packet-in, and sees that it lives and lets go of all.

python -m tests.controller.fuzz --seconds 300 --seed 1
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
import secrets
import sys
import time
from collections import Counter
from dataclasses import replace
from typing import Any

import grpc
from prometheus_client import generate_latest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.protocol.packet import hello
from p4reduce_controller.base.listening import ServiceConfig
from p4reduce_controller.fabric.changes import InitialSwitches
from p4reduce_controller.fabric.inventory import Inventory
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.jobs.lifecycle import JobOptions
from p4reduce_controller.observability.metrics import Metrics
from p4reduce_controller.observability.watch import Watch
from p4reduce_controller.p4runtime.cpu_channel import CpuChannel
from p4reduce_controller.p4runtime.switch_config import SwitchConfig
from p4reduce_controller.service.controller import Controller
from p4reduce_controller.settings.settings import load
from p4reduce_controller.switches.aggregator import Placement, SwitchError
from p4reduce_controller.switches.frames import Endpoint, build
from p4reduce_controller.switches.pools import SlotRange
from p4reduce_controller.webpage.page_data import history_of, view_of
from tests.support.controller.fake_switch import FakeSwitch

from .fuzzed import Ended, FakeContext, Words, mutated

RANKS = 24  # sessions at a time
EPISODE = 400  # steps, after which all sessions end
SETTLE_S = 20.0
UNARY = {
    "Status": pb.StatusRequest,
    "SetLoss": pb.SetLossRequest,
    "AbortJob": pb.AbortJobRequest,
    "Slots": pb.SlotsRequest,
    "AddSwitch": pb.AddSwitchRequest,
    "DrainSwitch": pb.DrainSwitchRequest,
    "RemoveSwitch": pb.RemoveSwitchRequest,
}


class Found(Exception):
    """A violated invariant that the fuzzer has found."""


class Complaints(logging.Handler):
    """A log handler that keeps records with a traceback, which no code means to log here."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info or record.levelno >= logging.CRITICAL:
            self.found.append(logging.Formatter().format(record))


class FakeLink:
    """A connection to a switch that never answers. sent: the latest frames that it was sent."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    async def send_packet(self, frame: bytes, **_: int) -> None:
        self.sent = [*self.sent[-64:], frame]


class Fuzzer:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.words = Words(self.random)
        self.steps: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self._sessions: list[tuple[FakeContext, asyncio.Future[None]]] = []
        self._others: set[asyncio.Future[Any]] = set()
        self._complaints = Complaints()

    async def run(self, seconds: float) -> None:
        """Run episodes for so many seconds. Raises Found for the first violated invariant."""
        loop = asyncio.get_running_loop()
        wrong: list[str] = []
        loop.set_exception_handler(lambda _, context: wrong.append(str(context)))
        root = logging.getLogger()
        root.addHandler(self._complaints)
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                await self._episode(end)
                if trouble := [*wrong, *self._complaints.found]:
                    raise Found(trouble[0])
        finally:
            root.removeHandler(self._complaints)

    async def _episode(self, end: float) -> None:
        """Run one controller from its start to its end."""
        self.switches = [FakeSwitch(16, number) for number in range(3)]
        loopback = self.random.choice(["127.0.0.1", "::1"])
        for number, switch in enumerate(self.switches):
            switch.address = replace(switch.address, ip=loopback)
            switch.halves = {half: (self.random.getrandbits(32), self.random.getrandbits(32)) for half in range(32)}
            switch.cables = {1: [(self.switches[(number + 1) % 3], 1)]}
        inventory = Inventory(self.switches)
        jobs = Jobs(inventory, JobOptions(leave_grace=0.5, rejoin_time=0.5))
        self.controller = Controller(inventory, jobs, ServiceConfig(listen="127.0.0.1:0"))
        self.controller.bind()
        self.link = FakeLink()
        self.channels = []
        for number, switch in enumerate(self.switches):
            await switch.start(self.controller.listener(number), 1.0)
            ear = self.controller.listener(number)
            self.channels.append(
                CpuChannel("fuzz", switch.address, switch.layout, lambda: self.link, ear.on_hello, ear.awaits)  # type: ignore[arg-type,return-value]
            )
        self.controller.open(load(None, {}), self._new_switch, InitialSwitches((), ()))
        await self.controller.start()
        try:
            for _ in range(EPISODE):
                try:
                    await self._step()
                except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
                    raise Found(repr(error)) from error
                if self.controller.failure is not None:
                    raise Found(f"the service has failed: {self.controller.failure!r}") from self.controller.failure
                if time.monotonic() >= end:
                    break
            await self._settle(jobs)
        finally:
            for _, task in self._sessions:
                task.cancel()
            for other in self._others:
                other.cancel()
            await asyncio.gather(*self._others, *[task for _, task in self._sessions], return_exceptions=True)
            self._sessions, self._others = [], set()
            await self.controller.close()

    def _new_switch(self, _: SwitchConfig) -> FakeSwitch:
        return FakeSwitch(16, self.random.randrange(3, 9))

    async def _step(self) -> None:
        steps = {
            self._begin: 4,
            self._say: 8,
            self._hello: 8,
            self._packet: 8,
            self._ask: 6,
            self._hang_up: 2,
            self._unplug: 1,
            self._plug_in: 2,
            self._wait: 3,
            self._reset: 0.3,
            self._query: 0.3,
            self._look: 1,
        }
        [step] = self.random.choices(list(steps), list(steps.values()))
        self.steps[step.__name__[1:]] += 1
        await step()

    # Sessions.

    async def _begin(self) -> None:
        if len(self._sessions) < RANKS:
            context = FakeContext(self.words)
            session = asyncio.ensure_future(self._session(context))
            session.add_done_callback(self._over)
            self._sessions.append((context, session))
            await self._tell(context, self.words.first())

    async def _session(self, context: FakeContext) -> None:
        try:
            await self.controller.service.Session(None, context)  # type: ignore[arg-type]
        except Ended as ended:
            self.refusals[ended.code.name] += 1

    async def _tell(self, context: FakeContext, message: pb.ClientMessage) -> None:
        sent = mutated(self.random, message, pb.ClientMessage)
        if sent is not None:  # else gRPC has refused it
            context.put(sent)
        await asyncio.sleep(0)

    async def _say(self) -> None:
        if self._sessions:
            context, _ = self.random.choice(self._sessions)
            await self._tell(context, self.words.later())

    async def _hang_up(self) -> None:
        if self._sessions:
            context, task = self._sessions.pop(self.random.randrange(len(self._sessions)))
            if self.random.random() < 0.5:
                context.put(grpc.aio.EOF)
            else:
                task.cancel()
            self._others.add(task)

    def _over(self, task: asyncio.Future[Any]) -> None:
        self._others.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._complaints.found.append(repr(error))

    # Requests.

    async def _ask(self) -> None:
        method, kind = self.random.choice(list(UNARY.items()))
        request = mutated(self.random, self.words.message(kind), kind)
        if request is None:
            return
        asked = asyncio.ensure_future(self._asked(method, request))
        self._others.add(asked)
        asked.add_done_callback(self._over)
        if self.random.random() < 0.1:
            asked.cancel()
        await asyncio.sleep(0)

    async def _asked(self, method: str, request: Any) -> None:
        try:
            await getattr(self.controller.service, method)(request, FakeContext(self.words))
        except Ended as ended:
            self.refusals[ended.code.name] += 1

    async def _look(self) -> None:
        """Read the controller's status, as its web page and Prometheus do."""
        watch = Watch(self.controller.status, self.controller.reports.ports)
        watch.look(await self.controller.status(), time.time())
        assert watch.last_view is not None
        view_of(watch.last_view, self.controller.unavailable)
        history_of(watch.history, lambda _: True)
        list(Metrics(lambda: watch.last_view).collect())
        generate_latest(self.controller.telemetry.registry)

    # Packets.

    async def _hello(self) -> None:
        """Let a HELLO arrive, as a rule one that a rank waits for."""
        if not self.words.assigned:
            return
        one = self.random.choice(self.words.assigned)
        address = self.switches[0].address
        packet = hello(4, one.hello_nonce, job=one.job, generation=one.generation, worker=one.worker)
        sender = Endpoint(f"02:00:00:00:00:{one.worker % 256:02x}", address.ip, 40000 + one.worker)
        self._arrives(build(packet, sender, address))

    async def _packet(self) -> None:
        if self.link.sent and self.random.random() < 0.5:
            self._arrives(self.random.choice(self.link.sent))
        else:
            self._arrives(self.words.frame())
        await asyncio.sleep(0)

    def _arrives(self, frame: bytes) -> None:
        if self.random.random() < 0.4:
            frame = self.words.spoiled(frame)
        metadata = {"ingress_port": self.random.choice([0, 1, 2, 511]), "bitmap": self.random.getrandbits(32)}
        self.random.choice(self.channels).on_packet(frame, lambda: metadata)

    async def _reset(self) -> None:
        slots = SlotRange(self.random.randrange(4), self.random.randrange(1, 4))
        placement = Placement(1, self.random.getrandbits(16), slots, self.random.getrandbits(31) << 1, ())
        await self._answered(self.channels[0].reset(placement))

    async def _query(self) -> None:
        await self._answered(self.channels[0].query(self.random.randrange(32)))

    async def _answered(self, work: Any) -> None:
        """Check that the work ends once the switch answers, whatever else arrives."""
        doing = asyncio.ensure_future(work)
        deadline = time.monotonic() + SETTLE_S
        while not doing.done():
            await asyncio.sleep(0.001)
            for frame in list(self.link.sent):
                self.channels[0].on_packet(self.words.spoiled(frame), lambda: {"bitmap": 1, "ingress_port": 1})
                self.channels[0].on_packet(frame, lambda: {"bitmap": 1, "ingress_port": 1})
            if time.monotonic() > deadline:
                raise Found("a RESET or QUERY that was answered has not ended")
        with contextlib.suppress(SwitchError):
            await doing

    # Time, and switches.

    async def _wait(self) -> None:
        await asyncio.sleep(self.random.choice([0.0, 0.0, 0.001, 0.01]))

    async def _unplug(self) -> None:
        switch = self.random.choice(self.switches)
        if not switch.problem:
            switch.disconnect()

    async def _plug_in(self) -> None:
        switch = self.random.choice(self.switches)
        if switch.problem:
            switch.reconnect(frozenset(number for number in switch.admitted if self.random.random() < 0.5))

    async def _settle(self, jobs: Jobs) -> None:
        """End all sessions, and check that no job, no queued job and no used slot is left."""
        for switch in self.switches:
            if switch.problem:
                switch.reconnect()
        for context, _ in self._sessions:
            context.put(grpc.aio.EOF)
        deadline = time.monotonic() + SETTLE_S
        while left := [*list(jobs), *jobs.queue.waitlist, *(pool for pool in jobs.pools if pool.used)]:
            if time.monotonic() > deadline:
                raise Found(f"{SETTLE_S:g} s after all sessions have ended, there are still {left}")
            await asyncio.sleep(0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=None, help="By default a random one.")
    options = parser.parse_args()
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    fuzzer = Fuzzer(seed)
    try:
        asyncio.run(fuzzer.run(options.seconds))
    except Found as found:
        sys.exit(f"found with seed {seed} after {sum(fuzzer.steps.values())} steps: {found}")
    print(f"nothing found in {sum(fuzzer.steps.values())} steps: {dict(fuzzer.steps)}")
    print(f"calls and streams that were refused: {dict(fuzzer.refusals)}")


if __name__ == "__main__":
    main()
