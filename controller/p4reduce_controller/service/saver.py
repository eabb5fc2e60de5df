# SPDX-License-Identifier: Apache-2.0
"""The saver of what a later controller cannot learn from switches and ranks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from p4reduce_controller.base.tasks import Tasks
from p4reduce_controller.fabric.fabric import Fabric
from p4reduce_controller.jobs.job import Job, State
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.store.state import StateError
from p4reduce_controller.store.state_names import Setup
from p4reduce_controller.store.store import Store
from p4reduce_controller.switches.availability import Unavailable

RETRY_S = 5.0  # between a save that has failed and the next one

log = logging.getLogger(__name__)


@dataclass(eq=False, repr=False)
class Saver:
    """The saver of the jobs, the queue, the usage of tenants and the changes of switches."""

    store: Store | None
    jobs: Jobs
    fabric: Fabric
    tasks: Tasks
    clock: Callable[[], float]
    _retrying: bool = field(default=False, init=False)

    @property
    def shared(self) -> bool:
        """Whether other controllers can continue what this one leaves."""
        return self.store is not None and self.store.shared

    @property
    def maybe_lost_leadership(self) -> Unavailable | None:
        """The reason why another controller may serve by now."""
        return self.store.maybe_lost_leadership if self.store is not None else None

    def restore(self) -> list[Job]:
        """Restore the jobs of an earlier controller. Raises StateError."""
        if (store := self.store) is None:
            return []
        inventory, now = self.fabric.inventory, self.clock()
        jobs, children = store.load(Setup(inventory.switches, lambda: inventory.site, inventory.retained), now)
        try:
            self.jobs.restore(jobs, children)
            self.jobs.tenancy.restore(store.use, jobs, now)
            self.jobs.queue.restore(store.queue, now)
        except ValueError as error:
            raise store.refusal(str(error)) from None
        return jobs

    async def save(self) -> None:
        """Save the jobs that are ready, or will be once they are saved. Raises StateError."""

        def jobs_to_store() -> list[Job]:
            return [job for job in self.jobs if job.state is State.READY or (job.installed and not job.over)]

        if (store := self.store) is None:
            return
        store.use = self.jobs.tenancy.to_json(self.jobs.live, self.clock())
        store.queue = self.jobs.queue.to_json(self.clock())
        if self.fabric.is_open:  # until then it contains what an earlier controller has saved
            store.fabric = self.fabric.changes().to_json()
        await store.keep(jobs_to_store, self.fabric.inventory.children, self.clock())

    def save_soon(self) -> None:
        """Save in a task, and again if that fails. Until then the store has jobs that have ended."""
        self.tasks.start(self._save_until_stored(), "state")

    async def _save_until_stored(self) -> None:
        while not await self.save_within(None) and not self._retrying:
            self._retrying = True
            try:
                await asyncio.sleep(RETRY_S)
            finally:
                self._retrying = False

    async def save_within(self, seconds: float | None) -> bool:
        """Save, and return whether that succeeded. Errors are logged."""
        try:
            await asyncio.wait_for(self.save(), seconds)
        except asyncio.TimeoutError:
            log.error("jobs that have ended may still be in the store: removing them took more than %g s", seconds)
        except StateError as error:
            log.error("%s", error)
        else:
            return True
        return False
