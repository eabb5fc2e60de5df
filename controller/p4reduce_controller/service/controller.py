# SPDX-License-Identifier: Apache-2.0
"""A controller: its parts, and its life from start to end.

All parts run on one event loop, so nothing changes between two awaits. Only metrics are encoded in another thread,
which changes nothing.

Locks are asyncio's. `Operations._changing` is taken before `EtcdState._writing` and `DesiredState._writing`, and
`Operations._slots` and `CpuChannel._resetting` before `Link._sending`.
"""

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

TICK = 0.1  # seconds
LAST_SAVE_TIMEOUT = 2.0  # seconds for the last save of a controller that ends
USERS_CHECK_TICKS = 10  # ticks between checks of the users file
USE_SAVE_TICKS = 600  # ticks between saves of tenants' usage; running jobs are charged without these


class Controller:
    """The parts of one controller, and how they start and end.

    With a store, jobs that are ready outlive it while `keeps_jobs` is set, and the next controller can `restore` them.

    `failed`: set when the controller cannot go on, for the reason in `failure`.
    """

    stands_by = False  # for HTTP clients

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
        """Create the parts. `gate`: None means that everyone with the one token is the operator."""
        self.keeps_jobs = store is not None
        self.failed = asyncio.Event()
        self.failure: BaseException | None = None
        self.page = self.metrics = ""  # where they are served, once they are
        self.telemetry = Telemetry()
        self.reports = Reports()
        self.jobs = jobs
        self.inventory = inventory
        self.fabric = Fabric(inventory, jobs)
        self.clock = Clock()
        self.tasks = Tasks(self._fail)
        self.saver = Saver(store, jobs, self.fabric, self.tasks, self.clock)
        self.runner = EffectRunner(
            jobs, inventory, self.saver, self.tasks, self.clock, audit or Audit(), self.telemetry, traces or Traces()
        )
        self.uplinks = Uplinks(inventory, self.tasks, self.clock, self.runner.ports_changed)
        self.operations = Operations(self.runner, self.fabric)
        guard = gate or Peers(config.rates, Pace(), config.token, self.runner.audit)
        self.service = Service(config, guard, self.runner, self.operations, self.reports, self.status)
        self.telemetry.registry.register(guard.pace)
        self._config = config
        self._gate = gate

    def bind(self) -> None:
        """Bind the port, without serving there yet. Raises ListenError."""
        self.service.bind(self.telemetry)

    def restore(self) -> None:
        """Restore the jobs of an earlier controller, before the switches are started. Raises StateError."""
        supervisor = self.runner.supervisor
        for job in self.saver.restore():
            tree = job.site.for_threads(job.threads).trees.tree
            for at, placement in job.placements.items() if not job.moving else ():
                if tree(at) % job.trees in job.lost_trees:
                    continue  # what is left there is removed
                self.inventory.switches[job.site.number(at)].expect(placement)
            supervisor.resume(job)
            if job.moving and job.move is not None:  # its ranks are paused
                job.move.kept = True
                supervisor.move(job)
            log.info("job %r (%d.%d) continues: %d ranks", job.name, job.number, job.generation, job.world_size)

    def listener(self, switch: int) -> SwitchListener:
        """Return the listener for the switch of that number."""
        return SwitchListener(switch, self.inventory, self.uplinks, self.runner)

    def open(
        self,
        settings: Settings,
        make: Callable[[SwitchConfig], Aggregator],
        initial: InitialSwitches,
        check: Callable[[SwitchConfig], None] = lambda _: None,
    ) -> None:
        """Allow changes of the switches from now on.

        `initial`: contains the present ones.
        `check`: as in `Dependencies`.
        """
        self.operations.settings = settings
        self.fabric.open(Dependencies(make, self.listener, self.uplinks.find, self.tasks, check), initial)

    async def start(self) -> None:
        """Serve, after `bind`. Each switch must have been started with its `listener`."""
        await self.service.serve()
        self.jobs.expect_returns(self.clock())
        self.tasks.start(self.tick(), "ticks")

    async def close(self) -> None:
        """Abort all jobs that are not kept, tell their ranks, and take them off the switches if that is soon done."""
        self.runner.supervisor.stopping.set()
        self.service.begun.set()
        self.jobs.abort_all(pb.CONTROLLER_STOPPED, "the controller was stopped", except_ready=self.keeps_jobs)
        self.runner.run()
        await self.runner.supervisor.settle()
        if self.service.serves and not self.saver.maybe_lost_leadership:
            await self.saver.save_within(LAST_SAVE_TIMEOUT)
        await self.service.stop(grace=0.2 if self.saver.shared else 1.0)  # the next leader must not wait
        await self.tasks.close()

    async def tick(self) -> None:
        """Do what time requires, in intervals, until the controller is closed."""
        ticks = 0
        while not self.runner.supervisor.stopping.is_set():
            ticks += 1
            if not self.saver.maybe_lost_leadership:
                self.jobs.tick(self.clock())
                self.runner.run()
                removed = self.fabric.sweep()
                self.reports.forget(removed)
                if removed or self.jobs.queue.take_change() or (ticks % USE_SAVE_TICKS == 0 and self._gate is not None):
                    self.saver.save_soon()
            if ticks % USERS_CHECK_TICKS == 0 and self._config.tls is not None:
                self._config.tls.current()  # so that problems are logged before a client connects
            if ticks % USERS_CHECK_TICKS == 0 and self._gate is not None and self._gate.users.refresh():
                self.jobs.tenancy.policy = self._gate.users.book.policy
                self.runner.audit.note(ANYONE, "users file read again", "ok")
            self.runner.traces.keep(self.jobs.live)
            await asyncio.sleep(TICK)

    def _fail(self, error: BaseException) -> None:
        """Mark the controller as failed: a task has ended on which deadlines or a job's slots depend."""
        self.failure = self.failure or error
        self.failed.set()

    # For status and monitoring.

    @property
    def has_kept_jobs(self) -> bool:
        """Whether jobs go on after `close`, so that the switches must keep their entries."""
        return self.keeps_jobs and (bool(self.jobs.live) or self.saver.shared)

    @property
    def unavailable(self) -> Unavailable | None:
        """The reason why no job can be served now."""
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
        """Return the status. The counters of a switch that is unavailable are missing."""
        status = await status_of(self.jobs, self.inventory, self.clock())
        if self._gate is not None:
            for tenant in status.tenants:
                tenant.refusals = self._gate.refusals[tenant.name]
        return status
