# SPDX-License-Identifier: Apache-2.0
"""The control service: carries ranks' messages to `jobs`, and what follows from them to ranks and to switches."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import grpc
import grpc.aio

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import jobs_pb2_grpc as rpc
from p4reduce_controller.clock import Clock
from p4reduce_controller.jobs.admission import LONGEST_NAME
from p4reduce_controller.jobs.effects import Answer, Change, Install, Look, Remove, Tell
from p4reduce_controller.jobs.job import Job, Move, State
from p4reduce_controller.jobs.jobs import BROKEN, Jobs
from p4reduce_controller.jobs.reports import Reports
from p4reduce_controller.seeing.logs import about
from p4reduce_controller.seeing.seen import seen_by
from p4reduce_controller.seeing.status import status_of
from p4reduce_controller.seeing.telemetry import Telemetry
from p4reduce_controller.seeing.tracing import Traces
from p4reduce_controller.service.before_serving import BeforeServing
from p4reduce_controller.service.listening import ServiceConfig, bound_server
from p4reduce_controller.service.operations import Operations
from p4reduce_controller.service.streams import FIRST_MESSAGE_TIMEOUT, Context, NotServing, ProtocolError, Stream
from p4reduce_controller.settings.settings import Settings
from p4reduce_controller.store.state import StateError
from p4reduce_controller.store.state_names import Setup
from p4reduce_controller.store.store import Store
from p4reduce_controller.switches.aggregator import (
    Aggregator,
    Direction,
    Heard,
    Listener,
    SwitchError,
)
from p4reduce_controller.switches.changes import Beginning
from p4reduce_controller.switches.fabric import Fabric, Means
from p4reduce_controller.switches.hosts import problem_of
from p4reduce_controller.switches.looking import look
from p4reduce_controller.switches.ports import troubles_of
from p4reduce_controller.switches.specs import SwitchSpec
from p4reduce_controller.switches.supervisor import Supervisor
from p4reduce_controller.tasks import Interrupted, Tasks, apart
from p4reduce_controller.tenants.access import ANYONE, Caller
from p4reduce_controller.tenants.audit import Audit
from p4reduce_controller.tenants.gate import Gate, Refused
from p4reduce_controller.tenants.pace import Pace, host_of
from p4reduce_controller.tenants.peers import Peers
from p4reduce_controller.tenants.sizes import Sizes

log = logging.getLogger(__name__)

TICK = 0.1
LAST_SAVE = 2.0  # seconds, for a controller that ends
READ_USERS = 10  # ticks between looks at the users file
KEEP_USE = 600  # ticks between writings of what tenants have used; jobs that run are charged without these
SAVE_AGAIN = 0.5  # seconds, for a job whose ranks hold until it is kept
SAVE_TRIES = 10
JOIN_AGAIN = 1.0  # seconds, after which a rank is told that the controller waits for a switch, and joins again
LOOK_AFTER = 0.5  # seconds from a rank's question to the look, so that ranks cannot keep the switches busy


class Service(Operations, rpc.JobsServicer):
    """`over` is set when it cannot go on, for the reason that is in `failure`.

    With a store, jobs that are ready outlive the service while `keeps_jobs` holds, for the next one to `restore`.
    """

    def __init__(
        self,
        switches: Sequence[Aggregator],
        jobs: Jobs,
        config: ServiceConfig,
        state: Store | None = None,
        gate: Gate | None = None,
        audit: Audit | None = None,
        traces: Traces | None = None,
    ) -> None:
        """`gate`: without it, everyone who has the one token is the operator."""
        super().__init__()
        self.keeps_jobs = state is not None
        self.over = asyncio.Event()
        self.failure: BaseException | None = None
        self.listen = self.page = self.metrics = ""  # where that is served, once it is
        self.telemetry = Telemetry()
        self._traces = traces or Traces()
        self.reports = Reports()
        self.fabric = Fabric(switches, jobs)
        self._switches: Mapping[int, Aggregator] = self.fabric.switches
        self._jobs = jobs
        self._config = config
        self._state = state
        self._gate = gate
        self._audit = audit or Audit()
        self.pace = gate.pace if gate is not None else Pace()
        self.peers = Peers(config.rates, self.pace, config.token, self._audit) if gate is None else None
        self.telemetry.registry.register(self.pace)
        self._server: grpc.aio.Server | None = None
        self._listens = False
        self._serves = False
        self._begun = asyncio.Event()  # it serves, or will not
        self._tasks = Tasks(self._fail)
        self._supervisor = Supervisor(self._switches, self, self._tasks, self._traces)
        self._hellos: dict[int, int] = {}  # nonce -> the switch with a parent that has not been heard yet
        self._clock = Clock()
        self._to_be_ready: set[tuple[int, int]] = set()  # jobs, by number and generation: on the switches, not kept yet

    # Its own life.

    def restore(self) -> None:
        """Takes up the jobs of an earlier service, before the switches are started. Raises StateError."""
        if self._state is None:
            return
        jobs, children = self._state.load(
            Setup(self._switches, lambda: self._jobs.site, self.fabric.aside), self._clock()
        )
        try:
            self._jobs.restore(jobs, children)
            self._jobs.tenancy.take_up(self._state.use, jobs, self._clock())
            self._jobs.expect_queue(self._state.queue, self._clock())
        except ValueError as error:
            raise self._state.refusal(str(error)) from None
        for job in jobs:
            for at, placement in job.placements.items() if not job.moving else ():
                self._switches[job.site.number(at)].expect(placement)
            self._supervisor.resume(job)
            if job.moving and job.move is not None:  # and its ranks hold
                job.move.kept = True
                self._supervisor.move(job)
            log.info("job %r (%d.%d) continues: %d ranks", job.name, job.number, job.generation, job.world_size)

    @property
    def has_kept_jobs(self) -> bool:
        """Once it is closed: jobs carry on, and the switches have to leave them as they are."""
        return self.keeps_jobs and (bool(self._jobs.live) or (self._state is not None and self._state.shared))

    stands_by = False  # to those who ask over HTTP

    @property
    def door(self) -> Gate | Peers:
        """Who lets callers in."""
        door = self._gate or self.peers
        assert door is not None
        return door

    def bind(self) -> None:
        """Takes the port, and does not serve there yet. Raises ListenError."""
        interceptors = [self.telemetry, self.door, BeforeServing(self._waits_for), Sizes(self._too_large)]
        self._server, self.listen = bound_server(self._config, interceptors)
        rpc.add_JobsServicer_to_server(self, self._server)

    @property
    def unready(self) -> str:
        """Why no job can be served now, or ""."""
        if self.failure is not None:
            return f"the service has failed: {type(self.failure).__name__}"
        if self._supervisor.stopping.is_set():
            return "the controller is being stopped"
        if not self._serves:
            return "the controller is being started"
        if self.doubt:
            return f"another controller may serve: {self.doubt}"
        switches = self._switches.values()
        if all(switch.problem for switch in switches):
            return "; ".join(f"the switch at {switch.target}: {switch.state}" for switch in switches)
        return ""

    async def listen_early(self) -> None:
        """After `bind` and `restore`: callers hear that the controller waits for a switch, until `start`."""
        assert self._server is not None
        self._listens = True
        await self._server.start()

    def _waits_for(self) -> str:
        """Why nothing can be asked of it yet, or ""."""
        if self._serves or not self._listens:
            return ""
        troubles = [(one.target, one.problem) for one in self._switches.values() if one.problem]
        whys = [why if target in why else f"switch at {target}: {why}" for target, why in troubles]
        because = f" ({'; '.join(whys)})" if whys else ""
        return f"this controller stands by until its first switch answers{because}"

    async def start(self) -> None:
        """After `bind`. Each switch must have been started, with `listener` of its index."""
        if not self._listens:
            await self.listen_early()
        self._serves = True
        self._begun.set()
        self._jobs.expect_returns(self._clock())
        self._tasks.start(self._tick(), "ticks")

    async def close(self) -> None:
        """Aborts all jobs that are not kept, tells their ranks, and takes them off the switches as far as that can be
        done soon."""
        self._supervisor.stop()
        self._begun.set()
        self._jobs.abort_all(pb.CONTROLLER_STOPPED, "the controller was stopped", but_ready=self.keeps_jobs)
        self._carry_out()
        await self._supervisor.settle()
        if self._serves and self._state is not None and not self.doubt:
            await self._save_what_is_over(LAST_SAVE)
        if self._server is not None:
            if not self._listens:
                await self._server.start()  # gRPC gives back no port of a server that was not started
            grace = 0.2 if self._state is not None and self._state.shared else 1.0  # who takes over is not kept waiting
            await self._server.stop(grace=grace if self._serves else None)
        await self._tasks.close()

    async def _tick(self) -> None:
        ticks = 0
        while not self._supervisor.stopping.is_set():
            ticks += 1
            if not self.doubt:
                self._jobs.tick(self._clock())
                self._carry_out()
                if removed := self.fabric.sweep():
                    self.reports.forget(removed)
                    self._tasks.start(self._save_what_is_over(), "state")
                if self._jobs.queue_changed():
                    self._tasks.start(self._save_what_is_over(), "state")
                if ticks % KEEP_USE == 0 and self._gate is not None:
                    self._tasks.start(self._save_what_is_over(), "state")
            if ticks % READ_USERS == 0 and self._config.tls is not None:
                self._config.tls.current()  # so that what is wrong there is known before somebody comes
            if ticks % READ_USERS == 0 and self._gate is not None and self._gate.users.refresh():
                self._jobs.tenancy.policy = self._gate.users.book.policy
                self._audit.note(ANYONE, "users file read again", "ok")
            self._traces.keep(self._jobs.live)
            await asyncio.sleep(TICK)

    def _fail(self, error: BaseException) -> None:
        """A task has ended that deadlines or a job's slots depend on: without it the service only looks alive."""
        self.failure = self.failure or error
        self.over.set()

    def open(self, settings: Settings, make: Callable[[SwitchSpec], Aggregator], beginning: Beginning) -> None:
        """From now on switches may come and go. `beginning`: with those that there are."""
        self.settings = settings
        self.fabric.open(Means(make, self.listener, self.find_child, self._tasks), beginning)

    # What the switches report.

    def listener(self, switch: int) -> Listener:
        """Who is told what happens at the switch of that index."""
        return _Ear(self, switch)

    async def find_children(self, timeout: float) -> None:
        """Each switch with a parent says HELLO to it: so the cables are tried, and the parent learns where it is.

        Those that are not heard in time are logged, and go on with it; jobs that need them are refused meanwhile.
        """
        site = self._jobs.site
        for child in site.trees.uplinks:
            self.find_child(site.number(child))
        deadline = self._clock() + timeout
        while any(map(self._can_be_heard, self._hellos.values())) and self._clock() < deadline:
            await asyncio.sleep(TICK)
        for child in filter(self._can_be_heard, self._hellos.values()):
            port, parent = self.fabric.uplink(child)
            log.warning(
                "the switch %s has sent HELLOs out of its port %d for %g s, and none has reached its parent %s at %s",
                *(self.fabric.name(child), port, timeout),
                *(self.fabric.name(parent), self._switches[parent].address),
            )

    def find_child(self, child: int) -> None:
        """It has to be heard by its parent from now on, which is another or new."""
        self._jobs.forget_child(child)
        self._hellos = {nonce: other for nonce, other in self._hellos.items() if other != child}
        if not self._hellos:
            self._tasks.start(self._say_hellos(), "uplinks")
        self._hellos[secrets.randbits(64)] = child

    async def _say_hellos(self) -> None:
        while self._hellos:
            for nonce, child in list(self._hellos.items()):
                port, parent = self.fabric.uplink(child)
                if parent < 0:  # it was removed, or has none any more
                    self._hellos.pop(nonce, None)
                elif self._can_be_heard(child):
                    try:
                        to = self._switches[parent].address
                        await apart(self._switches[child].say_hello(port, to, child % 256, nonce))
                    except (SwitchError, Interrupted) as error:
                        log.info("cannot send a switch's HELLO to its parent: %s", error)
            await asyncio.sleep(TICK)

    async def _say_hello(self, switch: int, hello: Heard) -> None:
        """In answer to one that was heard there."""
        if (there := self._switches.get(switch)) is not None:
            with contextlib.suppress(SwitchError, Interrupted):  # the rank asks again
                await apart(there.say_hello(hello.port, hello.sender, hello.worker, hello.nonce, short=hello.short))

    def _can_be_heard(self, child: int) -> bool:
        """It and its parent are there."""
        _, parent = self.fabric.uplink(child)
        return parent >= 0 and not self._switches[child].problem and not self._switches[parent].problem

    def awaits(self, nonce: int) -> bool:
        """A switch that has not been heard by its parent has it, or a rank of a job."""
        return nonce in self._hellos or self._jobs.awaits(nonce)

    def heard(self, switch: int, hello: Heard) -> None:
        if switch not in self._switches:
            return  # it was removed meanwhile
        child = self._hellos.get(hello.nonce)
        if hello.job == 0 and child is not None and self.fabric.uplink(child)[1] == switch:
            if problem := problem_of(hello.sender):
                log.warning("refused a HELLO of the switch %s: %s", self.fabric.name(child), problem)
                return
            del self._hellos[hello.nonce]
            self._jobs.child_heard(child, hello)
            return
        if self._jobs.heard(switch, hello):
            self._carry_out()

    def connected(self, switch: int, lost_jobs: frozenset[int], *, restarted: bool) -> None:
        if self._supervisor.stopping.is_set() or switch not in self._switches:
            return  # the next controller will see for itself, or nobody needs it any more
        where = f"the switch at {self._switches[switch].target}"
        why = f"{where} was restarted and lost the job's state"
        if not restarted:
            why = (
                f"{where} still runs, but lacks entries of the job: another P4Runtime client has changed them, or this "
                "controller's record of the job (--state, --store) is out of date"
            )
        for job in self._jobs.live:
            if any(number in lost_jobs for number, _ in job.numbers):
                if job.moving and job.move is not None and not job.move.kept:
                    job.move.lost = why  # it is put there anew, unless that cannot be kept
                elif job.moving and job.move is not None and not job.move.done:
                    self._supervisor.move(job)  # no rank uses its slots
                else:
                    self._jobs.failed(job, why, pb.SWITCH_LOST)
        self._carry_out()

    def ports_changed(self) -> None:
        """Jobs carry on: what was on its way is sent again when the port is up. Whose ports are down is told."""
        for job in self._jobs.live:
            troubles = troubles_of(job, self._jobs.children, self._switches) if job.state is State.READY else []
            for text in [one for one in troubles if one not in job.ports_down]:
                log.warning("job %r: %s", job.name, text, extra=about(job))
                self._jobs.notice(job, text)
            for text in [one for one in job.ports_down if one not in troubles]:
                log.warning("job %r: resolved: %s", job.name, text, extra=about(job))
                self._jobs.notice(job, f"resolved: {text}")
            job.ports_down = troubles
        self._carry_out()

    def _switches_away(self, session: Stream) -> str:
        """Said to those who lose a rank, which may have given up because of that."""
        away = [switch for switch in self._switches.values() if switch.problem]
        seat = self._jobs.member_at(session)
        ports = "".join(f"; {text}" for text in seat[0].ports_down) if seat else ""
        return "".join(f"; the switch at {switch.address} is unavailable: {switch.problem}" for switch in away) + ports

    # Effects.

    def _carry_out(self) -> None:
        for effect in self._jobs.take_effects():
            if isinstance(effect, Tell):
                assert isinstance(effect.session, Stream)
                effect.session.tell(effect.message, last=effect.last)
            elif isinstance(effect, Install):
                self.telemetry.installing(effect.job, self._clock())
                self._traces.installing(effect.job)
                self._supervisor.install(effect.job)
            elif isinstance(effect, Change):
                if effect.job.move is not None:
                    self._tasks.start(self._move(effect.job, effect.job.move), "move")
            elif isinstance(effect, Answer):
                self._tasks.start(self._say_hello(effect.switch, effect.hello), "answer")
            elif isinstance(effect, Look):
                self._tasks.start(self._look(effect.job, effect.half), "look")
            elif isinstance(effect, Remove):
                self._tasks.start(self._save_what_is_over(), "state")
                if effect.abort is not None:
                    log.warning("aborted: %s", effect.abort.message, extra=about(effect.job))
                    self._traces.settled(effect.job, effect.abort.message)
                # The ranks are told at once; only the slots have to wait until nothing can reach them.
                self._supervisor.remove(effect.job, effect.abort)

    async def _look(self, job: Job, half: int) -> None:
        found, slots = None, (job.ranges, job.first_seq)
        await asyncio.sleep(LOOK_AFTER)
        try:
            if not (job.over or job.moving or (job.ranges, job.first_seq) != slots):
                found = await look(job, half, self._switches)
        except (SwitchError, Interrupted) as error:
            log.info("job %r: cannot find out what a rank waits for: %s", job.name, error)
        except Exception:  # an answer that cannot be had costs nobody else anything
            log.exception("job %r: cannot find out what a rank waits for", job.name)
        if job.moving or (job.ranges, job.first_seq) != slots:
            found = None  # in slots that were somebody else's
        self._jobs.looked(job, half, found)
        self._carry_out()

    @property
    def doubt(self) -> str:
        """Why another controller may serve by now, or ""."""
        return self._state.doubt if self._state is not None else ""

    async def _save(self) -> None:
        """Those that are ready, and those that will be once they are kept. Raises StateError."""
        if self._state is not None:

            def kept() -> list[Job]:
                ready = self._to_be_ready
                return [
                    job
                    for job in self._jobs
                    if job.state is State.READY or ((job.number, job.generation) in ready and not job.over)
                ]

            self._state.use = self._jobs.tenancy.to_keep()
            self._state.queue = self._jobs.queue_to_keep(self._clock())
            if self.settings is not None:  # until then it is what an earlier controller has kept
                self._state.fabric = self.fabric.to_keep().to_keep()
            await self._state.keep(kept, self._jobs.children, self._clock())

    async def _save_what_is_over(self, within: float | None = None) -> None:
        """Where that fails, a job too many is kept, whose ranks will not come back."""
        try:
            await asyncio.wait_for(self._save(), within)
        except asyncio.TimeoutError:
            log.error("jobs that have ended may still be in the store: removing them took more than %g s", within)
        except StateError as error:
            log.error("%s", error)

    # How it goes on the switches.

    def installed(self, job: Job) -> None:
        self._tasks.start(self._installed(job), "state")

    async def _installed(self, job: Job) -> None:
        self._to_be_ready.add((job.number, job.generation))  # so what is kept for another's sake meanwhile has it, too
        try:
            await self._save()  # before any rank knows that it is ready
            if job.over:
                return
            self._jobs.installed(job)
        except StateError as error:
            self.failed(job, f"the controller cannot store it: {error}")
            return
        finally:
            self._to_be_ready.discard((job.number, job.generation))
        self.telemetry.installed(job, self._clock())
        self._traces.settled(job)
        workers = f" as {len(job.workers)} workers" if len(job.workers) < job.world_size else ""
        text = "job %r (%d.%d) is ready: %d ranks%s"
        log.info(text, job.name, job.number, job.generation, job.world_size, workers, extra=about(job))
        self._carry_out()

    async def _move(self, job: Job, move: Move) -> None:
        """Once a later controller would know of it, and before any switch has the job elsewhere."""
        if not await self._kept(job, lambda error: self._not_moved(job, move, error)):
            return
        move.kept = True
        self._supervisor.move(job)

    def _not_moved(self, job: Job, move: Move, error: str) -> bool:
        """Whether its ranks go on where they were: not where what is kept may be one or the other."""
        if self._state is None or self._state.shared:
            return False
        if move.lost:
            self._jobs.failed(job, move.lost, pb.SWITCH_LOST)
        else:
            self._jobs.not_moved(job, error, self._clock())
            self._tasks.start(self._save_what_is_over(), "state")
        self._carry_out()
        return True

    def moved(self, job: Job) -> None:
        if (move := job.move) is not None and not job.over:
            move.done = True
            self._tasks.start(self._moved(job, move), "state")

    async def _moved(self, job: Job, move: Move) -> None:
        if not await self._kept(job):  # before any rank goes on in its new slots
            return
        now = self._clock()
        self._jobs.moved(job, now)
        self.telemetry.moved(move.why, now - move.since)
        text = "job %r was %s: %d slots instead of %d, the first at %s; its ranks paused for %.0f ms"
        firsts = ", ".join(str(taken.first) for taken in job.ranges.values())
        held = 1000 * (now - move.since)
        log.info(text, job.name, move.why, job.slots, move.slots_before, firsts, held, extra=about(job))
        self._carry_out()

    async def _kept(self, job: Job, gives_up: Callable[[str], bool] = lambda _: False) -> bool:
        """Keeps the job as it is now, while its ranks hold. False where it is over meanwhile, or has to end because
        that cannot be done, or where `gives_up` has said, for the reason that it is given, that it need not be."""
        tries = 0
        while not job.over:
            try:
                await self._save()
                break
            except StateError as error:
                if job.over or gives_up(str(error)):
                    return False
                tries += not self.doubt  # else another controller may serve, and ends what this one has begun
                if tries >= SAVE_TRIES:
                    self.failed(job, f"the controller cannot store it: {error}")
                    return False
                log.warning("job %r stays paused until its slots are stored: %s", job.name, error, extra=about(job))
                await asyncio.sleep(SAVE_AGAIN)
        return not job.over

    def failed(self, job: Job, why: str) -> None:
        self._jobs.failed(job, why)
        self._carry_out()

    def freed(self, job: Job) -> None:
        self._jobs.freed(job)
        self.telemetry.installed(job, self._clock())

    # The service.

    async def Session(self, _: object, context: Context) -> None:  # type: ignore[override]
        caller = await self._caller(context)
        try:
            first = await self._hold_early(context) if self._waits_for() else None
            with self._place(caller, context.peer()) as due:
                await Stream(context, partial(self._handle, caller), due, first).serve(self._lost)
        except Refused as error:
            self._audit.note(caller, "join", str(error), refused=True, peer=context.peer())
            await context.abort(error.code, str(error))
        except NotServing as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    async def _hold_early(self, context: Context) -> pb.ClientMessage | None:
        """The first message of a rank that comes before the controller serves. One that would come back waits for that;
        one that joins does for a moment, and is told then. Raises NotServing."""
        message = await asyncio.wait_for(context.read(), FIRST_MESSAGE_TIMEOUT)
        if not isinstance(message, pb.ClientMessage):
            return None
        limit = None if message.WhichOneof("message") == "rejoin" else JOIN_AGAIN
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._begun.wait(), limit)
        if why := self._waits_for():
            raise NotServing(why)
        return message

    def _too_large(self, context: Any) -> None:
        tenant = ""
        if self._gate is not None:
            with contextlib.suppress(Refused):
                tenant = self._gate.caller(context.invocation_metadata()).tenant
        self.pace.limited[tenant, "size"] += 1

    @contextlib.contextmanager
    def _place(self, caller: Caller, peer: str) -> Iterator[Callable[[int], float]]:
        """Of one stream, and how long its messages wait, by their size. Raises Refused."""
        if self._gate is not None:
            with self._gate.rank(caller):
                yield partial(self._gate.due, caller.tenant)
        else:
            assert self.peers is not None
            with self.peers.rank(host_of(peer)):
                yield partial(self.peers.due, host_of(peer))

    async def _caller(self, context: Any) -> Caller:
        if self._gate is None:
            return ANYONE
        try:
            return self._gate.caller(context.invocation_metadata())
        except Refused as error:  # since it was let in
            await context.abort(error.code, str(error))
            raise AssertionError from None

    def _handle(self, caller: Caller, stream: Stream, message: pb.ClientMessage, first: bool) -> None:
        now = self._clock()
        kind = message.WhichOneof("message")
        if first and self.doubt:
            raise NotServing(f"this controller stands by: {self.doubt}")
        if first and kind == "join":
            if caller.expired:
                raise ProtocolError("the token has expired; a new one is needed to join")
            self._jobs.join(stream, message.join, now, caller)
            if seat := self._jobs.member_at(stream):
                self._traces.joined(seat[0], seat[1].rank)
        elif first and kind == "rejoin":
            self._jobs.rejoin(stream, message.rejoin, now, caller)
        elif first:
            raise ProtocolError("the first message must be Join or Rejoin")
        elif kind == "report":
            self._reported(stream, message.report, now)
        elif kind == "held":
            self._jobs.held(stream, message.held, now)
        elif kind == "leave":
            self._jobs.leave(stream, now)
        elif kind == "failed":
            self._jobs.rank_failed(stream, message.failed)
        elif kind == "unanswered":
            self._jobs.unanswered(stream, message.unanswered.half)
        else:
            raise ProtocolError(f"a {kind or 'message without content'} is not expected after Join")
        self._carry_out()
        if seat := self._jobs.member_at(stream):
            seat[1].heard_at = now

    def _reported(self, stream: Stream, report: pb.Report, now: float) -> None:
        """One that comes when the job is over is nobody's."""
        if seat := self._jobs.member_at(stream):
            self.reports.take(*seat, report, now)

    def _lost(self, stream: Stream, why: str) -> None:
        if not self._supervisor.stopping.is_set():  # else it was we who ended it
            what = (why or BROKEN) + self._switches_away(stream)
            if self._state is not None and self._state.shared:
                self._tasks.start(self._lost_where_we_serve(stream, what, self._state), "lost")
            else:
                self._is_lost(stream, what)

    async def _lost_where_we_serve(self, stream: Stream, what: str, state: Store) -> None:
        """Else it is with another controller, and nobody is lost."""
        if await state.is_ours() and not self._supervisor.stopping.is_set():
            self._is_lost(stream, what)

    def _is_lost(self, stream: Stream, what: str) -> None:
        self._jobs.lost(stream, what)
        self._carry_out()

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusReply:  # noqa: ARG002
        return seen_by(await self._caller(context), await self.status())

    async def status(self) -> pb.StatusReply:
        """What there is to know. Counters are missing while their switch is away."""
        status = await status_of(self._jobs, self.fabric, self._clock())
        if self._gate is not None:
            for tenant in status.tenants:
                tenant.refusals = self._gate.refusals[tenant.name]
        return status

    async def SetLoss(self, request: pb.SetLossRequest, context: Any) -> pb.SetLossReply:
        if not 0 <= request.rate <= 1:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"rate={request.rate}: accepted are 0 to 1")
        if not 0 <= request.port < 512:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"port={request.port}: accepted are 0 to 511")
        try:
            chosen = self._chosen_to_lose(request)
        except ValueError as wrong:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{wrong}; nothing was changed")
            raise AssertionError from None
        # To its end, even where the caller has gone: what a switch has been told in part nobody knows.
        error = await asyncio.shield(self._tasks.start(self._set_loss(request, chosen), "loss"))
        caller = await self._caller(context)
        said = {"switch": request.switch, "port": request.port, "rate": request.rate, "peer": context.peer()}
        self._audit.note(caller, "set loss", str(error or "ok"), **said)
        if error is not None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return pb.SetLossReply()

    def _chosen_to_lose(self, request: pb.SetLossRequest) -> list[tuple[str, Aggregator]]:
        """The switches that are meant, with their names. Raises ValueError where one of them cannot do it."""
        known = [(self.fabric.name(number), switch) for number, switch in self._switches.items()]
        chosen = [(name, one) for name, one in known if request.switch in ("", name, one.target)]
        if not chosen:
            names = ", ".join(name for name, _ in known)
            raise ValueError(f"switch={request.switch[:LONGEST_NAME]!r}: accepted are {names}")
        for name, switch in chosen:
            if switch.problem:
                raise ValueError(f"the switch {name} is unavailable: {switch.problem}; choose others with --switch")
        able = [(name, one) for name, one in chosen if not one.ports or request.port in one.ports]
        if able and request.rate == 0:  # where there is no such port, none loses
            return able
        for name, switch in chosen:
            if (name, switch) not in able:
                ports = ", ".join(map(str, sorted(switch.ports)))
                raise ValueError(f"port={request.port}: the ports of the switch {name} are {ports}")
        return chosen

    async def _set_loss(self, request: pb.SetLossRequest, chosen: list[tuple[str, Aggregator]]) -> Exception | None:
        directions: tuple[Direction, ...] = ("in", "out")
        excluded = {pb.IN: "out", pb.OUT: "in"}.get(request.direction)
        done: list[str] = []
        try:
            for name, switch in chosen:
                for direction in directions:
                    if direction != excluded:
                        await apart(switch.set_loss(request.port, direction, request.rate))
                done.append(name)
        except Exception as error:
            return SwitchError(f"{error}; it was set before at {', '.join(done)}") if done else error
        return None


class _Ear:
    """One switch's listener: tells the service which switch it was."""

    def __init__(self, service: Service, switch: int) -> None:
        self._service = service
        self._switch = switch

    def awaits(self, nonce: int) -> bool:
        return self._service.awaits(nonce)

    def heard(self, hello: Heard) -> None:
        self._service.heard(self._switch, hello)

    def connected(self, lost_jobs: frozenset[int], *, restarted: bool) -> None:
        self._service.connected(self._switch, lost_jobs, restarted=restarted)

    def disconnected(self, why: str) -> None:
        """Jobs carry on: the data plane does not need us, until we know that it lost their state."""

    def ports_changed(self) -> None:
        self._service.ports_changed()
