# SPDX-License-Identifier: Apache-2.0
"""Jobs that have no slots yet, in the order of their turns, without I/O.

First comes who has the higher priority, then who holds fewer slots, then who came first. So a tenant that holds nothing
is behind nobody of its priority who holds something or came later, however many jobs those have here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.admission import conflict
from p4reduce_controller.jobs.job import Session
from p4reduce_controller.tenants.access import Caller
from p4reduce_controller.tenants.quotas import Policy

LONGEST_QUEUE = 7 * 86400.0
RETURN = 5.0  # seconds that the place of a job is kept whose ranks waited at an earlier controller
HOLD_BACK = 60.0  # seconds for which one that has no room lets nobody go ahead that would take it


@dataclass
class Entry:
    """Ranks of a job that is not there yet, as they came. Times are seconds on the clock of the jobs.

    Without ranks it keeps the place of a job that waited at an earlier controller, until one of its ranks is back.
    """

    tenant: str
    name: str
    slots: int
    world_size: int
    since: float
    ranks: dict[int, tuple[Session, pb.Join, Caller]] = field(default_factory=dict)
    deadline: float = math.inf
    why: str = "its turn has not come"  # it is not let in
    no_room: bool = False  # that is why
    for_others: bool = False  # what other jobs have is why: slots, numbers, or their tenant's quota
    told: dict[int, pb.Waiting] = field(default_factory=dict)

    @property
    def first(self) -> tuple[Session, pb.Join, Caller]:
        return next(iter(self.ranks.values()))

    def conflict_with(self, join: pb.Join, default_slots: int) -> str | None:
        """What is wrong with one more rank's request, beside those that are here."""
        _, first, _ = self.first
        if not first.slots:  # they leave it to the controller
            default_slots = self.slots
        return conflict(join, self.ranks, self.world_size, self.slots, first.threads or 1, default_slots)


class Waitlist:
    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Entry] = {}
        self._by_session: dict[Session, tuple[Entry, int]] = {}

    def __iter__(self) -> Iterator[Entry]:
        """In the order of their coming."""
        return iter(list(self._entries.values()))

    def __len__(self) -> int:
        return len(self._entries)

    def named(self, tenant: str, name: str) -> Entry | None:
        return self._entries.get((tenant, name))

    def of(self, session: Session) -> tuple[Entry, int] | None:
        return self._by_session.get(session)

    def restore(self, tenant: str, name: str, slots: int, world_size: int, since: float, deadline: float) -> None:
        why = "its ranks waited at a previous controller and have not rejoined yet"
        self._entries[tenant, name] = Entry(tenant, name, slots, world_size, since, deadline=deadline, why=why)

    def count(self, tenant: str) -> int:
        return sum(one.tenant == tenant for one in self._entries.values())

    def add(self, session: Session, join: pb.Join, caller: Caller, slots: int, now: float) -> Entry:
        """One more rank, which agrees with those that are there."""
        key = caller.tenant, join.job
        entry = self._entries.get(key)
        if entry is None or not entry.ranks:
            kept = entry is not None and (entry.slots, entry.world_size) == (slots, join.world_size)
            since = entry.since if entry is not None and kept else now
            entry = self._entries[key] = Entry(caller.tenant, join.job, slots, join.world_size, since)
        entry.ranks[join.rank] = (session, join, caller)
        entry.deadline = min(entry.deadline, now + join.queue_s)
        self._by_session[session] = (entry, join.rank)
        return entry

    def remove(self, entry: Entry) -> None:
        del self._entries[entry.tenant, entry.name]
        for session, _, _ in entry.ranks.values():
            del self._by_session[session]

    def in_order(self, policy: Policy, slots: Mapping[str, int]) -> list[Entry]:
        """Return the next first. `slots`: that each tenant holds."""
        return sorted(
            self._entries.values(),
            key=lambda one: (-policy.quota(one.tenant).priority, slots.get(one.tenant, 0), one.since),
        )

    def blocks_others(self, entry: Entry, slots: Mapping[str, int], capacity: int, now: float) -> bool:
        """Whether others have to wait with this one, which has no room: not for long, and not for one that asks for
        more than its tenant's equal share."""
        tenants = {one.tenant for one in self._entries.values()} | {tenant for tenant, held in slots.items() if held}
        share = capacity / len(tenants)
        return slots.get(entry.tenant, 0) + entry.slots <= share and now - entry.since < HOLD_BACK
