# SPDX-License-Identifier: Apache-2.0
"""The caller of the service, and what it may see and end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from p4reduce.control import jobs_pb2 as pb

LONGEST_NAME = 200  # characters, for a user, a tenant, a job or a switch


class Role(IntEnum):
    """A role. Each includes the rights of the roles before it."""

    VIEWER = 0  # look
    USER = 1  # start jobs, and end those of its tenant
    OPERATOR = 2  # everything, with all jobs

    @classmethod
    def named(cls, name: object) -> Role:
        """Return the role of that name. Raise ValueError if there is none."""
        for role in cls:
            if role.name.lower() == name:
                return role
        raise ValueError(f"role {name!r}: must be one of {', '.join(role.name.lower() for role in cls)}")


# The role that each of the service's methods requires. All other methods require an operator.
METHODS = {"Session": Role.USER, "Status": Role.VIEWER, "AbortJob": Role.USER, "Slots": Role.USER}


@dataclass(frozen=True)
class Caller:
    """A caller. Its jobs belong to `tenant`, which several callers may share.

    A viewer without a tenant sees the jobs of all tenants.

    `expired`: the token was valid once. That suffices to rejoin a job, and for nothing else.
    """

    name: str
    role: Role
    tenant: str
    expired: bool = False

    @property
    def sees_all(self) -> bool:
        return self.role is Role.OPERATOR or (self.role is Role.VIEWER and not self.tenant)

    def sees(self, tenant: str) -> bool:
        return self.sees_all or tenant == self.tenant

    def ends(self, tenant: str) -> bool:
        return self.role is Role.OPERATOR or (self.role is Role.USER and tenant == self.tenant)


ANYONE = Caller("", Role.OPERATOR, "")  # the caller if the controller has no users


class Unauthenticated(Exception):
    """An error: the caller is unknown. The message says why, and contains nothing of the token."""


def seen_by(caller: Caller, status: pb.StatusReply) -> pb.StatusReply:
    """Return the part of the status that the caller may see.

    It contains the jobs, queue entries and tenants that the caller sees. Only callers who see all tenants get the
    totals.
    """
    if caller.sees_all:
        return status
    seen = pb.StatusReply(switches=status.switches, time_s=status.time_s)
    seen.jobs.extend(job for job in status.jobs if caller.sees(job.tenant))
    seen.queue.extend(one for one in status.queue if caller.sees(one.tenant))
    seen.tenants.extend(one for one in status.tenants if caller.sees(one.name))
    for position, switch in enumerate(seen.switches):
        del switch.jobs[:]
        switch.jobs.extend(job.name for job in seen.jobs if any(pool.switch == position for pool in job.pools))
    return seen
