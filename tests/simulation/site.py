# SPDX-License-Identifier: Apache-2.0
"""A whole site in virtual time: controllers, switches, hosts with ranks, and etcd or a disk for the controllers' state.

The site also keeps the record of faults, by which `rules` judges how jobs have ended.
"""

from __future__ import annotations

import asyncio
import json
import logging
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import grpc

from p4reduce.control.rpc import JobsStub
from p4reduce_controller.base.listening import ListenError
from p4reduce_controller.service.run import running
from p4reduce_controller.settings.settings import load
from p4reduce_controller.standby.leader_election import LeaderElection
from p4reduce_controller.store.state_names import StateError
from p4reduce_controller.switches.aggregator import SwitchError
from tests.simulation import etcd, program, rpc
from tests.simulation.disk import Disk
from tests.simulation.network import Network
from tests.simulation.program import SLOTS
from tests.simulation.rank import JobPlan, Rank
from tests.simulation.switch import Switch
from tests.simulation.variations import OPERATOR, QUOTAS, Variations, token
from tests.simulation.world import Process, Violation, World

_FIRST_UPLINK = 100  # the number of a port
LEASE = 10.0  # seconds until a controller notices that a rank's host is gone
REJOIN = 10.0
STORE_LEASE = 2
_EXPECTED = (ListenError, StateError, SwitchError)  # with which a controller may end
SWITCH_TIMEOUT = 30.0
RESTART_DELAY = 1.0  # seconds until a controller that has ended is started again, as by systemd


class LogNotes(logging.Handler):
    """The log of all processes, as notes of the world."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.INFO)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        who = self._world.current.name if self._world.current is not None else "-"
        self._world.note(who, f"[{record.levelname.lower()}] {record.getMessage()}")
        if record.exc_info and not self._world.over:
            text = "".join(traceback.format_exception(*record.exc_info))
            self._world.failure = Violation(f"{who} logs an exception: {record.getMessage()}\n{text}")


@dataclass(eq=False)
class Fault:
    """A fault, from its begin to its end. `subjects`: the names of the processes and hosts that it strikes."""

    kind: str
    subjects: tuple[str, ...]
    begin: float
    end: float = float("inf")

    def __str__(self) -> str:
        return f"{self.kind} {' and '.join(self.subjects)}"


class Controller:
    """One controller, which is started again whenever it ends. `serving`: the service, while it has one."""

    def __init__(self, site: Site, number: int) -> None:
        self.site = site
        self.name = f"controller {number}"
        self.host = f"10.1.0.{number}"
        self.address = f"{self.host}:7700"
        self.process: Process | None = None
        self.serving: Any = None
        self.wanted = False  # whether it is to run
        self.clock_offset = 0.0

    def start(self) -> None:
        self.wanted = True
        if self.process is None:
            self.process = Process(self.site.world, self.name, self.host)
            self.process.clock_offset = self.clock_offset
            self.process.on_kill.append(self._died)
            self.site.world.note(self.name, "starts")
            self._task = self.process.start(self._main())
            self._task.add_done_callback(self._ended)

    def kill(self) -> None:
        """Kill it. It is started again only by `start`."""
        self.wanted = False
        if self.process is not None:
            self.process.kill()

    def stop(self) -> None:
        """End it as SIGTERM does."""
        self.wanted = False
        if self.process is not None:
            self.process.soon(self._task.cancel)

    @property
    def leads(self) -> bool:
        """Whether it serves, as far as it knows."""
        serving = self.serving
        return (
            serving is not None
            and serving.service.serves
            and not serving.runner.supervisor.stopping.is_set()
            and serving.saver.maybe_lost_leadership is None
        )

    async def _main(self) -> None:
        settings = load(None, self.site.settings(self))
        if self.site.kind == "pair":
            await LeaderElection(settings, SWITCH_TIMEOUT, self._on_ready, lambda *_: None).run()
            return
        async with running(settings, SWITCH_TIMEOUT) as controller:
            self._on_ready(controller)
            await controller.failed.wait()
            raise controller.failure or AssertionError

    def _on_ready(self, controller: Any) -> None:
        self.serving = controller

    def _ended(self, task: asyncio.Task[Any]) -> None:
        error = None if task.cancelled() else task.exception()
        self.site.world.note(self.name, f"ends: {error!r}")
        if error is not None and not isinstance(error, _EXPECTED):
            self.site.world.failure = error
        if self.process is not None:
            self.process.kill()

    def _died(self) -> None:
        self.process, self.serving = None, None
        self.site.world.after(RESTART_DELAY, lambda: self.start() if self.wanted else None)


@dataclass(eq=False)
class Job:
    """A job of the site, and its ranks."""

    plan: JobPlan
    ranks: list[Rank]
    begun: float
    judged: set[int] = field(default_factory=set)  # ranks whose end was judged

    @property
    def over(self) -> bool:
        return not any(rank.lives for rank in self.ranks)


class Site:
    """The parts of a site.

    `kind`: "plain" for a controller without a store, "file" for one with a state file, "pair" for two with etcd.
    `leaves`: how many leaves there are, each of which is connected to all roots. Without leaves, hosts are.
    """

    def __init__(
        self, world: World, folder: Path, variations: Variations, *, kind: str, roots: int, leaves: int, hosts: int
    ) -> None:
        self.world, self.folder, self.kind = world, folder, kind
        self._users, self.has_tenants = variations.users_file(folder), variations.has_tenants
        self.net: Network = world.net
        self.hosts = {number: f"10.0.0.{number}" for number in range(1, hosts + 1)}
        self.switches = [Switch(world, number, {}) for number in range(1, roots + leaves + 1)]
        self.roots, self.leaves = self.switches[:roots], self.switches[roots:]
        self.spares = self.roots[1:] if variations.has_spare else []
        self._connect()
        self.controllers = [Controller(self, number) for number in range(1, 3 if kind == "pair" else 2)]
        self.jobs: list[Job] = []
        self.faults: list[Fault] = []
        self._operator: Process | None = None  # the last one
        self._base: dict[str, frozenset[str]] = {}  # entries without any job, by switch
        self.net.etcd = etcd.Member(world)
        for controller in self.controllers:
            (folder / controller.host).mkdir()
            self.net.disks[controller.host] = Disk(folder / controller.host)
        self._free: list[int] = []  # slots at each switch, when they were last checked
        world.checks.append(self._check_step)
        for switch in self.switches:
            switch.on_write = self.check_slots

    def _connect(self) -> None:
        for number, host in self.hosts.items():
            near = [self.leaves[number % len(self.leaves)]] if self.leaves else self.roots
            self.net.cables[host] = [(switch, number) for switch in near]
            for switch in near:
                switch.ports[number] = host
        for below, leaf in enumerate(self.leaves, _FIRST_UPLINK):
            for above, root in enumerate(self.roots, _FIRST_UPLINK):
                leaf.ports[above], root.ports[below] = (root, below), (leaf, above)

    def settings(self, controller: Controller) -> dict[str, Any]:
        more: dict[str, Any] = {}
        if self.kind == "file":
            more = {"state": str(self.folder / controller.host / "state")}
        elif self.kind == "pair":
            more = {
                "store": f"etcd://{etcd.ADDRESS}",
                "store_insecure": True,
                "store_lease": STORE_LEASE,
                "standby": True,
            }
        return {
            "switch": [switch.address for switch in self.switches],
            "address": [switch.ip for switch in self.switches],
            "uplink": [
                f"{leaf.address}:{port}={root.address}"
                for leaf in self.leaves
                for port, root in enumerate(self.roots, _FIRST_UPLINK)
            ],
            "spare": [root.address for root in self.spares],
            "listen": controller.address,
            "insecure": True,
            "switch_insecure": True,
            "lease": LEASE,
            "rejoin_time": REJOIN,
            "pipeline": str(program.folder()),
            "slots": 4,
            "take_over": self.kind != "pair",
            "users": self._users,
            **more,
        }

    def begin(self, plan: JobPlan, hosts: list[int]) -> Job:
        controllers = ",".join(controller.address for controller in self.controllers)
        ranks = [Rank(self.world, plan, rank, self.hosts[host], controllers) for rank, host in enumerate(hosts)]
        self.jobs.append(Job(plan, ranks, self.world.now))
        return self.jobs[-1]

    def operate(self, method: str, request: Any) -> None:
        """Call a method of the control service as an operator, until a controller answers, one call after the other."""
        operator = Process(self.world, "operator", "10.7.0.1")
        before, self._operator = self._operator, operator
        metadata = (("authorization", f"Bearer {token(OPERATOR)}"),) if self.has_tenants else ()

        async def work() -> None:
            while before is not None and before.alive:
                await asyncio.sleep(0.1)
            for controller in cycle(self.controllers):
                channel = rpc.AioChannel(self.net, controller.address)
                try:
                    await getattr(JobsStub(channel), method)(request, timeout=5.0, metadata=metadata)  # type: ignore[arg-type]
                    return
                except grpc.RpcError as error:
                    if error.code() in (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION):
                        return
                    self.world.note("operator", f"{method}: {error.code()}: {error.details()}")
                    await asyncio.sleep(1.0)
                finally:
                    await channel.close()

        operator.start(work()).add_done_callback(lambda _: self.world.after(0.0, operator.kill))

    def strike(self, kind: str, *subjects: str, seconds: float | None = None) -> Fault:
        """Record that a fault begins. `seconds`: None if it is over at once."""
        fault = Fault(kind, subjects, self.world.now, self.world.now if seconds is None else float("inf"))
        self.faults.append(fault)
        self.world.note("fault", f"{fault} begins" if seconds is not None else str(fault))
        return fault

    def mend(self, fault: Fault) -> None:
        fault.end = self.world.now
        self.world.note("fault", f"{fault} is over")

    @property
    def quiet(self) -> bool:
        """Whether no fault is under way, and every part runs."""
        return all(fault.end <= self.world.now for fault in self.faults) and all(
            controller.process is not None for controller in self.controllers
        )

    @property
    def leader(self) -> Controller | None:
        return next((controller for controller in self.controllers if controller.leads), None)

    def idle(self) -> str:
        """Return what is still in use, or ""."""
        leader = self.leader
        if leader is None:
            return "no controller serves"
        jobs = leader.serving.jobs
        if jobs.live:
            return f"jobs live: {[job.name for job in jobs.live]}"
        if used := [pool.used for pool in jobs.pools if pool.used]:
            return f"slots are in use: {used}"
        if any(one.unavailable for one in leader.serving.inventory.switches.values()):
            return "a switch is unavailable"
        for switch in self.switches:
            now = switch.entries()
            if (base := self._base.setdefault(switch.name, now)) != now:
                return f"{switch.name} has {sorted(now - base)}, and lacks {sorted(base - now)}"
        if stored := self._stored_jobs():
            return f"jobs are stored: {stored}"
        return ""

    def _stored_jobs(self) -> list[str]:
        if self.kind == "file":
            path = self.folder / self.controllers[0].host / "state"
            return [job["name"] for job in json.loads(path.read_text())["jobs"]]
        return [key for key in self.net.etcd.keys if "/state/jobs/" in key]

    def check_slots(self) -> None:
        """Check that no slot is free at a controller while a switch still admits a job there."""
        leader = self.leader
        if leader is None:
            return
        serving = leader.serving
        self._check_quotas(serving)
        for number, switch in enumerate(self.switches):
            if serving.inventory.switches[number].unavailable is None:
                for job, (slots, _) in switch.admitted.items():
                    for part in serving.jobs.pools[number]._free:
                        if part.first < slots.stop and slots.start < part.end:
                            raise Violation(f"{leader.name}: slots {slots} are free, but {switch.name} has job {job}")

    def _check_quotas(self, serving: Any) -> None:
        """Check that no tenant has more jobs, or more slots at any switch, than its quota."""
        tenants = {(job.number, job.generation): job.tenant for job in serving.jobs}
        for switch in self.switches:
            slots: Counter[str] = Counter()
            jobs: Counter[str] = Counter()
            for key, (part, _) in switch.admitted.items():
                if key in tenants:
                    slots[tenants[key]] += len(part)
                    jobs[tenants[key]] += 1
            for name, quota in QUOTAS.items():
                if slots[name] > quota.get("slots", SLOTS) or jobs[name] > quota.get("jobs", SLOTS):
                    raise Violation(f"{switch.name} has {slots[name]} slots and {jobs[name]} jobs of tenant {name}")

    def _check_step(self) -> None:
        leaders = [controller for controller in self.controllers if controller.leads]
        if len(leaders) > 1:
            raise Violation("two controllers serve at once")
        if leaders and (free := [pool.free for pool in leaders[0].serving.jobs.pools]) != self._free:
            self._free = free
            self.check_slots()


def run_until(world: World, seconds: float, condition: Callable[[], bool], what: str) -> None:
    if not world.run(seconds, condition):
        raise Violation(f"{what}, after {seconds:g} s")
