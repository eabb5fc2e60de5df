# SPDX-License-Identifier: Apache-2.0
"""Usage by tenants, measured against their quotas: slots and jobs now, and slot-hours of the month. Without I/O."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timezone
from typing import Any

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.diagnostics import counted
from p4reduce_controller.jobs.job import Job
from p4reduce_controller.tenants.quotas import Policy, Reservation

HOUR = 3600.0


class Denied(Exception):
    """An error: the tenant may never have the job, however long it waits."""


class MustWait(Exception):
    """An error: the tenant may not have the job now."""


class Held:
    """The slots and jobs of each tenant. A job that has ended counts until its switches have forgotten it."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.slots: Counter[str] = Counter()
        self.jobs: Counter[str] = Counter()
        for job in jobs:
            self.slots[job.tenant] += job.slots
            self.jobs[job.tenant] += 1


class Tenancy:
    """Quotas, reservations and slot-hours of all tenants.

    `policy` may be replaced while jobs run. Running jobs keep what they have, but spent slot-hours end them.
    """

    def __init__(self, policy: Policy | None = None, wall: Callable[[], float] = time.time) -> None:
        """Start with no usage. `wall`: the Unix time."""
        self.policy = policy or Policy()
        self._wall = wall
        self._month = _month(wall())
        self._slot_seconds: Counter[str] = Counter()

    def check(self, tenant: str, slots: int, held: Held) -> None:
        """Check that the tenant may have one more job of so many slots. Raises Denied or MustWait."""
        quota = self.policy.quota(tenant)
        whose = f"tenant {tenant!r}"
        if slots > quota.slots:
            raise Denied(f"slots={slots}, and {whose} may have {quota.slots:g}")
        if self.is_spent(tenant):
            raise Denied(self.spent_text(tenant))
        if held.jobs[tenant] >= quota.jobs:
            raise MustWait(f"{whose} has {counted(held.jobs[tenant], 'job')}, and may have {quota.jobs:g}")
        if held.slots[tenant] + slots > quota.slots:
            raise MustWait(
                f"{counted(slots, 'slot')} asked, and {whose} has {held.slots[tenant]} of the {quota.slots:g} it may"
            )

    # Reservations.

    def reserved(self, tenant: str) -> int:
        """Return how many slots are reserved for the tenant now; it may be using some of them."""
        return sum(one.slots for one in self._in_force() if one.tenant == tenant)

    def reserved_for_others(self, tenant: str, held: Held) -> list[int]:
        """Return the unused reserved slots of each other tenant, which have to stay free."""
        others = {one.tenant for one in self._in_force()} - {tenant}
        left = (self.reserved(other) - held.slots[other] for other in sorted(others))
        return [slots for slots in left if slots > 0]

    def _in_force(self) -> list[Reservation]:
        now = self._wall()
        return [one for one in self.policy.reservations if one.start <= now < one.end]

    # Hours.

    def charge(self, job: Job, now: float) -> None:
        """Charge the tenant for the job's slots since the last charge. `now`: on the clock of the jobs."""
        month = _month(self._wall())
        if month != self._month:
            self._month = month
            self._slot_seconds.clear()
        self._slot_seconds[job.tenant] += max(0.0, now - job.charged) * job.slots  # type: ignore[assignment]
        job.charged = max(now, job.charged)

    def hours(self, tenant: str) -> float:
        return self._slot_seconds[tenant] / HOUR

    def is_spent(self, tenant: str) -> bool:
        return self.hours(tenant) >= self.policy.quota(tenant).slot_hours

    def spent_text(self, tenant: str) -> str:
        most = self.policy.quota(tenant).slot_hours
        return f"tenant {tenant!r} has used up the {most:g} slot-hours of {self._month}"

    # Across restarts, and for operators.

    def to_json(self, jobs: Iterable[Job], now: float) -> dict[str, Any]:
        """Charge the jobs until `now`, and return the usage for `restore`."""
        for job in jobs:
            self.charge(job, now)
        return {"at": self._wall(), "month": self._month, "slot_seconds": dict(self._slot_seconds)}

    def restore(self, kept: Mapping[str, Any], jobs: Iterable[Job], now: float) -> None:
        """Restore the usage that `to_json` of an earlier run returned, and charge jobs for the time since then.

        `kept` may be {}. Raises ValueError.
        """
        at, month, seconds = kept.get("at", self._wall()), kept.get("month", ""), kept.get("slot_seconds", {})
        whole = type(month) is str and isinstance(seconds, dict)
        if not whole or not all(map(_is_time, (at, *seconds.values()))):
            raise ValueError("use: must have a time, a month, and the slot-seconds of each tenant")
        if month == self._month:
            self._slot_seconds = Counter(seconds)
        for job in jobs:
            job.charged = now - max(0.0, self._wall() - at)
            self.charge(job, now)

    def described(self, tenant: str, held: Held) -> pb.Tenant:
        quota = self.policy.quota(tenant)
        ends = [one.end for one in self._in_force() if one.tenant == tenant]
        return pb.Tenant(
            name=tenant,
            jobs=held.jobs[tenant],
            slots=held.slots[tenant],
            slot_hours=self.hours(tenant),
            most_jobs=_limit(quota.jobs),
            most_slots=_limit(quota.slots),
            most_slot_hours=None if quota.slot_hours == math.inf else quota.slot_hours,
            priority=quota.priority,
            reserved_slots=self.reserved(tenant),
            reserved_until=min(ends, default=0.0),
        )

    def known(self) -> set[str]:
        """Return the tenants that have a quota, a reservation or usage."""
        return {*self.policy.quotas, *self._slot_seconds, *(one.tenant for one in self.policy.reservations)}


def _limit(value: float) -> int | None:
    return None if value == math.inf else int(value)


def _month(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m")


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and 0 <= float(str(value)) < math.inf
