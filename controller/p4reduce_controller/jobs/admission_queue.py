# SPDX-License-Identifier: Apache-2.0
"""The queue decides which jobs begin, and when, by quotas, reservations and free slots. Without I/O.

Every answer is returned; telling the ranks is up to the caller.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.admission import problem_of, refusal
from p4reduce_controller.jobs.job import Job, Session
from p4reduce_controller.jobs.numbers import NumbersExhausted
from p4reduce_controller.jobs.registry import Registry
from p4reduce_controller.jobs.switches import Switches
from p4reduce_controller.jobs.tenancy import Denied, Held, MustWait, Tenancy
from p4reduce_controller.jobs.waitlist import LONGEST_QUEUE, RETURN, Entry, Waitlist
from p4reduce_controller.switches.pools import PoolFull
from p4reduce_controller.tenants.access import Caller

_KEPT = ("tenant", "name", "slots", "world_size", "since")


@dataclass(frozen=True)
class Admitted:
    """The job has its slots, and these ranks join it."""

    job: Job
    entry: Entry


@dataclass(frozen=True)
class Queued:
    """The rank waits. `notices` tells it, and those before and behind it, at which position."""

    entry: Entry


@dataclass(frozen=True)
class Refused:
    """These ranks do not wait any more."""

    sessions: Sequence[Session]
    abort: pb.Abort


class AdmissionQueue:
    def __init__(self, registry: Registry, switches: Switches, tenancy: Tenancy, rejoin_time: float) -> None:
        self.waitlist = Waitlist()
        self.tenancy = tenancy
        self._registry = registry
        self._switches = switches
        self._rejoin_time = rejoin_time
        self._kept: list[tuple[str, str]] = []

    # Ranks come and go.

    def offer(
        self, session: Session, join: pb.Join, caller: Caller, now: float
    ) -> Sequence[Admitted | Queued | Refused]:
        """Answers a rank whose job has not begun. Others whose turn comes first have their answers before it."""
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
        """Take a job off the queue. `rank`: who is to blame."""
        abort = pb.Abort(rank=rank, reason=reason, message=f"job {entry.name!r}: {why}")
        return Refused(self._remove(entry), abort)

    def give_up(self, session: Session, what: str) -> list[Refused]:
        """Return a rank that may wait here does not any more, and its job cannot come to be."""
        if (found := self.waitlist.of(session)) is None:
            return []
        entry, rank = found
        return [self.dismiss(entry, pb.WORKER_LOST, f"rank {rank} {what}", rank)]

    def _problem_of(self, join: pb.Join, caller: Caller) -> str | None:
        """Why the rank can neither join nor wait."""
        entry, site = self.waitlist.named(caller.tenant, join.job), self._switches.for_new()
        if entry is not None and self._switches.unschedulable([join]):  # it waits with the others of its job
            every = self._switches.site
            problem = problem_of(join, every, self._switches.slots_at(every))
        else:
            problem = self._switches.problem_of(join, site, new=True)
        if problem is not None:
            return problem
        if not 0 <= join.queue_s <= LONGEST_QUEUE:
            return f"queue_s={join.queue_s}: must be from 0 to {LONGEST_QUEUE:g}"
        if entry is not None:
            return entry.conflict_with(join, self._switches.slots_at(site)) if entry.ranks else None
        most = self.tenancy.policy.quota(caller.tenant).queued
        if join.queue_s and self.waitlist.count(caller.tenant) >= most:
            return f"tenant {caller.tenant!r} has {most:g} jobs in the queue, which is its limit"
        return None

    def _remove(self, entry: Entry) -> list[Session]:
        self.waitlist.remove(entry)
        return [session for session, _, _ in entry.ranks.values()]

    # Time goes on.

    def admit(self, now: float) -> list[Admitted | Refused]:
        """Take those off the queue whose turn it is."""
        answers: list[Admitted | Refused] = []
        while turn := self._next(now):
            answers += turn
        return answers

    def _next(self, now: float) -> Sequence[Admitted | Refused]:
        held = self._registry.held
        blocked = False
        for entry in self.waitlist.in_order(self.tenancy.policy, held.slots):
            if not entry.ranks:
                blocked = blocked or self._may_have(entry, held)
                continue
            entry.no_room = entry.for_others = False
            joins = [join for _, join, _ in entry.ranks.values()]
            if not any(join.slots for join in joins):  # switches may have come or gone meanwhile
                entry.slots = self._switches.slots_at(self._switches.for_new())
            try:
                self.tenancy.check(entry.tenant, entry.slots, held)
                if why := self._switches.unschedulable(joins):
                    entry.why = str(why)
                    continue
                if blocked and held.slots[entry.tenant] + entry.slots > self.tenancy.reserved(entry.tenant):
                    entry.why = "earlier jobs in the queue have no room yet"
                    continue
                job = self._begin(entry, held, now)
            except Denied as error:
                return self._refuse(entry, str(error), pb.QUOTA_EXCEEDED)
            except MustWait as error:
                entry.why, entry.for_others = str(error), True
            except (PoolFull, NumbersExhausted) as error:
                entry.why = f"{error}; ask for fewer slots, or wait until other jobs end"
                entry.no_room, entry.for_others = isinstance(error, PoolFull), True
                capacity = self._switches.for_new().capacity
                blocked = blocked or self.waitlist.blocks_others(entry, held.slots, capacity, now)
            else:
                # For other switches than there were when they came, perhaps.
                problems = (self._switches.problem_of(join, job.site, new=True) for join in joins)
                if (problem := next(filter(None, problems), None)) is not None:
                    self._registry.give_up_name(job)
                    self._registry.free(job)
                    return self._refuse(entry, problem, pb.JOIN_REFUSED)
                self.waitlist.remove(entry)
                return [Admitted(job, entry)]
        return []

    def _begin(self, entry: Entry, held: Held, now: float) -> Job:
        """Raise PoolFull or NumbersExhausted."""
        _, join, caller = entry.first
        site, kept = self._switches.for_new(), self.tenancy.kept_from(entry.tenant, held)
        job = self._registry.found(join, site, entry.slots, self._rejoin_time, now, caller, kept)
        job.excluded_switches, job.cordoned = self._switches.excluded_from(site), self._switches.cordoned_at(site)
        return job

    def _refuse(self, entry: Entry, why: str, reason: pb.AbortReason) -> list[Refused]:
        self.waitlist.remove(entry)
        return [Refused([session], refusal(join, why, reason)) for session, join, _ in entry.ranks.values()]

    def expire(self, now: float) -> list[Refused]:
        """Dismisses those that have waited as long as they would."""
        order = self._places()
        over = [one for one in self.waitlist if now >= one.deadline and not self._has_room_soon(one, now)]
        why = "after {:.0f} s in the queue, position {} of {}: {}"
        return [
            self.dismiss(one, pb.SLOTS_EXHAUSTED, why.format(now - one.since, order[id(one)], len(order), one.why))
            for one in over
        ]

    def _has_room_soon(self, entry: Entry, now: float) -> bool:
        """Slots may be held for a moment only: twice, by a job that moves, or by one that is over."""
        return (entry.no_room and self._registry.moving) or (entry.for_others and self._registry.freeing(now))

    def without_room(self) -> Entry | None:
        """Return the first, in the order of their turns, that waits for slots of switches alone."""
        return next((entry for entry in self._in_order() if entry.ranks and entry.no_room), None)

    def _may_have(self, entry: Entry, held: Held) -> bool:
        try:
            self.tenancy.check(entry.tenant, entry.slots, held)
        except (Denied, MustWait):
            return False
        return True

    # Across restarts, and for people.

    def restore(self, kept: Sequence[Any], now: float) -> None:
        """Those of whom `to_keep` told an earlier controller have their places, when their ranks come back soon. Raises
        ValueError."""
        wall = time.time()
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
            self.waitlist.restore(tenant, name, slots, ranks, now - max(0.0, wall - since), now + RETURN)

    def to_keep(self, now: float) -> list[dict[str, Any]]:
        """For a later controller, as JSON has it."""
        wall = time.time()
        return [
            {key: getattr(one, key) for key in _KEPT}
            | {"since": round(wall - (now - one.since), 1)}  # so that it is the same each time
            for one in self.waitlist
        ]

    def take_change(self) -> bool:
        """Whether jobs have come or gone since this was called last."""
        before, self._kept = self._kept, [(one.tenant, one.name) for one in self.waitlist]
        return before != self._kept

    def expect_returns(self, now: float) -> None:
        """From now on, ranks can come back."""
        for one in self.waitlist:
            if not one.ranks:
                one.deadline = now + RETURN

    def notices(self) -> Iterator[tuple[Session, pb.Waiting]]:
        """News of their positions, for ranks in the queue."""
        order = self._places()
        for entry in self.waitlist:
            notice = pb.Waiting(what=pb.Waiting.QUEUE, place=order[id(entry)], queued=len(order), why=entry.why)
            for rank, (session, _, _) in entry.ranks.items():
                if entry.told.get(rank) != notice:
                    entry.told[rank] = notice
                    yield session, notice

    def described(self, now: float) -> list[pb.QueuedJob]:
        return [
            pb.QueuedJob(
                **{key: getattr(one, key) for key in ("tenant", "name", "world_size", "slots", "why")},
                place=place,
                ranks=sorted(one.ranks),
                age_s=now - one.since,
            )
            for place, one in enumerate(self._in_order(), 1)
        ]

    def _in_order(self) -> list[Entry]:
        return self.waitlist.in_order(self.tenancy.policy, self._registry.held.slots)

    def _places(self) -> dict[int, int]:
        """From 1 on, by the identity of the entry."""
        return {id(entry): place for place, entry in enumerate(self._in_order(), 1)}
