# SPDX-License-Identifier: Apache-2.0
"""Keeps for a later controller what it cannot ask the switches and the ranks for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from p4reduce_controller.base.tasks import Tasks
from p4reduce_controller.fabric.fabric import Fabric
from p4reduce_controller.jobs.job import Job, State
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.store.state import StateError
from p4reduce_controller.store.state_names import Setup
from p4reduce_controller.store.store import Store
from p4reduce_controller.switches.availability import Unavailable

log = logging.getLogger(__name__)


class Saver:
    def __init__(
        self, store: Store | None, jobs: Jobs, fabric: Fabric, tasks: Tasks, clock: Callable[[], float]
    ) -> None:
        self.store = store
        self._jobs = jobs
        self._fabric = fabric
        self._tasks = tasks
        self._clock = clock

    @property
    def shared(self) -> bool:
        """Others take up what this controller leaves."""
        return self.store is not None and self.store.shared

    @property
    def maybe_lost_leadership(self) -> Unavailable | None:
        """Why another controller may serve by now."""
        return self.store.maybe_lost_leadership if self.store is not None else None

    def restore(self) -> list[Job]:
        """Takes up the jobs of an earlier controller. Raises StateError."""
        if (store := self.store) is None:
            return []
        inventory, now = self._fabric.inventory, self._clock()
        jobs, children = store.load(Setup(inventory.switches, lambda: inventory.site, inventory.retained), now)
        try:
            self._jobs.restore(jobs, children)
            self._jobs.tenancy.take_up(store.use, jobs, now)
            self._jobs.queue.restore(store.queue, now)
        except ValueError as error:
            raise store.refusal(str(error)) from None
        return jobs

    async def save(self) -> None:
        """Keeps jobs that are ready, and those that will be once they are kept. Raises StateError."""

        def kept() -> list[Job]:
            return [job for job in self._jobs if job.state is State.READY or (job.installed and not job.over)]

        if (store := self.store) is None:
            return
        store.use = self._jobs.tenancy.to_keep()
        store.queue = self._jobs.queue.to_keep(self._clock())
        if self._fabric.is_open:  # until then it is what an earlier controller has kept
            store.fabric = self._fabric.changes().to_json()
        await store.keep(kept, self._fabric.inventory.children, self._clock())

    def save_soon(self) -> None:
        """Keeps what has changed. Where that fails, a job too many is kept, whose ranks will not come back."""
        self._tasks.start(self.save_within(None), "state")

    async def save_within(self, seconds: float | None) -> None:
        try:
            await asyncio.wait_for(self.save(), seconds)
        except asyncio.TimeoutError:
            log.error("jobs that have ended may still be in the store: removing them took more than %g s", seconds)
        except StateError as error:
            log.error("%s", error)
