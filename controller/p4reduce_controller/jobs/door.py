# SPDX-License-Identifier: Apache-2.0
"""Whose turn it is to have a job, by quotas, reservations and the queue, without I/O."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.job import Job, Session
from p4reduce_controller.jobs.numbers import NumbersExhausted
from p4reduce_controller.jobs.pools import PoolFull
from p4reduce_controller.jobs.registry import Registry
from p4reduce_controller.jobs.waitlist import LONGEST_QUEUE, RETURN, Entry, Waitlist
from p4reduce_controller.switches.site import Site
from p4reduce_controller.tenants.access import Caller
from p4reduce_controller.tenants.quotas import Denied, Held, MustWait, Tenancy

_KEPT = ("tenant", "name", "slots", "world_size", "since")
Found = Callable[[pb.Join, Caller, int, float], Job]
Shut = Callable[[Iterable[pb.Join]], str | None]


class Door:
    def __init__(
        self,
        registry: Registry,
        tenancy: Tenancy,
        found: Found,
        site: Callable[[], Site],
        shut: Shut,
        default_slots: int,
    ) -> None:
        """`found`: makes the job of so many slots for its first rank at that time, and raises PoolFull or
        NumbersExhausted. `site`: of the switches that there are now for a job that begins. `shut`: why none of
        those takes a job of these ranks, or None. `default_slots`: of jobs that leave it to the controller, where the
        switches have as many."""
        self.waitlist = Waitlist()
        self.tenancy = tenancy
        self._registry = registry
        self._found = found
        self._site = site
        self._shut = shut
        self._default_slots = default_slots

    @property
    def held(self) -> Held:
        return Held(self._registry)

    def problem_of(self, join: pb.Join, caller: Caller) -> str | None:
        """Why the rank cannot wait here."""
        if not 0 <= join.queue_s <= LONGEST_QUEUE:
            return f"queue_s={join.queue_s}: must be from 0 to {LONGEST_QUEUE:g}"
        entry = self.waitlist.named(caller.tenant, join.job)
        if entry is not None:
            return entry.quarrel_with(join) if entry.ranks else None
        most = self.tenancy.policy.quota(caller.tenant).queued
        if join.queue_s and self.waitlist.count(caller.tenant) >= most:
            return f"tenant {caller.tenant!r} has {most:g} jobs in the queue, which is its limit"
        return None

    def let_in(self, now: float) -> Iterator[tuple[Entry, Job | Denied]]:
        """Takes those off the queue whose turn it is, with their job, or with why they shall never have one."""
        while (turn := self._next(now)) is not None:
            self.waitlist.remove(turn[0])
            yield turn

    def _next(self, now: float) -> tuple[Entry, Job | Denied] | None:
        held = self.held
        held_back = False
        for entry in self.waitlist.in_order(self.tenancy.policy, held.slots):
            if not entry.ranks:
                held_back = held_back or self._may_have(entry, held)
                continue
            _, join, caller = entry.first
            entry.no_room = entry.for_others = False
            if not join.slots:  # switches may have come or gone meanwhile
                entry.slots = min(self._default_slots, self._site().capacity)
            try:
                self.tenancy.check(entry.tenant, entry.slots, held)
                if (why := self._shut(one for _, one, _ in entry.ranks.values())) is not None:
                    entry.why = why
                    continue
                if held_back and held.slots[entry.tenant] + entry.slots > self.tenancy.reserved(entry.tenant):
                    entry.why = "earlier jobs in the queue have no room yet"
                    continue
                return entry, self._found(join, caller, entry.slots, now)
            except Denied as error:
                return entry, error
            except MustWait as error:
                entry.why, entry.for_others = str(error), True
            except (PoolFull, NumbersExhausted) as error:
                entry.why = f"{error}; ask for fewer slots, or wait until other jobs end"
                entry.no_room, entry.for_others = isinstance(error, PoolFull), True
                capacity = self._site().capacity
                held_back = held_back or self.waitlist.holds_back(entry, held.slots, capacity, now)
        return None

    def without_room(self) -> Entry | None:
        """The first, in the order of their turns, that waits for slots of switches alone."""
        order = self.waitlist.in_order(self.tenancy.policy, self.held.slots)
        return next((entry for entry in order if entry.ranks and entry.no_room), None)

    def _may_have(self, entry: Entry, held: Held) -> bool:
        """Whether its tenant has what the job asks for."""
        try:
            self.tenancy.check(entry.tenant, entry.slots, held)
        except (Denied, MustWait):
            return False
        return True

    def expect(self, kept: Sequence[Any], wall: float, now: float) -> None:
        """Those of whom `to_keep` told an earlier controller, for a while. Raises ValueError."""
        for one in kept:
            try:
                tenant, name, slots, ranks, since = (one[key] for key in _KEPT)
            except (TypeError, KeyError):
                raise ValueError(f"queue: each entry must be an object with {', '.join(_KEPT)}") from None
            texts = isinstance(tenant, str) and isinstance(name, str)
            if not texts or not all(type(number) is int and number > 0 for number in (slots, ranks)):
                raise ValueError("queue: tenant and name must be strings, slots and world_size positive integers")
            if type(since) is not float or not 0 <= since < math.inf:
                raise ValueError("queue: since must be a time")
            self.waitlist.expect(tenant, name, slots, ranks, now - max(0.0, wall - since), now + RETURN)

    def to_keep(self, wall: float, now: float) -> list[dict[str, Any]]:
        """For a later controller, as JSON has it. `wall`: Unix time, `now`: the same moment on the clock of the
        jobs."""
        return [
            {
                "tenant": one.tenant,
                "name": one.name,
                "slots": one.slots,
                "world_size": one.world_size,
                "since": round(wall - (now - one.since), 1),  # so that it is the same each time
            }
            for one in self.waitlist
        ]

    def expect_returns(self, now: float) -> None:
        """From now on, ranks can come back."""
        for one in self.waitlist:
            if not one.ranks:
                one.deadline = now + RETURN

    def overdue(self, now: float) -> list[tuple[Entry, str]]:
        """Those that have waited as long as they would, and why they were not let in."""
        order = self._places()
        return [
            (one, f"after {now - one.since:.0f} s in the queue, position {order[id(one)]} of {len(order)}: {one.why}")
            for one in self.waitlist
            if now >= one.deadline
        ]

    def notices(self) -> Iterator[tuple[Session, pb.Waiting]]:
        """What ranks in the queue have not been told yet."""
        order = self._places()
        for entry in self.waitlist:
            notice = pb.Waiting(what=pb.Waiting.QUEUE, place=order[id(entry)], queued=len(order), why=entry.why)
            for rank, (session, _, _) in entry.ranks.items():
                if entry.told.get(rank) != notice:
                    entry.told[rank] = notice
                    yield session, notice

    def described(self, now: float) -> list[pb.QueuedJob]:
        order = self._places()
        entries = sorted(self.waitlist, key=lambda one: order[id(one)])
        return [
            pb.QueuedJob(
                tenant=one.tenant,
                name=one.name,
                place=order[id(one)],
                world_size=one.world_size,
                ranks=sorted(one.ranks),
                slots=one.slots,
                age_s=now - one.since,
                why=one.why,
            )
            for one in entries
        ]

    def _places(self) -> dict[int, int]:
        """From 1 on, by the identity of the entry."""
        order = self.waitlist.in_order(self.tenancy.policy, self.held.slots)
        return {id(entry): place for place, entry in enumerate(order, 1)}
