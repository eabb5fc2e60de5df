# SPDX-License-Identifier: Apache-2.0
"""Who owns the rollouts: one for each job that holds slots of a switch, each in a task of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.base.tasks import Tasks
from p4reduce_controller.fabric.rollout import Progress, Rollout, Stage
from p4reduce_controller.jobs.job import Job
from p4reduce_controller.observability.logs import logging_about
from p4reduce_controller.observability.tracing import Traces
from p4reduce_controller.switches.aggregator import Aggregator

CLOSE_TIMEOUT = 3.0


class Supervisor:
    """Nothing that happens to a stream of a rank reaches a rollout: it ends when its job is off the switches."""

    def __init__(self, switches: Mapping[int, Aggregator], progress: Progress, tasks: Tasks, traces: Traces) -> None:
        """`tasks`: where the rollouts run."""
        self._traces = traces
        self.stopping = asyncio.Event()
        self._switches = switches
        self._progress = progress
        self._tasks = tasks
        self._rollouts: dict[int, tuple[Rollout, asyncio.Task[None]]] = {}  # by the number of the job

    def install(self, job: Job) -> None:
        self._start(job, Stage.INSTALLING)

    def resume(self, job: Job) -> None:
        """A job that an earlier controller has installed."""
        self._start(job, Stage.INSTALLED)

    def move(self, job: Job) -> None:
        """It has other slots now. Does nothing where it is off the switches, and its number another's."""
        rollout, _ = self._rollouts.get(job.number, (None, None))
        if rollout is not None and rollout.job is job:
            rollout.move()

    def remove(self, job: Job, abort: pb.Abort | None) -> None:
        """Does nothing where the rollout has failed, which ends the service."""
        if job.number in self._rollouts:
            rollout, _ = self._rollouts[job.number]
            rollout.remove(abort)

    def stop(self) -> None:
        """The controller ends: switches that are away are not waited for any more."""
        self.stopping.set()

    async def settle(self) -> None:
        """After `stop`: gives the jobs that are over a while to be taken off."""
        ending = [task for rollout, task in self._rollouts.values() if rollout.ending]
        if ending:
            await asyncio.wait(ending, timeout=CLOSE_TIMEOUT)

    def _start(self, job: Job, stage: Stage) -> None:
        rollout = Rollout(job, self._switches, self._progress, self.stopping, stage, self._traces)
        task = self._tasks.start(self._run(job.number, rollout), f"job {job.number}.{job.generation}")
        self._rollouts[job.number] = (rollout, task)

    async def _run(self, number: int, rollout: Rollout) -> None:
        try:
            with logging_about(rollout.job):
                await rollout.run()
        finally:
            del self._rollouts[number]
