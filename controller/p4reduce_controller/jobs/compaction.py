# SPDX-License-Identifier: Apache-2.0
"""Chooses the running job that gets other slots next, by who waits and what tenants may have."""

from __future__ import annotations

import math
from collections.abc import Mapping

from p4reduce_controller.jobs.admission_queue import AdmissionQueue
from p4reduce_controller.jobs.compacting import Change, grow, make_room
from p4reduce_controller.jobs.job import Job, Move, State
from p4reduce_controller.jobs.placement import check_room, find_slots
from p4reduce_controller.jobs.registry import Registry
from p4reduce_controller.jobs.switches import Switches
from p4reduce_controller.jobs.tenancy import Tenancy
from p4reduce_controller.switches.pools import PoolFull, SlotPool


class Compaction:
    def __init__(
        self, registry: Registry, switches: Switches, tenancy: Tenancy, queue: AdmissionQueue, *, moves_slots: bool
    ) -> None:
        self._registry = registry
        self._switches = switches
        self._tenancy = tenancy
        self._queue = queue
        self._moves_slots = moves_slots

    def wanted(self, movable: list[Job]) -> Change | None:
        """The next change of a job's slots, so that who waits finds room, or because nobody waits."""
        movable = [job for job in movable if not self._switches.unavailable_to(job)] if self._moves_slots else []
        if not movable:
            return None
        if (entry := self._queue.without_room()) is None:
            return grow((job for job in movable if not self._cannot_grow(job)), self._registry.pools)
        base, kept = self._switches.for_new(), self._tenancy.kept_from(entry.tenant, self._registry.held)
        site = base.for_threads(entry.first[1].threads or 1)

        def fits(pools: Mapping[int, SlotPool]) -> bool:
            pools = self._registry.without(kept, base, pools)
            try:
                check_room(site, entry.slots, pools)
                find_slots(site, entry.slots, pools, site.always_needed)
            except PoolFull:
                return False
            return True

        held = self._registry.held

        def most_given(tenant: str) -> float:
            """Slots that it has reserved would be kept for it if it gave them back."""
            reserved = self._tenancy.reserved(tenant)
            return held.slots[tenant] - reserved if reserved and tenant != entry.tenant else math.inf

        return make_room(movable, self._registry.pools, fits, most_given)

    def why_not(self, job: Job, move: Move) -> str:
        """Why the job cannot be moved so now, or ""."""
        if unavailable := self._switches.unavailable_to(job):
            return str(unavailable)
        return self._cannot_grow(job) if move.slots > job.slots else ""

    def _cannot_grow(self, job: Job) -> str:
        """Why it cannot have what it had, or "": its tenant has no quota for that, or others may need it."""
        held, more = self._registry.held, job.most_slots - job.slots
        if held.slots[job.tenant] + more > self._tenancy.policy.quota(job.tenant).slots:
            return "its tenant may not have more slots"
        if self._tenancy.kept_from(job.tenant, held):
            return "slots are reserved for others"
        gathering = any(one.state is State.GATHERING for one in self._registry.live)
        return "another job is starting, which may need more slots" if gathering else ""
