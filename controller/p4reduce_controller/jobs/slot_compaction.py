# SPDX-License-Identifier: Apache-2.0
"""Slot compaction: running jobs get other slots between two of their operations, one job at a time. Without I/O.

| state | event | next |
|---|---|---|
| ranks told to pause | all have paused, and have ended the operations that they had begun | on the switches |
| ranks told to pause | some have not paused after `PAUSE_TIMEOUT_S` | ranks told to go on as before |
| on the switches | every switch has the job in its new slots | ranks told to go on in the new slots |

Ranks call collectives in the same order. A rank that is behind therefore only has to begin as many operations as the
rank that has begun most. See docs/protocol.md, section 6.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Iterable, Mapping

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.admission_queue import AdmissionQueue
from p4reduce_controller.jobs.compacting import Change, grow, make_room, placed, pools_without
from p4reduce_controller.jobs.effects import Change as ChangeEffect
from p4reduce_controller.jobs.job import Job, Member, Move, State
from p4reduce_controller.jobs.lifecycle import Lifecycle
from p4reduce_controller.jobs.placement import check_room, find_slots
from p4reduce_controller.jobs.registry import Registry
from p4reduce_controller.jobs.switches import Switches
from p4reduce_controller.switches.pools import PoolFull, SlotPool

PAUSE_TIMEOUT_S = 0.75  # seconds that ranks may take to pause, before the move is given up
CHECK_INTERVAL_S = 0.5  # seconds between searches for a job to move
COOLDOWN_S = 10.0  # cooldown of a job that was moved, in seconds
LONG_COOLDOWN_S = 60.0  # cooldown if not all ranks paused; it doubles each further time in a row
MAX_COOLDOWN_S = 3600.0

log = logging.getLogger(__name__)


class SlotCompaction:
    """The state machine of moves. Without `moves_slots`, no job gets other slots."""

    def __init__(
        self, lifecycle: Lifecycle, registry: Registry, queue: AdmissionQueue, switches: Switches, *, moves_slots: bool
    ) -> None:
        self._lifecycle = lifecycle
        self._registry = registry
        self._queue = queue
        self._switches = switches
        self._moves_slots = moves_slots
        self._job: Job | None = None  # the job that is being moved
        self._look_at = -math.inf

    def tick(self, now: float) -> None:
        job = self._job
        if job is not None and (job.over or job.move is None):
            self._job = job = None
        if job is not None and job.move is not None and not job.moving and now - job.move.since >= PAUSE_TIMEOUT_S:
            job.failed_pauses += 1
            self._withdraw(job, now, f"not all ranks paused within {PAUSE_TIMEOUT_S:g} s")
        if self._job is None and now >= self._look_at:
            self._look_at = now + CHECK_INTERVAL_S
            if (change := self._next(now)) is not None:
                self._begin(change, now)

    def held(self, job: Job, member: Member, held: pb.Held, now: float) -> None:
        move = job.move
        if move is None:  # it was asked by an earlier controller, or too long ago
            self.go_on(job, [member])
            return
        if job.moving or member.rank not in job.workers or held.number != move.numbers.get(member.rank):
            return  # an answer to an earlier Hold, sent before its Release
        move.held[member.rank] = held
        furthest = max(one.operations for one in move.held.values())
        for rank, one in move.held.items():
            if one.operations < furthest and move.asked.get(rank, 0) < furthest:
                self._hold(job, job.members[rank], furthest)
        quiet = [one for one in move.held.values() if one.operations == furthest and one.quiet]
        if len(quiet) == len(job.workers):
            seqs = {one.first_seq for one in quiet}
            first_seq = next(iter(seqs))
            if len(seqs) == 1 and first_seq % 2 == 0:
                self._change(job, first_seq, now)
            else:
                job.failed_pauses += 1
                self._withdraw(job, now, f"its ranks are at different rounds, {sorted(seqs)}")

    def came_back(self, job: Job, member: Member) -> None:
        """Handle the return of a worker on a new stream.

        It may still be paused, for this controller or an earlier one.
        """
        if member.rank not in job.workers or not member.holds or job.moving:
            return
        self.go_on(job, [member])
        if job.move is not None:
            job.move.held.pop(member.rank, None)
            self._hold(job, member, job.move.asked.get(member.rank, 0))

    def go_on(self, job: Job, members: Iterable[Member]) -> None:
        """Tell members to go on. Members that have not paused ignore it."""
        for member in members:
            self._lifecycle.tell(member.session, _release(job.slots, job.first_seq))

    def done(self, job: Job, now: float) -> None:
        """End the move: every switch has the job in its new slots, and the new state has been kept."""
        if not job.over and job.moving:
            self._registry.end_move(job)
            job.cooldown_until, job.failed_pauses = now + COOLDOWN_S, 0
            self.go_on(job, _workers(job))

    def failed(self, job: Job, why: str, now: float) -> None:
        """Undo the move: the new state could not be kept, and no switch was changed."""
        if job.over or job.move is None or job.move.before is None:
            return
        self._registry.undo_move(job)
        self._withdraw(job, now, why)

    def _next(self, now: float) -> Change | None:
        """Return the next change of a job's slots; None if there is none.

        Jobs that did not all pause when asked come last, and other jobs of their tenants before them."""
        jobs = [job for job in self._registry.live if job.movable and now >= job.cooldown_until]
        failed_tenants = {job.tenant for job in self._registry.live if job.failed_pauses}
        of_other_tenants = [job for job in jobs if job.tenant not in failed_tenants]
        without_failure = [job for job in jobs if not job.failed_pauses]
        for candidates in (of_other_tenants, without_failure, jobs) if failed_tenants else (jobs,):
            try:
                change = self._wanted(candidates)
            except Exception:  # jobs run on as they are
                log.exception("no slots are moved for the next %g s", LONG_COOLDOWN_S)
                self._look_at = now + LONG_COOLDOWN_S
                return None
            if change is not None:
                return change
        return None

    def _begin(self, change: Change, now: float) -> None:
        self._job = job = change.job
        job.move = Move(change.slots, change.why, now)
        if job.in_memory:
            self._change(job, job.first_seq, now)
        for member in _workers(job):
            if not job.in_memory:
                self._hold(job, member, 0)

    def _hold(self, job: Job, member: Member, operations: int) -> None:
        assert job.move is not None
        job.move.asked[member.rank] = operations
        number = job.move.numbers[member.rank] = secrets.randbits(64)
        self._lifecycle.tell(member.session, pb.ServerMessage(hold=pb.Hold(operations=operations, number=number)))

    def _change(self, job: Job, first_seq: int, now: float) -> None:
        assert job.move is not None
        if why := self._why_not(job, job.move):
            self._withdraw(job, now, why)
            return
        ranges = placed(job, job.move.slots, pools_without(job, self._registry.pools))
        if ranges is None:
            self._withdraw(job, now, "there is no room for it any more")
            return
        self._registry.begin_move(job, ranges, first_seq)
        self._lifecycle.add(ChangeEffect(job))

    def _withdraw(self, job: Job, now: float, why: str) -> None:
        log.info("job %r keeps its slots: %s", job.name, why)
        job.move = self._job = None
        job.cooldown_until = now + min(MAX_COOLDOWN_S, LONG_COOLDOWN_S * 2 ** max(0, job.failed_pauses - 1))
        for member in _workers(job):
            self._lifecycle.tell(member.session, _release(0, 0))

    # The choice of the next job, by who waits and what tenants may have.

    def _wanted(self, movable: list[Job]) -> Change | None:
        """Return the next change of slots: to make room for a waiting job, or to let one grow if none waits."""
        movable = [job for job in movable if not self._switches.unavailable_to(job)] if self._moves_slots else []
        if not movable:
            return None
        if (entry := self._queue.without_room()) is None:
            return grow((job for job in movable if not self._cannot_grow(job)), self._registry.pools)
        base = self._switches.for_new()
        reserved_for_others = self._queue.tenancy.reserved_for_others(entry.tenant, self._registry.held)
        site = base.for_threads(entry.first[1].threads or 1)

        def fits(pools: Mapping[int, SlotPool]) -> bool:
            pools = self._registry.unreserved_pools(reserved_for_others, base, pools)
            try:
                check_room(site, entry.slots, pools)
                find_slots(site, entry.slots, pools, site.always_needed)
            except PoolFull:
                return False
            return True

        held = self._registry.held

        def most_given(tenant: str) -> float:
            """Return how many slots a tenant's jobs may give back: slots of its reservation would stay free for it."""
            reserved = self._queue.tenancy.reserved(tenant)
            return held.slots[tenant] - reserved if reserved and tenant != entry.tenant else math.inf

        return make_room(movable, self._registry.pools, fits, most_given)

    def _why_not(self, job: Job, move: Move) -> str:
        """Return why the job cannot be moved now, or ""."""
        if unavailable := self._switches.unavailable_to(job):
            return str(unavailable)
        return self._cannot_grow(job) if move.slots > job.slots else ""

    def _cannot_grow(self, job: Job) -> str:
        """Return why the job cannot have its former slots again, or "".

        Its quota may forbid it, or others need them.
        """
        held, more = self._registry.held, job.most_slots - job.slots
        if held.slots[job.tenant] + more > self._queue.tenancy.policy.quota(job.tenant).slots:
            return "its tenant may not have more slots"
        if self._queue.tenancy.reserved_for_others(job.tenant, held):
            return "slots are reserved for others"
        gathering = any(one.state is State.GATHERING for one in self._registry.live)
        return "another job is starting, which may need more slots" if gathering else ""


def _workers(job: Job) -> list[Member]:
    return [job.members[rank] for rank in job.workers if not job.in_memory]


def _release(slots: int, first_seq: int) -> pb.ServerMessage:
    return pb.ServerMessage(release=pb.Release(slots=slots, first_seq=first_seq))
