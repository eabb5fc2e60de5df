# SPDX-License-Identifier: Apache-2.0
"""Quotas and reservations of tenants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Quota:
    """The limits of a tenant; infinite means unlimited.

    `slots`, `jobs`: at a time; a job counts with the slots that it asks for.
    `slot_hours`: per calendar month, in UTC.
    `priority`: in the queue; the highest comes first.
    `queued`: jobs in the queue.
    `ranks`: concurrent connections of ranks.
    `joins_per_s`, `calls_per_s`, `messages_per_s`: streams begun, other requests, and messages in streams. Ten seconds'
    worth may come at once, of streams fifty seconds' worth. A message longer than a kilobyte counts as several.
    """

    slots: float = math.inf
    jobs: float = math.inf
    slot_hours: float = math.inf
    priority: int = 0
    queued: float = 64
    ranks: float = 8192
    joins_per_s: float = 100.0
    calls_per_s: float = 10.0
    messages_per_s: float = 2000.0


@dataclass(frozen=True)
class Reservation:
    """Slots that are kept free for the tenant between two Unix times. Slots that it uses are counted in."""

    tenant: str
    slots: int
    start: float
    end: float


@dataclass(frozen=True)
class Policy:
    """The quotas and reservations of all tenants. `default`: for tenants without a quota of their own."""

    default: Quota = field(default_factory=Quota)
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    reservations: tuple[Reservation, ...] = ()

    def quota(self, tenant: str) -> Quota:
        return self.quotas.get(tenant, self.default)
