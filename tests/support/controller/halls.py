# SPDX-License-Identifier: Apache-2.0
"""Tenants' jobs in one room, without I/O."""

from __future__ import annotations

from typing import Any

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.jobs.lifecycle import JobOptions
from p4reduce_controller.jobs.tenancy import Tenancy
from p4reduce_controller.tenants.access import Caller, Role
from p4reduce_controller.tenants.quotas import Policy
from tests.support.controller.desks import Desk

ALICE, BOB, CAROL = (Caller(name, Role.USER, name) for name in ("alice", "bob", "carol"))
MONTH = 1_800_000_000.0  # in the middle of January 2027


class Hall(Desk):
    """A desk where callers have quotas. A session is (tenant, job's name, rank, which attempt)."""

    def __init__(self, policy: Policy | None = None, slots: int = 16, returns: bool = False) -> None:
        super().__init__(slots)
        self.tenancy = Tenancy(policy, lambda: MONTH + self.now)
        self.come_so_far = 0
        self.jobs = Jobs(self.switches, JobOptions(returns=returns), tenancy=self.tenancy)

    def come(self, caller: Caller, name: str = "job", rank: int = 0, world_size: int = 1, **options: Any) -> object:
        self.come_so_far += 1
        session = (caller.tenant, name, rank, self.come_so_far)
        join = pb.Join(job=name, rank=rank, world_size=world_size, **options)
        self.jobs.join(session, join, self.now, caller)
        self.carry_out()
        return session

    def begin(self, caller: Caller, name: str = "job", **options: Any) -> object:
        """A job of one rank that is ready."""
        session = self.come(caller, name, **options)
        self.hear(session)
        self.installed()
        assert self.kinds(session)[-1] == "ready", self.told[session]
        return session

    def leave(self, session: object) -> None:
        self.jobs.leave(session, self.now)
        self.carry_out()
        self.removed()

    def place(self, session: object) -> int:
        """In the queue, as it was told last."""
        waiting = self.told[session][-1].waiting
        assert waiting.what == pb.Waiting.QUEUE
        return waiting.place

    def status(self) -> pb.StatusReply:
        jobs = [pb.Job(name=job.name, tenant=job.tenant) for job in self.jobs]
        return pb.StatusReply(
            jobs=jobs, queue=self.jobs.queue.described(self.now), tenants=self.jobs.tenants(), joins=9
        )
