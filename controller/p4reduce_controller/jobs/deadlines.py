# SPDX-License-Identifier: Apache-2.0
"""Timeouts of jobs: which job is overdue, and which ranks the others wait for. The caller passes the time."""

from __future__ import annotations

from collections.abc import Sequence

from p4reduce.control import jobs_pb2 as pb
from p4reduce.errors import list_ranks
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


def awaited(job: Job, site: Site) -> tuple[pb.Waiting, Sequence[Member]] | None:
    """Return what the job waits for, and the members that wait; None if it waits for nothing."""
    everyone = list(job.members.values())
    if job.state is State.GATHERING:
        what = pb.Waiting.JOIN if job.absent else pb.Waiting.HELLO
        unheard = job.ranks_not_meeting(lambda member: site.heard_everywhere(member.heard))
        return pb.Waiting(what=what, ranks=job.absent or unheard), everyone
    if job.state is State.INSTALLING:
        return pb.Waiting(what=pb.Waiting.SWITCH), everyone
    if job.leave_deadline is not None:
        staying = job.ranks_not_meeting(lambda member: member.leaving)
        return pb.Waiting(what=pb.Waiting.LEAVE, ranks=staying), [one for one in everyone if one.leaving]
    return None


def _gathered_too_long(job: Job, site: Site, now: float) -> pb.Abort:
    absent = job.absent
    blamed = absent or job.ranks_not_meeting(lambda member: site.heard_everywhere(member.heard))
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
    unheard = job.ranks_not_meeting(lambda member: bool(site.trees.among(list(member.heard), tree)))
    if not unheard:
        return ""
    indices = site.trees.among(range(len(site.addresses)), tree)
    where = " or ".join(str(site.addresses[at]) for at in indices)
    return (
        f"{list_ranks(unheard)} joined, but no HELLO from there reached the switch at {where}; compare that address "
        "and UDP port with the switch's own (the controller has them from --address); check the route, firewalls for "
        "that port, and the switch's ports"
    )
