# SPDX-License-Identifier: Apache-2.0
"""What time does to jobs, without a clock: who is over time, and whom ranks wait for."""

from __future__ import annotations

from collections.abc import Sequence

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.job import Job, Member, State, list_ranks
from p4reduce_controller.placement import Site

DEFAULT_LEASE = 5.0
LONGEST_LEASE = 3600.0
LEAVE_GRACE = 2.0  # from the first rank's leaving until all must have left
LEASES_TO_RETURN = 2  # that ranks have to come back to a controller that was restarted


def overdue(job: Job, site: Site, now: float) -> pb.Abort | None:
    """Why the job is over, where something in it is over time."""
    patience = LEASES_TO_RETURN * job.lease
    if gone := [member.rank for member in job.away if now - member.last_sign > patience]:
        text = f"did not come back within {patience:g} s after the controller was restarted"
        return job.blame(gone, pb.LEASE_EXPIRED, text)
    seated = [member for member in job.members.values() if member.session is not None]
    if silent := [member for member in seated if not member.leaving and now - member.last_sign > job.lease]:
        age = max(now - member.last_sign for member in silent)
        text = f"gave no sign of life for {age:.1f} s, and the lease is {job.lease:g} s"
        return job.blame([member.rank for member in silent], pb.LEASE_EXPIRED, text)
    if job.state is State.GATHERING and now >= job.deadline:
        return _gathered_too_long(job, site, now)
    if job.leave_deadline is not None and now >= job.leave_deadline and not job.away:
        leavers = [rank for rank, member in job.members.items() if member.leaving]
        return job.blame(leavers, pb.LEFT_EARLY, "left while other ranks stayed")
    return None


def awaited(job: Job, site: Site) -> tuple[pb.Waiting, Sequence[Member]] | None:
    """What is waited for, and by whom."""
    everyone = list(job.members.values())
    if job.state is State.GATHERING:
        what = pb.Waiting.JOIN if job.absent else pb.Waiting.HELLO
        unheard = job.without(lambda member: site.heard_everywhere(member.heard))
        return pb.Waiting(what=what, ranks=job.absent or unheard), everyone
    if job.state is State.INSTALLING:
        return pb.Waiting(what=pb.Waiting.SWITCH), everyone
    if job.leave_deadline is not None:
        staying = job.without(lambda member: member.leaving)
        return pb.Waiting(what=pb.Waiting.LEAVE, ranks=staying), [one for one in everyone if one.leaving]
    return None


def _gathered_too_long(job: Job, site: Site, now: float) -> pb.Abort:
    absent = job.absent
    blamed = absent or job.without(lambda member: site.heard_everywhere(member.heard))
    if absent:
        text = f"{list_ranks(absent)} of {job.world_size} did not join"
    else:
        text = "; ".join(filter(None, (_unheard_in(job, site, tree) for tree in range(len(site.trees.roots)))))
    abort = pb.Abort(reason=pb.JOIN_TIMEOUT, message=f"job {job.name!r}: after {now - job.started:.1f} s, {text}")
    if len(blamed) == 1:
        abort.rank = blamed[0]
    return abort


def _unheard_in(job: Job, site: Site, tree: int) -> str:
    unheard = job.without(lambda member: bool(site.trees.among(list(member.heard), tree)))
    if not unheard:
        return ""
    switches = site.trees.among(range(len(site.addresses)), tree)
    where = " or ".join(str(site.addresses[switch]) for switch in switches)
    return (
        f"{list_ranks(unheard)} joined, but no HELLO from there reached the switch at {where}; "
        "check the address, the route and the switch's ports"
    )
