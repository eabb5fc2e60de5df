# SPDX-License-Identifier: Apache-2.0
"""Quotas and reservations of tenants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Quota:
    """What a tenant may have; infinite is without a limit.

    `slots`, `jobs`: at a time, a job's being those that it asks for. `slot_hours`: in a calendar month, UTC.
    `priority`: in the queue, the higher the earlier. `queued`: jobs there. `ranks`: that are connected at a time.
    `joins_per_s`, `calls_per_s`, `messages_per_s`: streams begun, other requests, and messages in streams, of which ten
    seconds' may come at once. A message longer than a kilobyte counts as several.
    """

    slots: float = math.inf
    jobs: float = math.inf
    slot_hours: float = math.inf
    priority: int = 0
    queued: float = 64
    ranks: float = 4096
    joins_per_s: float = 100.0
    calls_per_s: float = 10.0
    messages_per_s: float = 2000.0


@dataclass(frozen=True)
class Reservation:
    """So many slots are kept free for the tenant between two Unix times. Those that it uses count."""

    tenant: str
    slots: int
    start: float
    end: float


@dataclass(frozen=True)
class Policy:
    """`default`: of tenants that have no quota of their own."""

    default: Quota = field(default_factory=Quota)
    quotas: Mapping[str, Quota] = field(default_factory=dict)
    reservations: tuple[Reservation, ...] = ()

    def quota(self, tenant: str) -> Quota:
        return self.quotas.get(tenant, self.default)
