# SPDX-License-Identifier: Apache-2.0
"""The admission queue decides which jobs begin, and when, by quotas, reservations and free slots.

It does no I/O. It returns every decision, and the caller tells the ranks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.messages import LONGEST_QUEUE
from p4reduce_controller.jobs.admission import problem_of, refusal
from p4reduce_controller.jobs.job import Job, Session
from p4reduce_controller.jobs.numbers import NumbersExhausted
from p4reduce_controller.jobs.registry import Registry
from p4reduce_controller.jobs.switches import Switches
from p4reduce_controller.jobs.tenancy import Denied, Held, MustWait, Tenancy
from p4reduce_controller.jobs.waitlist import RETURN_TIMEOUT, Entry, Waitlist
from p4reduce_controller.switches.pools import PoolFull
from p4reduce_controller.tenants.access import Caller

_STORED_FIELDS = ("tenant", "name", "slots", "world_size", "since")


@dataclass(frozen=True)
class Admitted:
    """A job that has its slots, and the queue entry whose ranks join it."""

    job: Job
    entry: Entry


@dataclass(frozen=True)
class Queued:
    """A rank that waits. It gets its position in the queue from `notices`."""

    entry: Entry


@dataclass(frozen=True)
class Refused:
    """Ranks that no longer wait, and the Abort that they receive."""

    sessions: Sequence[Session]
    abort: pb.Abort


class AdmissionQueue:
    """The queue of jobs that wait for slots, numbers or their tenant's quota."""

    def __init__(self, registry: Registry, switches: Switches, tenancy: Tenancy, rejoin_time: float) -> None:
        self.waitlist = Waitlist()
        self.tenancy = tenancy
        self._registry = registry
        self._switches = switches
        self._rejoin_time = rejoin_time
        self._last_keys: list[tuple[str, str]] = []  # tenant and name of each entry at the latest `take_change`

    # Ranks that join or leave.

    def offer(
        self, session: Session, join: pb.Join, caller: Caller, now: float
    ) -> Sequence[Admitted | Queued | Refused]:
        """Queue a rank whose job has not begun, and return the decisions about its job and others.

        Decisions about jobs that are ahead in the queue come first.
        """
        if (problem := self._problem_of(join, caller)) is not None:
            entry = self.waitlist.named(caller.tenant, join.job)
            others = self._remove(entry) if entry else []
            return [Refused([session, *others], refusal(join, problem))]
        slots = join.slots or self._switches.slots_at(self._switches.for_new())
        entry = self.waitlist.add(session, join, caller, slots, now)
        answers = self.admit(now)
        if self.waitlist.of(session) is None:
            return answers
        if join.queue_s or self._has_room_soon(entry, now):
            return [*answers, Queued(entry)]
        return [*answers, self.dismiss(entry, pb.SLOTS_EXHAUSTED, f"rank {join.rank} is refused: {entry.why}")]

    def dismiss(self, entry: Entry, reason: pb.AbortReason, why: str, rank: int | None = None) -> Refused:
        """Remove a job from the queue. `rank`: the rank that is to blame."""
        abort = pb.Abort(rank=rank, reason=reason, message=f"job {entry.name!r}: {why}")
        return Refused(self._remove(entry), abort)

    def give_up(self, session: Session, what: str) -> list[Refused]:
        """Dismiss the job of a rank that no longer waits; do nothing if the rank is not in the queue."""
        if (found := self.waitlist.of(session)) is None:
            return []
        entry, rank = found
        return [self.dismiss(entry, pb.WORKER_LOST, f"rank {rank} {what}", rank)]

    def _problem_of(self, join: pb.Join, caller: Caller) -> str | None:
        """Return why the rank can neither join nor wait; None if it can."""
        entry, site = self.waitlist.named(caller.tenant, join.job), self._switches.for_new()
        if entry is not None and self._switches.unschedulable([join]):
            # No switch takes the rank now, but its job waits already, and the rank with it. So it is refused only if
            # all switches together, usable or not, could not serve it.
            every = self._switches.site
            problem = problem_of(join, every, self._switches.slots_at(every))
        else:
            problem = self._switches.problem_of(join, site, new=True)
        if problem is not None:
            return problem
        if not 0 <= join.queue_s <= LONGEST_QUEUE:
            return f"queue_s={join.queue_s}: must be from 0 to {LONGEST_QUEUE:g}"
        if entry is not None:
            # A restored entry without ranks binds nobody: the first rank asks anew, maybe for something else.
            return entry.conflict_with(join, self._switches.slots_at(site)) if entry.ranks else None
        most = self.tenancy.policy.quota(caller.tenant).queued
        if join.queue_s and self.waitlist.count(caller.tenant) >= most:
            return f"tenant {caller.tenant!r} has {most:g} jobs in the queue, which is its limit"
        return None

    def _remove(self, entry: Entry) -> list[Session]:
        self.waitlist.remove(entry)
        return [session for session, _, _ in entry.ranks.values()]

    # Passing time.

    def admit(self, now: float) -> list[Admitted | Refused]:
        """Admit the jobs whose turn it is, and refuse those that can never begin."""
        answers: list[Admitted | Refused] = []
        while decided := self._next(now):
            answers += decided
        return answers

    def _next(self, now: float) -> Sequence[Admitted | Refused]:
        """Return the decision about the first job, in queue order, that can be decided now; [] if none can."""
        held = self._registry.held
        blocked = False
        for entry in self.waitlist.in_order(self.tenancy.policy, held.slots):
            if not entry.ranks:
                # Its ranks may come back soon. If its quota lets it begin then, entries behind it do not overtake it.
                blocked = blocked or self._is_within_quota(entry, held)
                continue
            entry.no_room = entry.waits_for_others = False
            joins = [join for _, join, _ in entry.ranks.values()]
            if not any(join.slots for join in joins):  # the switches may have changed meanwhile
                entry.slots = self._switches.slots_at(self._switches.for_new())
            try:
                self.tenancy.check(entry.tenant, entry.slots, held)
                if why := self._switches.unschedulable(joins):
                    entry.why = str(why)
                    continue
                # Behind an entry that blocks others, a job may begin only within its tenant's reservation. Other
                # tenants' entries cannot have those slots.
                if blocked and held.slots[entry.tenant] + entry.slots > self.tenancy.reserved(entry.tenant):
                    entry.why = "earlier jobs in the queue have no room yet"
                    continue
                job = self._begin(entry, held, now)
            except Denied as error:
                return self._refuse(entry, str(error), pb.QUOTA_EXCEEDED)
            except MustWait as error:
                entry.why, entry.waits_for_others = str(error), True
            except (PoolFull, NumbersExhausted) as error:
                entry.why = f"{error}; ask for fewer slots, or wait until other jobs end"
                entry.no_room, entry.waits_for_others = isinstance(error, PoolFull), True
                capacity = self._switches.for_new().capacity
                blocked = blocked or self.waitlist.blocks_others(entry, held.slots, capacity, now)
            else:
                # The switches may have changed since the ranks joined.
                problems = (self._switches.problem_of(join, job.site, new=True) for join in joins)
                if (problem := next(filter(None, problems), None)) is not None:
                    self._registry.give_up_name(job)
                    self._registry.free(job)
                    return self._refuse(entry, problem, pb.JOIN_REFUSED)
                self.waitlist.remove(entry)
                return [Admitted(job, entry)]
        return []

    def _begin(self, entry: Entry, held: Held, now: float) -> Job:
        """Create the job. Raise PoolFull or NumbersExhausted if it cannot have slots or a number."""
        _, join, caller = entry.first
        site, reserved = self._switches.for_new(), self.tenancy.reserved_for_others(entry.tenant, held)
        job = self._registry.create(join, site, entry.slots, self._rejoin_time, now, caller, reserved)
        job.excluded_switches, job.cordoned = self._switches.excluded_from(site), self._switches.cordoned_at(site)
        return job

    def _refuse(self, entry: Entry, why: str, reason: pb.AbortReason) -> list[Refused]:
        self.waitlist.remove(entry)
        return [Refused([session], refusal(join, why, reason)) for session, join, _ in entry.ranks.values()]

    def expire(self, now: float) -> list[Refused]:
        """Dismiss the jobs whose ranks have waited as long as they wanted to."""
        order = self._positions()
        over = [one for one in self.waitlist if now >= one.deadline and not self._has_room_soon(one, now)]
        why = "after {:.0f} s in the queue, position {} of {}: {}"
        return [
            self.dismiss(one, pb.SLOTS_EXHAUSTED, why.format(now - one.since, order[id(one)], len(order), one.why))
            for one in over
        ]

    def _has_room_soon(self, entry: Entry, now: float) -> bool:
        """Return whether slots are blocked only briefly, by a job that is being moved or has just ended."""
        return (entry.no_room and self._registry.moving) or (entry.waits_for_others and self._registry.freeing(now))

    def without_room(self) -> Entry | None:
        """Return the first entry, in queue order, that waits only for free slots of switches."""
        return next((entry for entry in self._in_order() if entry.ranks and entry.no_room), None)

    def _is_within_quota(self, entry: Entry, held: Held) -> bool:
        try:
            self.tenancy.check(entry.tenant, entry.slots, held)
        except (Denied, MustWait):
            return False
        return True

    # Across restarts, and for operators.

    def restore(self, stored: Sequence[Any], now: float) -> None:
        """Restore the entries that `to_json` of an earlier controller returned. Raises ValueError.

        An entry keeps its position only if ranks of its job come back soon.
        """
        wall = time.time()
        for one in stored:
            try:
                tenant, name, slots, ranks, since = (one[key] for key in _STORED_FIELDS)
            except (TypeError, KeyError):
                raise ValueError(f"queue: each entry must be an object with {', '.join(_STORED_FIELDS)}") from None
            texts = isinstance(tenant, str) and isinstance(name, str)
            if not texts or not all(type(number) is int and number > 0 for number in (slots, ranks)):
                raise ValueError("queue: tenant and name must be strings, slots and world_size positive integers")
            if type(since) is not float or not 0 <= since < math.inf:
                raise ValueError("queue: since must be a time")
            self.waitlist.restore(tenant, name, slots, ranks, now - max(0.0, wall - since), now + RETURN_TIMEOUT)

    def to_json(self, now: float) -> list[dict[str, Any]]:
        """Return the entries for a later controller, as JSON values."""
        wall = time.time()
        return [
            {key: getattr(one, key) for key in _STORED_FIELDS}
            # The difference of the two clocks varies a little. Rounded, an entry looks the same in each save.
            | {"since": round(wall - (now - one.since), 1)}
            for one in self.waitlist
        ]

    def take_change(self) -> bool:
        """Return whether jobs have entered or left the queue since the last call."""
        before, self._last_keys = self._last_keys, [(one.tenant, one.name) for one in self.waitlist]
        return before != self._last_keys

    def expect_returns(self, now: float) -> None:
        """Start the time in which the ranks of restored entries can come back."""
        for one in self.waitlist:
            if not one.ranks:
                one.deadline = now + RETURN_TIMEOUT

    def notices(self) -> Iterator[tuple[Session, pb.Waiting]]:
        """Yield a notice for each rank whose position, or reason to wait, has changed."""
        order = self._positions()
        for entry in self.waitlist:
            notice = pb.Waiting(what=pb.Waiting.QUEUE, place=order[id(entry)], queued=len(order), why=entry.why)
            for rank, (session, _, _) in entry.ranks.items():
                if entry.last_notices.get(rank) != notice:
                    entry.last_notices[rank] = notice
                    yield session, notice

    def described(self, now: float) -> list[pb.QueuedJob]:
        return [
            pb.QueuedJob(
                **{key: getattr(one, key) for key in ("tenant", "name", "world_size", "slots", "why")},
                place=position,
                ranks=sorted(one.ranks),
                age_s=now - one.since,
            )
            for position, one in enumerate(self._in_order(), 1)
        ]

    def _in_order(self) -> list[Entry]:
        return self.waitlist.in_order(self.tenancy.policy, self._registry.held.slots)

    def _positions(self) -> dict[int, int]:
        """Return the position of each entry, from 1 on, by the entry's `id`."""
        return {id(entry): position for position, entry in enumerate(self._in_order(), 1)}
