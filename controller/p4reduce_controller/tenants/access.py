# SPDX-License-Identifier: Apache-2.0
"""Who calls, and what that caller may see and end."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from p4reduce.control import jobs_pb2 as pb

LONGEST_NAME = 200  # characters, of a user, a tenant, a job or a switch


class Role(IntEnum):
    """Each may what those before it may."""

    VIEWER = 0  # look
    USER = 1  # have jobs, and end those of its tenant
    OPERATOR = 2  # everything, with everybody's jobs

    @classmethod
    def named(cls, name: object) -> Role:
        """Raise ValueError."""
        for role in cls:
            if role.name.lower() == name:
                return role
        raise ValueError(f"role {name!r}: must be one of {', '.join(role.name.lower() for role in cls)}")


# By the name of a service's method. What is not here is the operator's.
METHODS = {"Session": Role.USER, "Status": Role.VIEWER, "AbortJob": Role.USER, "Slots": Role.USER}


@dataclass(frozen=True)
class Caller:
    """`tenant`: whose its jobs are; several callers may have one. A viewer without a tenant sees those of all.

    `expired`: its token was valid and is no longer, which is enough to come back to a seat, and for nothing else.
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


ANYONE = Caller("", Role.OPERATOR, "")  # where the controller has no users


class Unauthenticated(Exception):
    """The caller is nobody that is known; the message says why, and has nothing of the token."""


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
