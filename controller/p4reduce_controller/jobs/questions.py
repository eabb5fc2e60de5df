# SPDX-License-Identifier: Apache-2.0
"""Questions of ranks that get no answer: the switches are asked what they hold, and all ranks of the job are told."""

from __future__ import annotations

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.effects import Look
from p4reduce_controller.jobs.job import Job, Member, State
from p4reduce_controller.jobs.lifecycle import Lifecycle
from p4reduce_controller.jobs.switches import Switches


class Questions:
    """The questions of ranks about slot halves.

    At most one question per rank is stored, and one query per job is in flight. This bounds the load on the switches.
    """

    def __init__(self, switches: Switches, lifecycle: Lifecycle) -> None:
        self._switches = switches
        self._lifecycle = lifecycle
        self._looked: tuple[object, list[str]] = None, []

    def ask(self, job: Job, member: Member, half: int) -> None:
        if job.state is State.READY and half < 2 * job.slots:
            if away := self._away(job):
                notice = pb.Waiting(what=pb.Waiting.AWAY, why="; ".join(away))
                self._lifecycle.tell(member.session, pb.ServerMessage(waiting=notice))
            job.unanswered.setdefault(member.rank, half)
            self._look(job)

    def _away(self, job: Job) -> list[str]:
        """Return why switches of the job are unavailable. All of its ranks may ask at once, so that time counts."""
        key = job.number, job.generation, self._lifecycle.now
        if self._looked[0] != key:
            nodes = sorted({*job.ranges} & {*range(job.site.nodes)})
            self._looked = key, self._switches.unavailable(job.site, nodes)
        return self._looked[1]

    def answer(self, job: Job, half: int, found: pb.Counted | None) -> None:
        """Handle what the switches hold in that half; `found` is None if they did not say."""
        job.looking = False
        job.unanswered = {rank: other for rank, other in job.unanswered.items() if other != half}
        if found is not None:
            job.uncounted = sorted(set(job.workers) - set(found.ranks)), self._lifecycle.now
        if job.state is State.READY:
            counted = pb.ServerMessage(counted=found)
            for member in job.members.values() if found is not None else ():
                self._lifecycle.tell(member.session, counted)
            self._look(job)

    def _look(self, job: Job) -> None:
        if job.unanswered and not job.looking:
            job.looking = True
            self._lifecycle.add(Look(job, next(iter(job.unanswered.values()))))
