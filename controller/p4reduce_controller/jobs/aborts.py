# SPDX-License-Identifier: Apache-2.0
"""Why jobs have ended, for ranks that come back to them later."""

from __future__ import annotations

import math

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.deadlines import LONGEST_REJOIN_TIME
from p4reduce_controller.jobs.job import Job
from p4reduce_controller.tenants.access import Caller

MOST = 1024
KEPT = LONGEST_REJOIN_TIME  # seconds, and at most twice as long


class Aborts:
    """The latest of each job number."""

    def __init__(self) -> None:
        self._lately: dict[int, tuple[int, str, pb.Abort]] = {}  # with its generation and tenant
        self._before: dict[int, tuple[int, str, pb.Abort]] = {}
        self._ages_at = -math.inf

    def add(self, job: Job, abort: pb.Abort) -> None:
        self._lately.pop(job.number, None)
        self._lately[job.number] = (job.generation, job.tenant, abort)
        if len(self._lately) > MOST:
            del self._lately[next(iter(self._lately))]

    def of(self, number: int, generation: int, caller: Caller) -> pb.Abort | None:
        """Why this job has ended, if that is still known, and the caller may know it."""
        for aborts in (self._lately, self._before):
            known, tenant, abort = aborts.get(number, (None, "", None))
            if known == generation and (not tenant or caller.ends(tenant)):
                return abort
        return None

    def age(self, now: float) -> None:
        if now >= self._ages_at:
            self._before, self._lately = self._lately, {}
            self._ages_at = now + KEPT
