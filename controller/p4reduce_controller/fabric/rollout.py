# SPDX-License-Identifier: Apache-2.0
"""The rollout of a job on its switches: installation, moves to other slots, and removal, one after the other.

installing --all switches have it--> installed <--> moving --remove--> removing --no switch has it--> removed
  \\--a switch fails--> failed --------------------------/ /  \\--the controller ends--> abandoned
  \\--removed meanwhile-----------------------------------/
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.base.clock import with_timeout
from p4reduce_controller.base.tasks import Interrupted, Tasks, first_of, isolate_cancellation
from p4reduce_controller.jobs.job import Job, Takeover, TakeoverStage
from p4reduce_controller.observability.logs import logging_about
from p4reduce_controller.observability.tracing import Traces
from p4reduce_controller.p4runtime.resets import time_for
from p4reduce_controller.switches.aggregator import Aggregator, Placement, SwitchError, SwitchUnavailable

log = logging.getLogger(__name__)

CONNECT_WAIT = 30.0  # seconds for a switch that is away when a job is to be installed
TAKEOVER_WAIT = 1.0  # the same for a takeover
STEP_TIMEOUT = 60.0  # at least, for one step at one switch, which may wait for steps of other jobs; RESETs have more
RETRY_INTERVAL = 0.5  # seconds until a step that has failed is tried again


class Stage(Enum):
    """The stages of a rollout; `NEXT` has the transitions."""

    INSTALLING = "installing"
    INSTALLED = "installed"
    MOVING = "moving"  # some switches may have the job in its former slots
    FAILED = "failed"  # some switches may have some of its entries
    REMOVING = "removing"
    REMOVED = "removed"
    ABANDONED = "abandoned"  # a switch that is away may still have it


NEXT: dict[Stage, frozenset[Stage]] = {
    Stage.INSTALLING: frozenset({Stage.INSTALLED, Stage.FAILED, Stage.REMOVING}),
    Stage.INSTALLED: frozenset({Stage.MOVING, Stage.REMOVING}),
    Stage.MOVING: frozenset({Stage.INSTALLED, Stage.REMOVING}),
    Stage.FAILED: frozenset({Stage.REMOVING}),
    Stage.REMOVING: frozenset({Stage.REMOVED, Stage.ABANDONED}),
    Stage.REMOVED: frozenset(),
    Stage.ABANDONED: frozenset(),
}


class Progress(Protocol):
    """Callbacks of a rollout.

    Each but `moved` and `taken_over` is called at most once, and none but `freed` after `remove`.
    """

    def installed(self, job: Job) -> None: ...

    def failed(self, job: Job, why: str) -> None:
        """Handle a failed installation. The job has to be removed."""

    def moved(self, job: Job) -> None:
        """Handle that every switch has the job in its present slots.

        Called once for each `move`, and not after `remove`.
        """

    def taken_over(self, job: Job, takeover: Takeover, problem: str) -> None:
        """Handle that the switches have the slots of a lost tree, or the problem with that."""

    def freed(self, job: Job) -> None:
        """Handle that no switch has anything of the job any more."""


@dataclass(eq=False, repr=False)
class Rollout:
    """The rollout of one job. `run` is its life, and raises only what `progress` raises, whatever the switches do.

    `stopping`: once it is set, switches that are away are not waited for.
    """

    job: Job
    switches: Mapping[int, Aggregator]
    progress: Progress
    stopping: asyncio.Event
    stage: Stage = Stage.INSTALLING
    traces: Traces = field(default_factory=Traces)
    _ending: asyncio.Event = field(default_factory=asyncio.Event)
    _moving: asyncio.Event = field(default_factory=asyncio.Event)
    _takeovers: deque[Takeover] = field(default_factory=deque)
    _taking_over: asyncio.Event = field(default_factory=asyncio.Event)
    _abort: pb.Abort | None = None

    @property
    def ending(self) -> bool:
        """Whether the job is to be taken off."""
        return self._ending.is_set()

    def remove(self, abort: pb.Abort | None) -> None:
        """Take the job off, because it has ended.

        An installation under way is completed first, since a switch may carry out even a write that was cancelled here.
        """
        self._abort = abort
        self._ending.set()

    def move(self) -> None:
        """Put the job in its new slots on every switch, and reset them. No rank may use any slot before `moved`.

        It is called again if a switch has lost the job meanwhile.
        """
        self._moving.set()

    def take_over(self, takeover: Takeover) -> None:
        """Put the slots of a lost tree on the switches of another one, and reset them."""
        self._takeovers.append(takeover)
        self._taking_over.set()

    async def run(self) -> None:
        if self.stage is Stage.INSTALLING:
            await self._install()
        while not self.ending:
            await first_of(self._ending.wait(), self._moving.wait(), self._taking_over.wait())
            if self._moving.is_set() and not self.ending:
                await self._move()
            while self._takeovers and not self.ending:
                await self._take_over(self._takeovers.popleft())
            self._taking_over.clear()
        self._enter(Stage.REMOVING)
        forgotten = await asyncio.gather(*[self._remove_from(*one) for one in self._placements()])
        if all(forgotten):
            self._enter(Stage.REMOVED)
            self.progress.freed(self.job)
        else:
            self._enter(Stage.ABANDONED)

    def _enter(self, stage: Stage) -> None:
        if stage not in NEXT[self.stage]:
            raise RuntimeError(f"job {self.job.name!r} is {self.stage.value}, and cannot become {stage.value}")
        self.stage = stage

    def _placements(self) -> list[tuple[Aggregator, Placement]]:
        """Return what each switch that may have something of the job is told."""
        written = (TakeoverStage.INSTALLING, TakeoverStage.DONE, TakeoverStage.FAILED)
        takeovers = [one.placements for one in self.job.takeovers if one.stage in written]
        return [one for placements in (self.job.placements, *takeovers) for one in self._each(placements)]

    def _each(self, placements: Mapping[int, Placement]) -> list[tuple[Aggregator, Placement]]:
        number = self.job.site.number
        return [(self.switches[number(at)], placement) for at, placement in placements.items()]

    # Installation.

    async def _install(self) -> None:
        """Install on all switches at once. Wait for all, so that none is written to after the job has failed."""
        problems = await asyncio.gather(*[self._install_on(*one) for one in self._placements()])
        if self.ending:
            return
        if why := "; ".join(filter(None, problems)):
            self._enter(Stage.FAILED)
            self.progress.failed(self.job, why)
        else:
            self._enter(Stage.INSTALLED)
            self.progress.installed(self.job)

    async def _install_on(self, switch: Aggregator, placement: Placement, *, now: bool = False) -> str:
        """Install on one switch, and return what went wrong, or "". `now`: as in `_put_on`."""
        try:
            with self.traces.step(self.job, "switch", switch=switch.target):
                await self._put_on(switch, placement, now=now)
        except SwitchError as error:
            return str(error)
        except Exception as error:  # otherwise its ranks would wait for it
            log.exception("installing job %r at the switch at %s", self.job.name, switch.target)
            return f"the switch at {switch.target} cannot be set up for the job: {type(error).__name__}: {error}"
        return ""

    async def _put_on(self, switch: Aggregator, placement: Placement, *, now: bool = False) -> None:
        """Write the job's entries and reset its slots. If the job ends meanwhile, the later steps are left out.

        `now`: ranks pause until this is done, so it may not take as long as their timeouts.
        """
        wait, timeout = (TAKEOVER_WAIT, 0.0) if now else (CONNECT_WAIT, self.job.timeout)
        with contextlib.suppress(asyncio.TimeoutError):
            await with_timeout(first_of(switch.wait_connected(), self._ending.wait()), wait)
        if not self.ending:
            await _run_step(switch, "installing it", switch.install(placement), max(STEP_TIMEOUT, timeout))
        if not self.ending:  # resets of jobs queue up: at most all slots of the switch
            limit = max(STEP_TIMEOUT, timeout) + time_for(switch.layout.slots)
            with self.traces.step(self.job, "reset"):
                await _run_step(switch, "resetting its slots", switch.reset(placement, timeout), limit)

    # Moves to other slots.

    async def _move(self) -> None:
        self._enter(Stage.MOVING)
        while self._moving.is_set() and not self.ending:
            # Cleared first: a `move` during the work below leads to one more round.
            self._moving.clear()
            await asyncio.gather(*[self._move_on(*one) for one in self._placements()])
        if not self.ending:
            self._enter(Stage.INSTALLED)
            self.progress.moved(self.job)

    async def _move_on(self, switch: Aggregator, placement: Placement) -> None:
        """Try until the switch has the job in its new slots, or the job has ended."""
        tries = 0
        while not self.ending:
            try:
                if tries:  # the last try may have written anything
                    await _run_step(switch, "fencing it", switch.fence(placement))
                tries += 1
                await self._put_on(switch, placement)
                return
            except Exception as error:
                known = isinstance(error, SwitchError | Interrupted)
                text = "moving job %r at the switch at %s: %s"
                log.warning(text, self.job.name, switch.target, error, exc_info=None if known else error)
            await first_of(self._ending.wait(), asyncio.sleep(RETRY_INTERVAL))

    async def _take_over(self, takeover: Takeover) -> None:
        each = self._each(takeover.placements)
        problems = await asyncio.gather(*[self._install_on(*one, now=True) for one in each])
        if not self.ending:
            self.progress.taken_over(self.job, takeover, "; ".join(filter(None, problems)))

    # Removal.

    async def _remove_from(self, switch: Aggregator, placement: Placement) -> bool:
        """Take the job off one switch. Return whether the switch has forgotten it."""
        fenced = await self._repeat(switch, "fencing it", lambda: switch.fence(placement))
        abort = self._abort_packet()
        # If a switch is away, the service has to tell the ranks first.
        if abort is not None and placement.has_ranks and not any(one.unavailable for one in self.switches.values()):
            rank = abort.rank if abort.HasField("rank") else None
            try:
                await _run_step(switch, "an ABORT", switch.abort(placement, rank, abort.reason))
            except Exception as error:  # the service tells the ranks too
                log.warning("cannot send an ABORT from the switch at %s: %s", switch.target, error)
        return await self._repeat(switch, "forgetting it", lambda: switch.forget(placement)) and fenced

    def _abort_packet(self) -> pb.Abort | None:
        """Return the abort that the switch sends as a packet; None if the packet would say too little.

        An ABORT packet only names the lost rank. If there is none, ranks that are away must get the reason when they
        come back. If ranks have called different operations, the message that says so must be the only one.
        """
        abort = self._abort
        if abort is None or abort.mismatch:
            return None
        return abort if abort.HasField("rank") or not self.job.away else None

    async def _repeat(self, switch: Aggregator, doing: str, work: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Repeat the work until it is done: a slot range with entries left must not be given to another job.

        Return False if the controller ends before.
        """
        while True:
            try:
                await _run_step(switch, doing, work())
                return True
            except SwitchUnavailable:
                if switch.given_up:
                    return True
                if self.stopping.is_set():
                    return False
                await first_of(switch.wait_connected(), self.stopping.wait())
            except (Interrupted, SwitchError) as error:
                log.warning("taking job %r off the switch at %s: %s", self.job.name, switch.target, error)
                await asyncio.sleep(RETRY_INTERVAL)
            except Exception:
                log.exception("taking job %r off the switch at %s", self.job.name, switch.target)
                await asyncio.sleep(RETRY_INTERVAL)


async def _run_step(
    switch: Aggregator, doing: str, work: Coroutine[Any, Any, None], limit: float | None = None
) -> None:
    """Do the work. Raise SwitchError if it takes longer than `limit` seconds (None: `STEP_TIMEOUT`)."""
    limit = STEP_TIMEOUT if limit is None else limit
    try:
        await with_timeout(isolate_cancellation(work), limit)
    except asyncio.TimeoutError:
        raise SwitchError(f"the switch at {switch.target} has not finished {doing} within {limit:g} s") from None


CLOSE_TIMEOUT = 3.0  # seconds for removals that are under way when the controller ends


@dataclass(eq=False, repr=False)
class Supervisor:
    """The owner of the rollouts: one for each job that holds slots of a switch, each in a task of its own.

    A rollout ends when its job is off the switches, whatever happens to the streams of the job's ranks.
    """

    switches: Mapping[int, Aggregator]
    progress: Progress
    tasks: Tasks
    traces: Traces
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    _rollouts: dict[int, tuple[Rollout, asyncio.Task[None]]] = field(default_factory=dict)  # by job number

    def install(self, job: Job) -> None:
        self._start(job, Stage.INSTALLING)

    def resume(self, job: Job) -> None:
        self._start(job, Stage.INSTALLED)

    def move(self, job: Job) -> None:
        """Start a move to the job's new slots. Do nothing if the job is off the switches."""
        rollout, _ = self._rollouts.get(job.number, (None, None))
        if rollout is not None and rollout.job is job:
            rollout.move()

    def take_over(self, job: Job, takeover: Takeover) -> None:
        """Start a takeover. Do nothing if the job is off the switches."""
        rollout, _ = self._rollouts.get(job.number, (None, None))
        if rollout is not None and rollout.job is job:
            rollout.take_over(takeover)

    def remove(self, job: Job, abort: pb.Abort | None) -> None:
        """Start the removal. Do nothing if the rollout has failed, which ends the service."""
        if job.number in self._rollouts:
            rollout, _ = self._rollouts[job.number]
            rollout.remove(abort)

    async def settle(self) -> None:
        """Give jobs that have ended some time to be taken off. Called while `stopping` is set."""
        ending = [task for rollout, task in self._rollouts.values() if rollout.ending]
        if ending:
            await asyncio.wait(ending, timeout=CLOSE_TIMEOUT)

    def _start(self, job: Job, stage: Stage) -> None:
        rollout = Rollout(job, self.switches, self.progress, self.stopping, stage, self.traces)
        task = self.tasks.start(self._run(job.number, rollout), f"job {job.number}.{job.generation}")
        self._rollouts[job.number] = (rollout, task)

    async def _run(self, number: int, rollout: Rollout) -> None:
        try:
            with logging_about(rollout.job):
                await rollout.run()
        finally:
            del self._rollouts[number]
