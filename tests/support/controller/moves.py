# SPDX-License-Identifier: Apache-2.0
"""A desk where slots of running jobs move."""

from __future__ import annotations

from typing import Any

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.job import Job
from p4reduce_controller.jobs.reports import Reports
from tests.support.controller.desks import Desk


class Hall(Desk):
    """With jobs of two ranks a, b and c, of 4 slots each in a row of 16, of which b ends: so 8 slots are free, and no 5
    in a row."""

    def __init__(self, jobs: str = "abc", holds: bool = True) -> None:
        super().__init__(slots=16)
        self.sessions = {name: self.begin(name, 4, holds=holds) for name in jobs}
        for session in self.sessions.get("b", []):
            self.jobs.leave(session, self.now)
        self.carry_out()
        self.removed()

    def begin(self, name: str, slots: int, **options: Any) -> list[object]:
        sessions = [self.join(rank, 2, name, slots=slots, **options) for rank in range(2)]
        for session in sessions:
            self.hear(session)
        self.installed()
        return sessions

    def job(self, name: str) -> Job:
        job = self.jobs.named(name)
        assert job is not None
        return job

    def queue(self, slots: int, name: str = "d") -> object:
        session = self.join(0, 1, name, slots=slots, queue_s=1000.0)
        assert self.kinds(session) == []
        return session

    def hold(self, name: str, operations: int, *, rank: int, quiet: bool = True, first_seq: int = 100) -> None:
        session = self.sessions[name][rank]
        [number] = [one.hold.number for one in self.told[session] if one.HasField("hold")][-1:]
        held = pb.Held(operations=operations, quiet=quiet, first_seq=first_seq, number=number)
        self.jobs.held(session, held, self.now)
        self.carry_out()

    def asked(self, name: str) -> list[list[int]]:
        """What each rank was asked to begin."""
        return [
            [message.hold.operations for message in self.told[session] if message.HasField("hold")]
            for session in self.sessions[name]
        ]

    def released(self, name: str) -> list[list[tuple[int, int]]]:
        return [
            [(one.release.slots, one.release.first_seq) for one in self.told[session] if one.HasField("release")]
            for session in self.sessions[name]
        ]

    def moved(self) -> Job:
        [job] = self.changes
        self.changes.clear()
        self.jobs.moved(job, self.now)
        self.carry_out()
        return job


def report(hall: Hall, name: str, slots: int, times: int = 5) -> None:
    job = hall.job(name)
    for _ in range(times):
        for member in job.members.values():
            Reports().take(job, member, pb.Report(operations=1, most_slots=slots), hall.now)
