# SPDX-License-Identifier: Apache-2.0
"""Timeouts of jobs: which job is overdue, and which ranks the others wait for. The caller passes the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from p4reduce.control import jobs_pb2 as pb
from p4reduce.errors import MOST_RANKS_NAMED, list_ranks
from p4reduce_controller.jobs.job import Job, Member, State
from p4reduce_controller.switches.site import Site

REJOIN_TIME = 10.0  # seconds that ranks have to come back to a restarted controller
LONGEST_REJOIN_TIME = 3600.0
LEAVE_GRACE = 30.0  # seconds from the first rank's Leave until all must have left, even the slow ones


def overdue(job: Job, site: Site, now: float) -> pb.Abort | None:
    """Return why the job must end now because a time limit has passed; None if none has."""
    if gone := [member.rank for member in job.away if now - member.away_since > job.rejoin_time]:
        text = f"did not come back within {job.rejoin_time:g} s after the controller was restarted"
        return job.blame(gone, pb.DID_NOT_RETURN, text)
    if job.state is State.GATHERING and now >= job.deadline:
        return _gathered_too_long(job, site, now)
    if job.leave_deadline is not None and now >= job.leave_deadline and not job.away:
        leavers = [rank for rank, member in job.members.items() if member.leaving]
        return job.blame(leavers, pb.LEFT_EARLY, "left while other ranks stayed")
    return None


@dataclass(frozen=True)
class Awaited:
    """An event that a job waits for, the ranks that have not had it, and the members that wait."""

    what: pb.Waiting.For
    ranks: Sequence[int]
    waiting: Sequence[Member]

    def notices(self) -> tuple[pb.Waiting, pb.Waiting]:
        """Return the message to members that are not among the ranks, and to those that are."""
        named, more = self.ranks[:MOST_RANKS_NAMED], max(0, len(self.ranks) - MOST_RANKS_NAMED)
        others, themselves = (pb.Waiting(what=self.what, ranks=named, more=more, you=you) for you in (False, True))
        return others, themselves


def awaited(job: Job) -> Awaited | None:
    """Return what the job waits for; None if it waits for nothing."""
    everyone = list(job.members.values())
    if job.state is State.GATHERING:
        absent = job.absent
        return Awaited(pb.Waiting.JOIN if absent else pb.Waiting.HELLO, absent or sorted(job.unheard), everyone)
    if job.state is State.INSTALLING:
        return Awaited(pb.Waiting.SWITCH, (), everyone)
    if job.leave_deadline is not None:
        staying = [one.rank for one in everyone if not one.leaving]
        return Awaited(pb.Waiting.LEAVE, sorted(staying), [one for one in everyone if one.leaving])
    return None


def _gathered_too_long(job: Job, site: Site, now: float) -> pb.Abort:
    absent = job.absent
    blamed = absent or sorted(job.unheard)
    if absent:
        text = f"{list_ranks(absent)} of {job.world_size} did not join"
    else:
        texts = (_unheard_in(job, site, tree) for tree in range(len(site.trees.roots)))
        text = "; ".join(dict.fromkeys(filter(None, texts)))
    abort = pb.Abort(reason=pb.JOIN_TIMEOUT, message=f"job {job.name!r}: after {now - job.started:.1f} s, {text}")
    if len(blamed) == 1:
        abort.rank = blamed[0]
    return abort


def _unheard_in(job: Job, site: Site, tree: int) -> str:
    members = job.members.values()
    unheard = [one.rank for one in members if not site.trees.among(list(one.heard), tree)]
    if not unheard:
        return ""
    indices = site.trees.among(range(len(site.addresses)), tree)
    where = " or ".join(str(site.addresses[at]) for at in indices)
    return (
        f"{list_ranks(unheard)} joined, but no HELLO from there reached the switch at {where}; compare that address "
        "and UDP port with the switch's own (the controller has them from --address); check the route, firewalls for "
        "that port, and the switch's ports"
    )
