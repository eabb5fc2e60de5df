# SPDX-License-Identifier: Apache-2.0
"""A scenario from a seed: a site, jobs and faults, and what must hold at the end.

It begins with idle time, in which nothing runs but the switches. Then come jobs and faults. In the end all faults are
mended; then every rank must end, every slot must become free, and one more job must succeed.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import greenlet

from p4reduce.control import jobs_pb2 as pb
from tests.simulation import etcd
from tests.simulation.environment import simulated
from tests.simulation.network import Network, host_of
from tests.simulation.program import SLOTS
from tests.simulation.rank import JobPlan, Rank
from tests.simulation.rules import LONGEST_WAIT, Rules
from tests.simulation.site import Controller, Fault, Job, LogNotes, Site, run_until
from tests.simulation.variations import Variations
from tests.simulation.world import ROUNDS_TO_CLOSE, Process, Violation, World

SETTLE = 300.0  # seconds for everything to end when all faults are mended
FREE = 90.0  # seconds for the slots to be free after that
START = 60.0
JOIN_TIMEOUT = 30.0
QUEUE = 150.0  # seconds that a rank may wait for slots
OPERATION_TIMEOUT = 600.0  # longer than any wait may last
LONGEST_FAULT = 20.0
_ETCD = host_of(etcd.ADDRESS)


@dataclass(frozen=True)
class Result:
    """The end of a scenario.

    `busy`: the simulated seconds in which controllers ran. `error`: None if all was well.
    `variations`: the option of `python -m tests.simulation` that plays with them.
    """

    seed: int
    seconds: float
    busy: float
    steps: int
    digest: str
    tail: list[str]
    error: BaseException | None = None
    variations: str = ""


def play(
    seed: int,
    echo: Callable[[str], None] | None = None,
    *,
    idle: float = 40_000.0,
    scenario_class: type[Scenario] | None = None,
    variations: Iterable[str] = (),
) -> Result:
    """Play the scenario of the seed. `idle`: the mean of its idle seconds. `variations`: names of `VARIATIONS`."""
    varied = Variations(frozenset(variations), seed)
    world = World(seed)
    world.echo = echo
    Network(world)
    begun, error = world.now, None
    with tempfile.TemporaryDirectory() as folder, _logged(world), simulated(world):
        world.folder = folder
        scenario = (scenario_class or Scenario)(world, Path(folder), idle, varied)
        try:
            scenario.run()
        except Exception as failure:
            error = failure
            world.note("failure", f"{type(failure).__name__}: {failure}")
        digest, tail = world.digest, list(world.tail)
        _end(world)
    busy = world.now - (scenario.busy_since or world.now)
    return Result(seed, world.now - begun, busy, world.steps, digest, tail, error, varied.option)


def _end(world: World) -> None:
    """End what still runs, without any consequence."""
    world.checks, world.echo, world.over = [], None, True
    for process in [*world.processes, *world.dead]:
        process.alive = True  # so that its tasks can end
        world.current = process
        for thread in list(process.threads):
            for _ in range(ROUNDS_TO_CLOSE):
                with contextlib.suppress(BaseException):
                    thread.greenlet.throw(greenlet.GreenletExit)
                if thread.greenlet.dead:
                    break
        process.close()
    world.current = None
    world.processes, world.dead = [], []
    gc.collect()


@contextlib.contextmanager
def _logged(world: World) -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers[:] = [LogNotes(world)]
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


class Scenario:
    """One scenario."""

    def __init__(self, world: World, folder: Path, idle: float, variations: Variations) -> None:
        self.world, self._variations = world, variations
        self.random = random = world.random
        self.busy_since = 0.0
        self._idle = random.expovariate(1 / idle) if idle else 0.0
        kind = random.choice(["plain", "file", "file", "pair", "pair"])
        roots, leaves = random.choice([(1, 0), (1, 0), (2, 0), (1, 2), (2, 2)])
        hosts = random.randint(2, 4)
        self.site = Site(world, folder, variations, kind=kind, roots=roots, leaves=leaves, hosts=hosts)
        self.length = random.uniform(20, 60)
        world.note("scenario", f"seed {world.seed}: {kind}, {roots} roots, {leaves} leaves, {self.length:.0f} s")

    def run(self) -> None:
        site, world, random = self.site, self.world, self.random
        for switch in site.switches:
            switch.start()
        world.run(self._idle)
        self.busy_since = world.now
        for controller in site.controllers:
            controller.start()
        run_until(world, START, lambda: site.leader is not None, "no controller serves")
        run_until(world, START, lambda: not site.idle(), "a switch is not set up")
        self._rules = Rules(site)
        net = site.net
        net.loss, net.duplicates = random.choice([0, 0, 0.01, 0.1]), random.choice([0, 0, 0.02, 0.2])
        net.delay = random.choice([0.0, 0.001, 0.3])
        for number in range(random.choice([1, 2, 3, 5, 8])):
            world.after(random.uniform(0, self.length / 2), lambda number=number: self._begin_job(f"job{number}"))
        when = 0.0
        for _ in range(random.choice([0, 1, 1, 1, 2, 3, 5, 8, 20])):
            # Some faults come shortly after the one before.
            when = when + random.uniform(0, 1) if random.random() < 0.4 else random.uniform(0, self.length)
            world.after(when, self._strike)
        world.run(self.length + LONGEST_FAULT)
        run_until(world, SETTLE, lambda: all(job.over for job in site.jobs), "ranks still wait")
        self._run_until_idle()
        self._rules.begin_last()
        last = self._begin_job("last")
        run_until(world, LONGEST_WAIT, lambda: last.over, "the last job does not end")
        for rank in last.ranks:
            if rank.outcome != "left":
                raise Violation(f"{rank.name} failed after all faults were mended: {rank.error!r}")
        self._run_until_idle()

    def _run_until_idle(self) -> None:
        if not self.world.run(FREE, lambda: not self.site.idle()):
            raise Violation(f"the site is not idle after {FREE:g} s: {self.site.idle()}")

    def _begin_job(self, name: str) -> Job:
        random = self.random
        size = random.randint(1, 4)
        plan = JobPlan(
            name=name,
            seed=random.getrandbits(32),
            world_size=size,
            slots=random.choice([random.randint(1, SLOTS), random.randint(1, 6)]),
            values=random.choice([1, 64, 500, 3000]),
            pauses=tuple(random.choice([0.0, 0.01, random.uniform(0, 8)]) for _ in range(random.choice([1, 4, 10]))),
            timeout=OPERATION_TIMEOUT,
            join_timeout=JOIN_TIMEOUT,
            queue=random.choice([0.0, QUEUE, QUEUE]),
        )
        plan = self._variations.varied(plan, last=name == "last")
        return self.site.begin(plan, [random.choice(list(self.site.hosts)) for _ in range(size)])

    # Faults.

    def _strike(self) -> None:
        faults = [
            self._kill_rank,
            self._kill_rank,
            self._pause_rank,
            self._cut_off_rank,
            self._cut_off_data,
            self._kill_controller,
            self._kill_controller,
            self._stop_controller,
            self._pause_controller,
            self._cut_off_switch,
            self._restart_switch,
            self._step_clock,
            self._pause_switch,
            self._fail_rank,
            self._end_job,
            self._drain_switch,
        ]
        if self.site.kind == "file":
            faults += [self._fail_power, self._fail_power, self._slow_disk, self._break_disk]
        elif self.site.kind == "pair":
            faults += [self._cut_off_etcd, self._cut_off_etcd, self._lose_etcd]
        self.random.choice(faults)()

    def _for_a_while(self, fault: Fault, undo: Callable[[], object], seconds: float) -> None:
        def mend() -> None:
            undo()
            self.site.mend(fault)

        self.world.after(seconds, mend)

    def _duration(self) -> float:
        low, high = self.random.choice(((0.01, 1), (0.5, 4), (1, 18)))
        return self.random.uniform(low, high)

    def _a_rank(self) -> Rank | None:
        ranks = [rank for job in self.site.jobs for rank in job.ranks if rank.lives]
        return self.random.choice(ranks) if ranks else None

    def _kill_rank(self) -> None:
        if (rank := self._a_rank()) is not None:
            self.site.strike("rank: kill", rank.name)
            rank.process.kill()

    def _fail_rank(self) -> None:
        if (rank := self._a_rank()) is not None:
            self.site.strike("rank: failure", rank.name)
            rank.fails = True

    def _end_job(self) -> None:
        jobs = [job for job in self.site.jobs if not job.over]
        if jobs:
            job = self.random.choice(jobs)
            self.site.strike("rank: ended by an operator", *[rank.name for rank in job.ranks])
            self.site.operate("AbortJob", pb.AbortJobRequest(job=job.plan.name, tenant=job.plan.tenant))

    def _drain_switch(self) -> None:
        name, seconds = self.random.choice(self.site.switches).address, self._duration()
        fault = self.site.strike("switch: drain", name, seconds=seconds)
        self.site.operate("DrainSwitch", pb.DrainSwitchRequest(name=name))
        undo = pb.DrainSwitchRequest(name=name, undo=True)
        self._for_a_while(fault, lambda: self.site.operate("DrainSwitch", undo), seconds)

    def _pause(self, kind: str, process: Process, seconds: float) -> None:
        fault = self.site.strike(kind, process.name, seconds=seconds)
        process.paused = True
        self._for_a_while(fault, lambda: setattr(process, "paused", False), seconds)

    def _pause_switch(self) -> None:
        switch, seconds = self.random.choice(self.site.switches), self._duration()
        if switch.process is not None:
            self._pause("switch: pause", switch.process, seconds)

    def _lose_etcd(self) -> None:
        self._cut("controller: no etcd", _ETCD, [controller.host for controller in self.site.controllers])

    def _pause_rank(self) -> None:
        if (rank := self._a_rank()) is not None:
            self._pause("rank: pause", rank.process, self._duration())

    def _cut(self, kind: str, one: str, others: list[str]) -> None:
        """Cut a host off others, in one direction or both."""
        seconds, net = self._duration(), self.site.net
        ways = [way for other in others for way in ((one, other), (other, one))]
        if self.random.random() < 0.3:
            ways = ways[::2] if self.random.random() < 0.5 else ways[1::2]
        fault = self.site.strike(kind, one, *others, seconds=seconds)
        for way in ways:
            net.block(*way)
        self._for_a_while(fault, lambda: [net.free(*way) for way in ways], seconds)

    def _a_host(self) -> str:
        return self.random.choice(list(self.site.hosts.values()))

    def _cut_off_rank(self) -> None:
        self._cut("rank: cut off from controllers", self._a_host(), [one.host for one in self.site.controllers])

    def _cut_off_data(self) -> None:
        self._cut("rank: cut off from a switch", self._a_host(), [self.random.choice(self.site.switches).ip])

    def _cut_off_switch(self) -> None:
        controller = self.random.choice(self.site.controllers)
        self._cut("controller: cut off from a switch", controller.host, [self.random.choice(self.site.switches).ip])

    def _cut_off_etcd(self) -> None:
        self._cut("controller: cut off from etcd", self.random.choice(self.site.controllers).host, [_ETCD])

    def _end_controller(self, kind: str, end: Callable[[Controller], None]) -> None:
        controller, seconds = self.random.choice(self.site.controllers), self._duration()
        if controller.process is not None:
            fault = self.site.strike(kind, controller.name, seconds=seconds)
            end(controller)
            self._for_a_while(fault, controller.start, seconds)

    def _kill_controller(self) -> None:
        self._end_controller("controller: kill", Controller.kill)

    def _stop_controller(self) -> None:
        self._end_controller("controller: stop", Controller.stop)

    def _pause_controller(self) -> None:
        controller, seconds = self.random.choice(self.site.controllers), self._duration()
        if controller.process is not None:
            self._pause("controller: pause", controller.process, seconds)

    def _restart_switch(self) -> None:
        switch, seconds = self.random.choice(self.site.switches), self._duration()
        if switch.process is not None:
            fault = self.site.strike("switch: restart", switch.name, seconds=seconds)
            switch.kill()
            self._for_a_while(fault, switch.start, seconds)

    def _step_clock(self) -> None:
        controller = self.random.choice(self.site.controllers)
        controller.clock_offset += self.random.choice([-1, 1]) * 10 ** self.random.uniform(0, 6)
        if controller.process is not None:
            controller.process.clock_offset = controller.clock_offset
        self.site.strike("controller: clock step", controller.name)

    def _fail_power(self) -> None:
        controller, seconds = self.site.controllers[0], self._duration()
        if controller.process is not None:
            net = self.site.net
            fault = self.site.strike("controller: power", controller.name, seconds=seconds)
            controller.wanted = False
            net.power_off(controller.host)
            net.disks[controller.host].fail_power(self.random)

            def on() -> None:
                net.power_on(controller.host)
                controller.start()

            self._for_a_while(fault, on, seconds)

    def _slow_disk(self) -> None:
        self._harm_disk("controller: slow disk", "slow", 0.0, lambda: self.random.choice([0.05, 0.5, 3.0]))

    def _break_disk(self) -> None:
        self._harm_disk("controller: broken disk", "broken", False, lambda: True)

    def _harm_disk(self, kind: str, field: str, healthy: object, harm: Callable[[], object]) -> None:
        controller, seconds = self.site.controllers[0], self._duration()
        fault, disk = self.site.strike(kind, controller.name, seconds=seconds), self.site.net.disks[controller.host]
        setattr(disk, field, harm())
        self._for_a_while(fault, lambda: setattr(disk, field, healthy), seconds)
