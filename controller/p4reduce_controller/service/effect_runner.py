# SPDX-License-Identifier: Apache-2.0
"""The I/O that jobs ask for: it is carried out here, and jobs are told of the result."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.base.tasks import Interrupted, Tasks, isolate_cancellation
from p4reduce_controller.fabric.inventory import Inventory
from p4reduce_controller.fabric.ports import troubles_of
from p4reduce_controller.fabric.rollout import Supervisor
from p4reduce_controller.fabric.slots import look
from p4reduce_controller.jobs.effects import Answer, Change, Install, Keep, Look, Note, Remove, TakeOver, Tell
from p4reduce_controller.jobs.job import Job, Move, State, Takeover
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.observability.logs import about
from p4reduce_controller.observability.telemetry import Telemetry
from p4reduce_controller.observability.tracing import Traces
from p4reduce_controller.service.saver import Saver
from p4reduce_controller.service.streams import Stream
from p4reduce_controller.store.state import StateError
from p4reduce_controller.switches.aggregator import Heard, SwitchError
from p4reduce_controller.tenants.access import Caller, Role
from p4reduce_controller.tenants.audit import Audit

log = logging.getLogger(__name__)

SAVE_RETRY_INTERVAL = 0.5  # seconds between saves of a job whose slots change once it is saved
MAX_SAVE_TRIES = 10
ANSWERS_A_SECOND = 1000  # to the ranks of one job
LOOK_DELAY = 0.5  # seconds from a rank's question to the query, so that ranks cannot keep the switches busy


@dataclass(eq=False, repr=False)
class EffectRunner:
    """The runner of the jobs' effects. `run` must be called after every event that jobs handle.

    Effects that take time run in tasks, which end with another event.
    """

    jobs: Jobs
    inventory: Inventory
    saver: Saver
    tasks: Tasks
    clock: Callable[[], float]
    audit: Audit
    telemetry: Telemetry
    traces: Traces

    def __post_init__(self) -> None:
        self.supervisor = Supervisor(self.inventory.switches, self, self.tasks, self.traces)

    def run(self) -> None:
        for effect in self.jobs.take_effects():
            match effect:
                case Tell(session, message, last):
                    assert isinstance(session, Stream)
                    session.tell(message, last=last)
                case Install(job):
                    self.telemetry.installing(job, self.clock())
                    self.traces.installing(job)
                    self.supervisor.install(job)
                case Change(job):
                    if job.move is not None:
                        self.tasks.start(self._move(job, job.move), "move")
                case Keep(job, takeover):
                    self.tasks.start(self._keep(job, takeover), "state")
                case TakeOver(job, takeover):
                    self.supervisor.take_over(job, takeover)
                case Note(job, outcome):
                    note_job(self.audit, job, outcome)
                case Answer(switch, hello):
                    self.tasks.start(self._say_hello(switch, hello), "answer")
                case Look(job, half):
                    self.tasks.start(self._look(job, half), "look")
                case Remove(job, abort):
                    self.saver.save_soon()
                    if abort is not None:
                        log.warning("aborted: %s", abort.message, extra=about(job))
                        self.traces.settled(job.number, abort.message)
                    # The ranks are told at once; only the slots are kept until nothing can reach them any more.
                    self.supervisor.remove(job, abort)

    async def _say_hello(self, switch: int, hello: Heard) -> None:
        """Answer a HELLO that was heard at that switch."""
        if (found := self.inventory.switches.get(switch)) is not None:
            with contextlib.suppress(SwitchError, Interrupted):  # the rank asks again
                await isolate_cancellation(
                    found.say_hello(
                        *(hello.port, hello.sender, hello.worker, hello.nonce), short=hello.short, vlan=hello.vlan
                    )
                )

    async def _look(self, job: Job, half: int) -> None:
        found, slots = None, (job.ranges, job.first_seq)
        await asyncio.sleep(max(LOOK_DELAY, job.world_size / ANSWERS_A_SECOND))  # all ranks are told the answer
        try:
            if not (job.over or job.moving or (job.ranges, job.first_seq) != slots):
                found = await look(job, half, self.inventory.switches)
        except (SwitchError, Interrupted) as error:
            log.info("job %r: cannot find out what a rank waits for: %s", job.name, error)
        except Exception:  # a missing answer must not harm others
            log.exception("job %r: cannot find out what a rank waits for", job.name)
        if job.moving or (job.ranges, job.first_seq) != slots:
            found = None  # the slots may have belonged to another job
        self.jobs.looked(job, half, found)
        self.run()

    # Events of rollouts: see `rollout.Progress`.

    def installed(self, job: Job) -> None:
        self.tasks.start(self._installed(job), "state")

    async def _installed(self, job: Job) -> None:
        job.installed = True  # included in saves for other reasons meanwhile
        try:
            await self.saver.save()  # before any rank learns that the job is ready
            if job.over:
                return
            self.jobs.installed(job)
        except StateError as error:
            self.failed(job, f"the controller cannot store it: {error}")
            return
        if job.is_at_spares:
            text = f"the job uses the spare switch {job.spare_names}; {'; '.join(job.excluded_switches)}"
            log.warning("job %r: %s", job.name, text, extra=about(job))
            self.jobs.notice(job, text)
        self.telemetry.installed(job, self.clock())
        self.traces.settled(job.number)
        workers = f" as {len(job.workers)} workers" if len(job.workers) < job.world_size else ""
        text = "job %r (%d.%d) is ready: %d ranks%s"
        log.info(text, job.name, job.number, job.generation, job.world_size, workers, extra=about(job))
        self.run()

    async def _move(self, job: Job, move: Move) -> None:
        """Save the move, before any switch has the job in its new slots, and then start it."""
        if await self._persist(job, lambda error: self._not_moved(job, move, error)):
            move.kept = True
            self.supervisor.move(job)

    def _not_moved(self, job: Job, move: Move, error: str) -> bool:
        """Return whether the move is undone, which requires that the old state is certain to be the stored one."""
        if self.saver.store is None or self.saver.shared:
            return False
        if move.lost:
            self.jobs.failed(job, move.lost, pb.SWITCH_LOST)
        else:
            self.jobs.not_moved(job, error, self.clock())
            self.saver.save_soon()
        self.run()
        return True

    def moved(self, job: Job) -> None:
        if (move := job.move) is not None and not job.over:
            move.done = True
            self.tasks.start(self._moved(job, move), "state")

    async def _moved(self, job: Job, move: Move) -> None:
        if not await self._persist(job):  # before any rank uses its new slots
            return
        now = self.clock()
        self.jobs.moved(job, now)
        self.telemetry.moved(move.why, now - move.since)
        text = "job %r was %s: %d slots instead of %d, the first at %s; its ranks paused for %.0f ms"
        firsts = ", ".join(str(taken.first) for taken in job.ranges.values())
        paused_ms = 1000 * (now - move.since)
        log.info(text, job.name, move.why, job.slots, move.slots_before, firsts, paused_ms, extra=about(job))
        self.run()

    async def _keep(self, job: Job, takeover: Takeover) -> None:
        """Save that a tree of the job is lost, before any rank suspends its slots there."""
        if await self._persist(job):
            self.jobs.stored(job, takeover)
            self.run()

    def taken_over(self, job: Job, takeover: Takeover, problem: str) -> None:
        now = self.clock()
        if self.jobs.taken_over(job, takeover, problem, now):
            self.telemetry.moved("taken over", now - takeover.since)
        self.run()

    def ports_changed(self) -> None:
        """Tell jobs which of their ports and uplinks are down. They go on: lost packets are sent again."""
        for job in self.jobs.live:
            ready, known = job.state is State.READY, self.inventory
            children = known.children_at(job.site)
            troubles = troubles_of(job, children, known.switches, known.uplink_trouble) if ready else []
            news = [text for text in troubles if text not in job.ports_down]
            news += [f"resolved: {text}" for text in job.ports_down if text not in troubles]
            for text in news:
                log.warning("job %r: %s", job.name, text, extra=about(job))
                self.jobs.notice(job, text)
            job.ports_down = troubles
        self.run()

    async def _persist(self, job: Job, gives_up: Callable[[str], bool] = lambda _: False) -> bool:
        """Save the job's present state before its slots are elsewhere, or are used there. Return whether it was saved.

        It is not saved if the job ends meanwhile, if `gives_up` returns True for the error's text, or if it fails too
        often; then the job ends.
        """
        tries = 0
        while not job.over:
            try:
                await self.saver.save()
                break
            except StateError as error:
                if job.over or gives_up(str(error)):
                    return False
                # Otherwise another controller may serve, and goes on from what is stored.
                tries += not self.saver.maybe_lost_leadership
                if tries >= MAX_SAVE_TRIES:
                    self.failed(job, f"the controller cannot store it: {error}")
                    return False
                log.warning("job %r waits until its new state is stored: %s", job.name, error, extra=about(job))
                await asyncio.sleep(SAVE_RETRY_INTERVAL)
        return not job.over

    def failed(self, job: Job, why: str) -> None:
        self.jobs.failed(job, why)
        self.run()

    def freed(self, job: Job) -> None:
        self.jobs.freed(job)
        self.telemetry.installed(job, self.clock())


def note_job(audit: Audit, job: Job, outcome: str) -> None:
    """Write in the audit log that a job has begun (`outcome` is ""), or how it ended."""
    user, what = Caller(job.user, Role.USER, job.tenant), "job ended" if outcome else "job begun"
    number = f"{job.number}.{job.generation}"
    audit.note(user, what, outcome or "ok", job=job.name, number=number, ranks=job.world_size, slots=job.slots)
