# SPDX-License-Identifier: Apache-2.0
"""Failover: if a switch of a job dies, the slots of its tree go on at the switches of another tree. Without I/O.

| stage of a takeover | event | next |
|---|---|---|
| STORING | the controller has stored that the tree is lost | SUSPENDING: ranks are told to suspend their slots there |
| SUSPENDING | every rank that sends has told the rounds of its slots | INSTALLING, from the least round of each slot |
| SUSPENDING | a rank has not told them in time | the job ends, and its error names the rank |
| INSTALLING | the switches have the entries, and their halves are reset | DONE: ranks are told to go on there |
| INSTALLING | a switch has failed, or the tree is lost | another takeover begins; without a tree, the job ends |

A tree without slots, which is a spare, takes over only if no other tree can.

A tree is lost if a rank gets no answer from it, and the controller cannot reach a switch of it, or knows that a link of
it is down. It is also lost if a switch of it comes back without the job's entries.

The other tree's leaves have heard the same ranks, so no HELLOs are needed: packets of both trees go through the rank's
socket for the other tree, under different job numbers. The lost tree's slots stay the job's until it ends. If ranks
have several threads, the slots of all threads move at once, and each thread has a job number of its own.

Ranks are at most one round apart in each slot, because a round's RESULT needs a packet of each of them. A rank that is
ahead sends its packet of the least round again. See docs/protocol.md, section 7.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from dataclasses import replace
from itertools import accumulate

from p4reduce.control import jobs_pb2 as pb
from p4reduce.protocol.aggregators import slots_of
from p4reduce_controller.jobs.effects import Keep, TakeOver
from p4reduce_controller.jobs.job import Job, Member, State, Takeover, TakeoverStage
from p4reduce_controller.jobs.lifecycle import Lifecycle
from p4reduce_controller.jobs.numbers import NumbersExhausted
from p4reduce_controller.jobs.registry import Registry
from p4reduce_controller.jobs.switches import Switches
from p4reduce_controller.switches.pools import PoolFull

SUSPICION_S = 3.5  # seconds after a rank's question in which its tree may turn out to be lost; it asks again every 3 s
ROUNDS_TIMEOUT = 60.0  # seconds in which ranks must tell their rounds; engines do at once, unless they are stopped

STRANDED_TIMEOUT = 60.0  # seconds in which slots that a controller before had moved must go on somewhere again

log = logging.getLogger(__name__)


class Failover:
    """The state machine of takeovers. Without `enabled`, none begins but those that a controller before had begun."""

    def __init__(self, lifecycle: Lifecycle, registry: Registry, switches: Switches, *, enabled: bool) -> None:
        self._lifecycle = lifecycle
        self._registry = registry
        self._switches = switches
        self._enabled = enabled
        self._suspected: dict[tuple[int, int], tuple[Job, float]] = {}  # by job number and tree; when a rank asked

    # Events.

    def unanswered(self, job: Job, half: int, now: float) -> None:
        """Handle that a rank gets no answer about a half of the job. All ranks may say so at once."""
        tree, _ = self._registry.site_with_threads(job).slot_at(half, job.slots)
        tree %= job.trees
        is_known = (job.number, tree) in self._suspected
        self._suspected[job.number, tree] = job, now
        if not is_known:  # else the next tick looks at the tree again
            self._check(job, tree, now)

    def _check(self, job: Job, tree: int, now: float) -> None:
        if self._enabled and self._can(job) and (why := self._trouble(job, tree)):
            self._begin(job, tree, why, now)

    def lost_at(self, job: Job, switch: int, lost: Collection[int], why: str, now: float) -> bool:
        """Handle that a switch has come back without the job's entries. Return whether the job lives on.

        `switch`: the controller's number. `lost`: the job numbers whose entries are gone.
        """
        at_switch = [
            (tree % job.trees, placement.job)
            for tree in range(job.trees * job.threads)
            for at, placement in job.placements_of(tree).items()
            if job.site.number(at) == switch
        ]
        for takeover in job.takeovers:
            there = any(job.site.number(at) == switch for at in takeover.placements)
            gone = any(number in lost for number, _ in takeover.jobs)
            if takeover.stage is TakeoverStage.INSTALLING and there and gone:
                takeover.lost = why  # other switches may still be busy with it
        trees = {tree for tree, number in at_switch if number in lost and self._has_slots(job, tree)}
        if trees and not (self._enabled and self._can(job)):
            return False
        return all(self._begin(job, tree, why, now) for tree in sorted(trees))

    def stored(self, job: Job, takeover: Takeover) -> None:
        """Handle that a later controller would know that the tree is lost."""
        if not job.over and takeover.stage is TakeoverStage.STORING:
            takeover.stage, takeover.suspended_at = TakeoverStage.SUSPENDING, self._lifecycle.now
            self._suspend(takeover, _workers(job))
            for member in _departed(job):
                self.gone(job, member)

    def rounds(self, job: Job, member: Member, rounds: pb.Rounds) -> None:
        """Handle a rank's answer to Suspend."""
        found = [one for one in job.takeovers if one.number == rounds.number]
        if not found or found[0].stage is not TakeoverStage.SUSPENDING or member.rank not in job.workers:
            return
        takeover = found[0]
        if member.rank in takeover.told:
            return  # the first answer counts
        counts = _slots_at(job, takeover.tree)
        count = sum(counts)
        if member in _departed(job) or (count and not rounds.rounds):
            self._end_without(job, takeover, member)
            return
        if len(rounds.rounds) != count:
            what = f"cannot move its slots: it has told {len(rounds.rounds)} rounds, of {count} slots"
            self._lifecycle.abort(job, job.blame([member.rank], pb.SWITCH_LOST, f"{what} ({takeover.why})"))
            return
        takeover.told.add(member.rank)
        try:
            takeover.rounds.add(rounds.rounds)
        except ValueError as error:
            self._lifecycle.end(job, pb.SWITCH_LOST, f"{takeover.why}, and its slots cannot go on: {error}")
            return
        if len(takeover.told) < len(job.workers):
            return
        takeover.stage = TakeoverStage.INSTALLING
        firsts = [0, *accumulate(counts)]
        for at, placement in takeover.placements.items():
            thread = at // job.site.nodes
            own = takeover.rounds.least[firsts[thread] : firsts[thread + 1]]
            takeover.placements[at] = replace(placement, rounds=tuple(own))
        self._lifecycle.add(TakeOver(job, takeover))

    def taken_over(self, job: Job, takeover: Takeover, problem: str, now: float) -> bool:
        """Handle that the other tree's switches have the slots, or the problem. Return whether they have them."""
        if job.over or takeover.stage is not TakeoverStage.INSTALLING:
            return False
        elsewhere = f"{_name(job, takeover.via)} was lost meanwhile" if takeover.via in job.lost_trees else ""
        if problem := "; ".join(filter(None, (problem, takeover.lost, elsewhere))):
            takeover.stage = TakeoverStage.FAILED
            self._begin(job, takeover.tree, f"{takeover.why}; {problem}", now)
            return False
        takeover.stage, takeover.late = TakeoverStage.DONE, bool(_departed(job))
        if job.leave_deadline is not None:
            self._lifecycle.restart_grace(job)
        for member in _workers(job):
            self._resume(takeover, member)
        log.warning(
            "job %r: the slots of %s are at %s now: %s",
            *(job.name, _name(job, takeover.tree), _name(job, takeover.via), takeover.why),
        )
        return True

    def tick(self, now: float) -> None:
        """Begin takeovers: of trees from which ranks got no answer a moment ago, and of those of a controller before.

        For the latter, all ranks must have come back. Jobs end whose ranks do not tell their rounds in time.
        """
        self._suspected = {
            (number, tree): (job, since)
            for (number, tree), (job, since) in self._suspected.items()
            if now - since < SUSPICION_S and not job.over
        }
        for (_, tree), (job, _) in self._suspected.items():
            self._check(job, tree, now)
        for job in self._registry.live:
            for takeover in job.takeovers:
                self._check_rounds(job, takeover, now)
            for tree in sorted(tree for tree in job.lost_trees if job.takeover_of(tree) is None):
                if not (job.away or job.over):
                    self._begin_again(job, tree, now)

    def _begin_again(self, job: Job, tree: int, now: float) -> None:
        """Begin the takeover of a controller before again, because no switch has these slots any more."""
        why = "the controller was restarted"
        if self._can(job) and self._begin(job, tree, why, now):
            return
        job.stranded_at = now if job.stranded_at is None else job.stranded_at
        if now - job.stranded_at > STRANDED_TIMEOUT:
            text = f"the slots of {_name(job, tree)} were elsewhere when {why}, and cannot go on"
            problem = job.not_taken_over or "its ranks can move no slots now"
            self._lifecycle.end(job, pb.SWITCH_LOST, f"{text}: {problem}")

    def _check_rounds(self, job: Job, takeover: Takeover, now: float) -> None:
        """End the job if a rank has not told its rounds in time. Ranks that are away have another time limit."""
        if takeover.stage is not TakeoverStage.SUSPENDING or job.over:
            return
        if job.away:
            takeover.suspended_at = now
        elif now - takeover.suspended_at > ROUNDS_TIMEOUT:
            missing = [rank for rank in job.workers if rank not in takeover.told]
            what = f"cannot move slots: their rounds were not told within {ROUNDS_TIMEOUT:g} s ({takeover.why})"
            self._lifecycle.abort(job, job.blame(missing, pb.SWITCH_LOST, what))

    def came_back(self, job: Job, member: Member) -> None:
        """Handle the return of a rank on a new stream: it may lack messages of takeovers.

        They come in the order of the takeovers, because a rank moves no slots to an aggregator that is elsewhere.
        """
        if member.rank not in job.workers:
            return
        for takeover in [one for one in job.takeovers if one is job.takeover_of(one.tree)]:
            if takeover.stage is TakeoverStage.SUSPENDING and member.rank not in takeover.told:
                self._suspend(takeover, [member])
            elif takeover.stage is TakeoverStage.DONE:
                self._resume(takeover, member)

    def gone(self, job: Job, member: Member) -> None:
        """Handle that a rank which has left sends no packets any more. A job ends that has to wait for its rounds."""
        for takeover in job.takeovers:
            waits = takeover.stage in (TakeoverStage.STORING, TakeoverStage.SUSPENDING)
            if waits and member.rank in set(job.workers) - takeover.told:
                self._end_without(job, takeover, member)

    def _end_without(self, job: Job, takeover: Takeover, member: Member) -> None:
        self._lifecycle.end(job, pb.SWITCH_LOST, f"{takeover.why}, and rank {member.rank} had ended its operations")

    def trouble(self, job: Job) -> str:
        """Return which slots of the job do not work, although no rank is the cause, or ""."""
        if job.state is not State.READY or job.in_memory:
            return ""
        found = [one.why for one in job.takeovers if one.under_way or one.late]
        return "; ".join(found or filter(None, (self._trouble(job, tree) for tree in range(job.site.stripes))))

    # Steps.

    def _can(self, job: Job) -> bool:
        """Return whether slots of the job can go on elsewhere."""
        return (
            job.state is State.READY
            and not _departed(job)
            and job.move is None
            and job.trees > 1
            and not job.in_memory
            and all(job.members[rank].moves for rank in job.workers)
        )

    @staticmethod
    def _has_slots(job: Job, tree: int) -> bool:
        """Return whether some switches have the slots of a tree: those of a lost tree may still be on the way."""
        takeover = job.takeover_of(tree)
        return tree not in job.lost_trees or (takeover is not None and takeover.stage is TakeoverStage.DONE)

    def _trouble(self, job: Job, tree: int, *, new: bool = False) -> str:
        """Return why the tree that has these slots of the job is lost, or "". `new`: it has none of its slots yet."""
        nodes = sorted({*job.placements_of(tree)} & {*range(job.site.nodes)})
        found = self._switches.unavailable(job.site, nodes, new=new)
        links = [at for at in nodes if at in job.site.trees.uplinks]
        return "; ".join(found or [str(why) for at in links if (why := self._switches.uplink_trouble(job.site, at))])

    def _begin(self, job: Job, tree: int, why: str, now: float) -> bool:
        """Begin a takeover of the tree's slots, unless one is under way. Return whether the job lives on.

        If no other tree can have the slots, the job goes on as it is, unless it has lost them for certain.
        """
        before = job.takeover_of(tree)
        if before is not None and before.under_way:
            return True
        others = [other for other in range(job.trees) if job.placements_of(other)]  # not if it is gone
        others = [other for other in others if other not in job.lost_trees | {tree}]
        failed = {one.via for one in job.takeovers if one.tree == tree and one.stage is TakeoverStage.FAILED}
        spare_trees = job.site.trees.spare_trees
        others = [other for other in others if not self._trouble(job, other, new=other in spare_trees)]
        others = [other for other in others if other not in failed]
        others.sort(key=lambda other: (other in spare_trees, sum(one.via == other for one in job.takeovers)))
        problem = "no other tree of switches can have them"
        for via in others:
            try:
                takeover = self._registry.take_over(job, tree, via, now, why)
            except (PoolFull, NumbersExhausted) as error:
                problem = str(error)
                continue
            job.lost_trees.add(tree)
            self._lifecycle.add(Keep(job, takeover))
            return True
        if job.not_taken_over != problem:
            job.not_taken_over = problem
            log.warning("job %r: the slots of %s stay there: %s (%s)", job.name, _name(job, tree), problem, why)
        if before is not None and before.stage is TakeoverStage.FAILED:
            self._lifecycle.end(job, pb.SWITCH_LOST, f"{why}, and {problem}")
        return False

    def _suspend(self, takeover: Takeover, members: Iterable[Member]) -> None:
        suspend = pb.Suspend(aggregator=takeover.tree, number=takeover.number)
        for member in members:
            self._lifecycle.tell(member.session, pb.ServerMessage(suspend=suspend))

    def _resume(self, takeover: Takeover, member: Member) -> None:
        first, *more = [number << 16 | generation for number, generation in takeover.jobs]
        resume = pb.Resume(
            aggregator=takeover.tree,
            number=takeover.number,
            via=takeover.via,
            job=first,
            more_jobs=more,
            rounds=takeover.rounds.least,
        )
        self._lifecycle.tell(member.session, pb.ServerMessage(resume=resume))


def _slots_at(job: Job, tree: int) -> list[int]:
    """Return how many of the job's slots are at that tree, for each thread."""
    each = [slots_of(thread, job.slots, job.threads) for thread in range(job.threads)]
    return [len(range(tree, count, job.site.stripes)) for count in each]


def _departed(job: Job) -> list[Member]:
    """Return the ranks that have left and cannot send their packets again."""
    return [one for one in _workers(job) if one.leaving and not one.lingers]


def _workers(job: Job) -> list[Member]:
    return [job.members[rank] for rank in job.workers]


def _name(job: Job, tree: int) -> str:
    return job.site.trees.names[job.site.trees.roots[tree]]
