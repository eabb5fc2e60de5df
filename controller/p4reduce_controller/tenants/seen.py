# SPDX-License-Identifier: Apache-2.0
"""What of a status a caller may see."""

from __future__ import annotations

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.tenants.access import Caller


def seen_by(caller: Caller, status: pb.StatusReply) -> pb.StatusReply:
    """Of jobs, the queue and tenants its own; numbers of all jobs only for operators, and viewers of all."""
    if caller.sees_all:
        return status
    seen = pb.StatusReply(switches=status.switches, time_s=status.time_s)
    seen.jobs.extend(job for job in status.jobs if caller.sees(job.tenant))
    seen.queue.extend(one for one in status.queue if caller.sees(one.tenant))
    seen.tenants.extend(one for one in status.tenants if caller.sees(one.name))
    for place, switch in enumerate(seen.switches):
        del switch.jobs[:]
        switch.jobs.extend(job.name for job in seen.jobs if any(pool.switch == place for pool in job.pools))
    return seen
