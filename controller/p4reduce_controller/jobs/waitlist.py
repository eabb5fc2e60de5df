# SPDX-License-Identifier: Apache-2.0
"""The waiting jobs, which have no slots yet, in queue order. Without I/O.

The job with the highest priority comes first, then the job whose tenant holds the fewest slots, then the job that
waits longest. So a tenant that holds nothing is never behind a tenant of its priority that holds slots or came later,
however many jobs that tenant has here.
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

RETURN_TIMEOUT = 5.0  # seconds for which a restored entry keeps its position, until its ranks come back
HOLD_BACK = 60.0  # seconds for which a job without room lets no other job take that room first


@dataclass
class Entry:
    """The ranks of a job that has not begun, in the order in which they joined. Times are on the clock of the jobs.

    An entry without ranks keeps the position of a job that waited at an earlier controller, until a rank comes back.
    """

    tenant: str
    name: str
    slots: int
    world_size: int
    since: float  # when it began to wait, also at an earlier controller
    ranks: dict[int, tuple[Session, pb.Join, Caller]] = field(default_factory=dict)
    deadline: float = math.inf  # when the first of its ranks no longer waits
    why: str = "its turn has not come"  # why it is not admitted
    no_room: bool = False  # free slots of switches are missing
    waits_for_others: bool = False  # other jobs have what is missing: slots, numbers, or their tenant's quota
    last_notices: dict[int, pb.Waiting] = field(default_factory=dict)  # by rank, the latest message about its position

    @property
    def first(self) -> tuple[Session, pb.Join, Caller]:
        """The rank that joined first. The requests of the others must agree with its request."""
        return next(iter(self.ranks.values()))

    def conflict_with(self, join: pb.Join, default_slots: int) -> str | None:
        """Return how one more rank's request disagrees with those of the entry's ranks; None if it fits."""
        _, first, _ = self.first
        if not first.slots:  # the ranks leave it to the controller
            default_slots = self.slots
        return conflict(join, self.ranks, self.world_size, self.slots, first.threads or 1, default_slots)


class Waitlist:
    """The entries of the queue, by tenant and name and by the ranks' streams."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, str], Entry] = {}
        self._by_session: dict[Session, tuple[Entry, int]] = {}

    def __iter__(self) -> Iterator[Entry]:
        """Iterate in the order of arrival."""
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
        """Add a rank, whose request agrees with those of the entry's ranks."""
        key = caller.tenant, join.job
        entry = self._entries.get(key)
        if entry is None or not entry.ranks:
            # A restored entry keeps its position if its ranks ask for the same as before.
            is_same = entry is not None and (entry.slots, entry.world_size) == (slots, join.world_size)
            since = entry.since if entry is not None and is_same else now
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
        """Return the entries in queue order. `slots`: how many each tenant holds."""
        return sorted(
            self._entries.values(),
            key=lambda one: (-policy.quota(one.tenant).priority, slots.get(one.tenant, 0), one.since),
        )

    def blocks_others(self, entry: Entry, slots: Mapping[str, int], capacity: int, now: float) -> bool:
        """Return whether others wait behind this entry, for which there is no room.

        They do for a limited time, and only if the entry asks for no more than its tenant's equal share.
        """
        tenants = {one.tenant for one in self._entries.values()} | {tenant for tenant, held in slots.items() if held}
        share = capacity / len(tenants)
        return slots.get(entry.tenant, 0) + entry.slots <= share and now - entry.since < HOLD_BACK
