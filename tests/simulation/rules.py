# SPDX-License-Identifier: Apache-2.0
"""The rules for jobs, whatever happens: every wait ends, nothing ends without a cause, and the cause is named.

| fault | what it may end |
|---|---|
| a rank is killed or fails | its own job, in which every other rank's error names it |
| a rank cannot reach the controllers for longer than the lease | its own job |
| a controller without a store is killed | every job |
| controllers that keep jobs are away for longer than ranks may rejoin | every job |
| a rank cannot reach a switch | jobs of which a rank is only joining |
| a switch is restarted | every job, unless the slots of its ranks can go on at another root |
| an operator ends a job | that job |
| anything else | jobs that are only joining |

If several faults come together, any job may end.
"""

from __future__ import annotations

from p4reduce.errors import JobAborted, SlotsExhausted
from tests.simulation.program import SLOTS
from tests.simulation.rank import Rank
from tests.simulation.site import LEASE, REJOIN, Fault, Job, Site
from tests.simulation.variations import QUOTAS
from tests.simulation.world import Violation

LONGEST_WAIT = 75.0  # seconds without a fault until every wait must have ended; a join waits for 30 s at most
LOOK_INTERVAL = 0.5
AFTERMATH = 15.0  # seconds for which a fault may have consequences
SHORT = 4.0  # seconds: controllers that are away for so long are always back in time


class Rules:
    """The rules for the jobs of one site."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._waits: dict[str, tuple[str, float]] = {}  # for each rank its stage, and the quiet seconds in it
        site.world.after(LOOK_INTERVAL, self._look)

    def begin_last(self) -> None:
        """Judge what has ended, and forget the faults so far: whatever comes now must succeed."""
        self._judge_all()
        self.site.faults.clear()

    def _look(self) -> None:
        self.site.check_slots()
        self._judge_all()
        self.site.world.after(LOOK_INTERVAL, self._look)

    def _judge_all(self) -> None:
        for job in self.site.jobs:
            for rank in job.ranks:
                if rank.lives:
                    self._count(rank)
                elif rank.outcome and rank.rank not in job.judged:
                    job.judged.add(rank.rank)
                    self._judge(job, rank)

    def _count(self, rank: Rank) -> None:
        stage, waited = self._waits.get(rank.name, ("", 0.0))
        if stage != rank.stage:
            waited = 0.0
        waited += LOOK_INTERVAL * (self.site.quiet and rank.stage != "computing" and not rank.process.paused)
        self._waits[rank.name] = rank.stage, waited
        if waited > LONGEST_WAIT + max(rank.plan.pauses) + (rank.plan.queue if rank.stage == "joining" else 0.0):
            raise Violation(f"{rank.name} has been {rank.stage} for {waited:g} s without a fault")

    def _judge(self, job: Job, rank: Rank) -> None:
        error = rank.error
        # A job cannot wait for slots of leaves: which of them it needs is known only when its ranks were heard. Jobs of
        # a tenant wait for each other, perhaps for longer than they may.
        may_lack_slots = self.site.leaves or self.site.has_tenants or not rank.plan.queue
        if self.site.has_tenants and rank.plan.slots > QUOTAS[rank.plan.tenant].get("slots", SLOTS):
            if error is None:
                raise Violation(f"{rank.name} has left well, with more slots than the quota of {rank.plan.tenant}")
            return
        if error is None or (isinstance(error, SlotsExhausted) and may_lack_slots):
            return
        causes = [fault for fault in self.site.faults if self._reaches(fault, job)]
        if not causes:
            raise Violation(f"{rank.name} failed without a fault: {error!r}")
        if all(fault.kind.startswith("rank:") for fault in causes):
            self._judge_named(causes, job, rank, error)
        if len(causes) > 1 or rank.stage == "joining":
            return  # faults may add up
        self._judge_single(causes[0], job, rank, error)

    def _reaches(self, fault: Fault, job: Job) -> bool:
        """Whether the fault comes while the job lives, or shortly before, and has to do with it."""
        if fault.end + AFTERMATH < job.begun:
            return False
        mine = {rank.name for rank in job.ranks} | {rank.process.host for rank in job.ranks}
        return not fault.kind.startswith("rank:") or bool(mine & set(fault.subjects))

    def _judge_named(self, causes: list[Fault], job: Job, rank: Rank, error: BaseException) -> None:
        """Check that an error names only a rank that was struck."""
        named = getattr(error, "rank", None)
        if isinstance(error, JobAborted) and named is not None:
            struck = {subject for fault in causes for subject in fault.subjects}
            if not struck & {job.ranks[named].name, job.ranks[named].process.host}:
                raise Violation(f"{rank.name} names rank {named}, which nothing has struck: {error!r}")

    def _judge_single(self, fault: Fault, job: Job, rank: Rank, error: BaseException) -> None:
        lasted = min(fault.end, self.site.world.now) - fault.begin
        kept = self.site.kind != "plain"
        if fault.kind in ("rank: kill", "rank: failure"):
            guilty = next(one for one in job.ranks if one.name in fault.subjects)
            named = getattr(error, "rank", None)
            if rank is not guilty and (not isinstance(error, JobAborted) or named != guilty.rank):
                raise Violation(f"{fault}, but {rank.name} says: {error!r}")
            return
        ends = {
            "rank: cut off from controllers": lasted >= LEASE - 1,
            "controller: kill": not kept or lasted > SHORT,
            "controller: power": not kept or lasted > SHORT,
            "controller: stop": not kept or lasted > SHORT,
            "controller: cut off from etcd": lasted > REJOIN - SHORT,
            "switch: restart": not self._can_fail_over(fault.subjects[0], job),
            "rank: cut off from a switch": any(one.stage == "joining" for one in job.ranks),
            "rank: ended by an operator": True,
        }
        if not ends.get(fault.kind, False):
            raise Violation(f"{rank.name} failed while {rank.stage}, although {fault} may not end it: {error!r}")

    def _can_fail_over(self, switch: str, job: Job) -> bool:
        """Whether the job, which has the site for itself, must go on without the switch.

        This needs a second root, with room for the lost slots there and at leaves, and ranks that all still add.
        """
        roots = [root.name for root in self.site.roots]
        spares = [root.name for root in self.site.spares]
        share = -(-job.plan.slots // (len(roots) - len(spares)))  # slots of one tree
        if switch in spares:
            return len(self.site.jobs) == 1  # no slots were there
        return (
            switch in roots
            and len(roots) > 1
            and len(self.site.jobs) == 1
            and all(rank.stage.startswith(("computing", "in allreduce")) for rank in job.ranks)
            and share * (len(roots) + 1 if self.site.leaves else 2) <= SLOTS
        )
