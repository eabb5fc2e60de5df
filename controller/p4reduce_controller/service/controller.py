# SPDX-License-Identifier: Apache-2.0
"""One controller: its parts, and its life."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.base.clock import Clock
from p4reduce_controller.base.listening import ServiceConfig
from p4reduce_controller.base.tasks import Tasks
from p4reduce_controller.fabric.changes import InitialSwitches
from p4reduce_controller.fabric.fabric import Dependencies, Fabric
from p4reduce_controller.fabric.inventory import Inventory
from p4reduce_controller.fabric.uplinks import Uplinks
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.jobs.reports import Reports
from p4reduce_controller.observability.telemetry import Telemetry
from p4reduce_controller.observability.tracing import Traces
from p4reduce_controller.p4runtime.switch_config import SwitchConfig
from p4reduce_controller.service.effect_runner import EffectRunner
from p4reduce_controller.service.operations import Operations
from p4reduce_controller.service.saver import Saver
from p4reduce_controller.service.service import Service
from p4reduce_controller.service.status import status_of
from p4reduce_controller.service.switch_listener import SwitchListener
from p4reduce_controller.settings.settings import Settings
from p4reduce_controller.store.store import Store
from p4reduce_controller.switches.aggregator import Aggregator
from p4reduce_controller.switches.availability import Unavailable
from p4reduce_controller.tenants.access import ANYONE
from p4reduce_controller.tenants.audit import Audit
from p4reduce_controller.tenants.gate import Gate, Peers
from p4reduce_controller.tenants.pace import Pace

log = logging.getLogger(__name__)

TICK = 0.1
LAST_SAVE = 2.0  # seconds, for a controller that ends
READ_USERS = 10  # ticks between looks at the users file
KEEP_USE = 600  # ticks between writings of what tenants have used; jobs that run are charged without these


class Controller:
    """`failed` is set when it cannot go on, for the reason that is in `failure`.

    With a store, jobs that are ready outlive it while `keeps_jobs` holds, for the next one to `restore`.
    """

    stands_by = False  # to those who ask over HTTP

    def __init__(
        self,
        inventory: Inventory,
        jobs: Jobs,
        config: ServiceConfig,
        store: Store | None = None,
        gate: Gate | None = None,
        audit: Audit | None = None,
        traces: Traces | None = None,
    ) -> None:
        """`gate`: without it, everyone who has the one token is the operator."""
        self.keeps_jobs = store is not None
        self.failed = asyncio.Event()
        self.failure: BaseException | None = None
        self.page = self.metrics = ""  # where that is served, once it is
        self.telemetry = Telemetry()
        self.reports = Reports()
        self.jobs = jobs
        self.inventory = inventory
        self.fabric = Fabric(inventory, jobs)
        self.clock = Clock()
        self.tasks = Tasks(self._fail)
        self.uplinks = Uplinks(inventory, self.tasks, self.clock)
        self.saver = Saver(store, jobs, self.fabric, self.tasks, self.clock)
        self.runner = EffectRunner(
            jobs, inventory, self.saver, self.tasks, self.clock, audit or Audit(), self.telemetry, traces or Traces()
        )
        self.operations = Operations(self.runner, self.fabric)
        guard = gate or Peers(config.rates, Pace(), config.token, self.runner.audit)
        self.service = Service(config, guard, self.runner, self.operations, self.reports, self.status)
        self.telemetry.registry.register(guard.pace)
        self._config = config
        self._gate = gate

    def bind(self) -> None:
        """Take the port, and do not serve there yet. Raises ListenError."""
        self.service.bind(self.telemetry)

    def restore(self) -> None:
        """Take up the jobs of an earlier controller, before the switches are started. Raises StateError."""
        supervisor = self.runner.supervisor
        for job in self.saver.restore():
            for at, placement in job.placements.items() if not job.moving else ():
                self.inventory.switches[job.site.number(at)].expect(placement)
            supervisor.resume(job)
            if job.moving and job.move is not None:  # and its ranks hold
                job.move.kept = True
                supervisor.move(job)
            log.info("job %r (%d.%d) continues: %d ranks", job.name, job.number, job.generation, job.world_size)

    def listener(self, switch: int) -> SwitchListener:
        """Hears what happens at the switch of that number."""
        return SwitchListener(switch, self.inventory, self.uplinks, self.runner)

    def open(self, settings: Settings, make: Callable[[SwitchConfig], Aggregator], initial: InitialSwitches) -> None:
        """From now on switches may come and go. `initial`: with those that there are."""
        self.operations.settings = settings
        self.fabric.open(Dependencies(make, self.listener, self.uplinks.find, self.tasks), initial)

    async def start(self) -> None:
        """After `bind`. Each switch must have been started, with `listener` of its number."""
        await self.service.serve()
        self.jobs.expect_returns(self.clock())
        self.tasks.start(self.tick(), "ticks")

    async def close(self) -> None:
        """Aborts all jobs that are not kept, tells their ranks, and takes them off the switches as far as that can be
        done soon."""
        self.runner.supervisor.stopping.set()
        self.service.begun.set()
        self.jobs.abort_all(pb.CONTROLLER_STOPPED, "the controller was stopped", but_ready=self.keeps_jobs)
        self.runner.run()
        await self.runner.supervisor.settle()
        if self.service.serves and not self.saver.maybe_lost_leadership:
            await self.saver.save_within(LAST_SAVE)
        await self.service.stop(grace=0.2 if self.saver.shared else 1.0)  # who takes over is not kept waiting
        await self.tasks.close()

    async def tick(self) -> None:
        """Until it is closed."""
        ticks = 0
        while not self.runner.supervisor.stopping.is_set():
            ticks += 1
            if not self.saver.maybe_lost_leadership:
                self.jobs.tick(self.clock())
                self.runner.run()
                removed = self.fabric.sweep()
                self.reports.forget(removed)
                if removed or self.jobs.queue.take_change() or (ticks % KEEP_USE == 0 and self._gate is not None):
                    self.saver.save_soon()
            if ticks % READ_USERS == 0 and self._config.tls is not None:
                self._config.tls.current()  # so that what is wrong there is known before somebody comes
            if ticks % READ_USERS == 0 and self._gate is not None and self._gate.users.refresh():
                self.jobs.tenancy.policy = self._gate.users.book.policy
                self.runner.audit.note(ANYONE, "users file read again", "ok")
            self.runner.traces.keep(self.jobs.live)
            await asyncio.sleep(TICK)

    def _fail(self, error: BaseException) -> None:
        """A task has ended that deadlines or a job's slots depend on: without it the controller only looks alive."""
        self.failure = self.failure or error
        self.failed.set()

    # For those who look.

    @property
    def has_kept_jobs(self) -> bool:
        """Once it is closed: jobs carry on, and the switches have to leave them as they are."""
        return self.keeps_jobs and (bool(self.jobs.live) or self.saver.shared)

    @property
    def unavailable(self) -> Unavailable | None:
        """Why no job can be served now."""
        if self.failure is not None:
            return Unavailable(f"the service has failed: {type(self.failure).__name__}")
        if self.runner.supervisor.stopping.is_set():
            return Unavailable("the controller is being stopped")
        if not self.service.serves:
            return Unavailable("the controller is being started")
        if why := self.saver.maybe_lost_leadership:
            return Unavailable(f"another controller may serve: {why}")
        switches = self.inventory.switches.values()
        away = [(switch.target, why) for switch in switches if (why := switch.unavailable)]
        if away and len(away) == len(switches):
            return Unavailable("; ".join(f"the switch at {target}: {why.summary}" for target, why in away))
        return None

    async def status(self) -> pb.StatusReply:
        """What there is to know. Counters are missing while their switch is away."""
        status = await status_of(self.jobs, self.inventory, self.clock())
        if self._gate is not None:
            for tenant in status.tenants:
                tenant.refusals = self._gate.refusals[tenant.name]
        return status
