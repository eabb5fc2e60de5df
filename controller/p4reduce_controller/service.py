# SPDX-License-Identifier: Apache-2.0
"""The control service: carries ranks' messages to `jobs`, and what follows from them to ranks and to switches."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import grpc.aio

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import jobs_pb2_grpc as rpc
from p4reduce_controller.aggregator import (
    Aggregator,
    Direction,
    Heard,
    Listener,
    Placement,
    SwitchError,
    SwitchUnavailable,
)
from p4reduce_controller.job import Job, Member, State
from p4reduce_controller.jobs import Install, Jobs, Remove, Tell
from p4reduce_controller.state import StateError, StateFile

log = logging.getLogger(__name__)

TICK = 0.1
FIRST_MESSAGE_TIMEOUT = 10.0
CONNECT_WAIT = 5.0  # for a switch that is away when a job wants to be installed
RETRY = 0.5
CLOSE_TIMEOUT = 3.0

_Context = grpc.aio.ServicerContext[pb.ClientMessage, pb.ServerMessage]


class ListenError(Exception):
    """The service cannot listen as asked; the message says what to change."""


@dataclass(frozen=True)
class ServiceConfig:
    """`certificate` and `key` are PEM; without them the service is in the clear, on loopback unless `insecure`."""

    listen: str = "127.0.0.1:7700"
    token: str | None = None
    certificate: bytes | None = None
    key: bytes | None = None
    insecure: bool = False


class _Stream:
    """One rank's stream, as far as the answers to it go."""

    def __init__(self) -> None:
        self.outgoing: asyncio.Queue[tuple[pb.ServerMessage, bool]] = asyncio.Queue()


class Service(rpc.JobsServicer):
    """`over` is set when another controller has taken a switch: see `superseded_by`.

    With a state file, jobs that are ready outlive the service while `keeps_jobs` holds, for the next one to `restore`.
    """

    def __init__(
        self, switches: Sequence[Aggregator], jobs: Jobs, config: ServiceConfig, state: StateFile | None = None
    ) -> None:
        self.keeps_jobs = state is not None
        self.over = asyncio.Event()
        self.superseded_by = ""
        self.listen = ""
        self._switches = tuple(switches)
        self._jobs = jobs
        self._config = config
        self._state = state
        self._server: grpc.aio.Server | None = None
        self._ticker: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._installing: dict[int, asyncio.Task[None]] = {}
        self._stopping = False
        self._hellos: dict[int, int] = {}  # nonce -> the switch with a parent that has not been heard yet
        self._clock = time.monotonic

    # Its own life.

    def restore(self) -> None:
        """Takes up the jobs of an earlier service, before the switches are started. Raises StateError."""
        if self._state is None:
            return
        jobs, children = self._state.load(self._switches, self._jobs.site.trees, self._clock())
        try:
            self._jobs.restore(jobs, children)
        except ValueError as error:
            raise self._state.refusal(str(error)) from None
        for job in jobs:
            for number, placement in job.placements.items():
                self._switches[number].expect(placement)
            log.info("job %r (%d.%d) carries on: %d ranks", job.name, job.number, job.generation, job.world_size)

    @property
    def has_kept_jobs(self) -> bool:
        """Once it is closed: jobs carry on, and the switches have to leave them as they are."""
        return self.keeps_jobs and bool(self._jobs.live)

    async def start(self) -> None:
        """Raises ListenError. Each switch must have been started, with `listener` of its index."""
        check_listen(self._config)
        options = [("grpc.so_reuseport", 0)]  # or a second controller could take the same port
        interceptors = [_TokenCheck(self._config.token)] if self._config.token else []
        server = grpc.aio.server(interceptors=interceptors, options=options)
        rpc.add_JobsServicer_to_server(self, server)
        host = self._config.listen.rpartition(":")[0]
        try:
            if self._config.certificate and self._config.key:
                pair = (self._config.key, self._config.certificate)
                port = server.add_secure_port(self._config.listen, grpc.ssl_server_credentials([pair]))
            else:
                port = server.add_insecure_port(self._config.listen)
        except RuntimeError as error:
            raise ListenError(f"cannot listen on {self._config.listen}: {error}; is the port taken?") from None
        await server.start()
        self._jobs.expect_returns(self._clock())
        self._server = server
        self.listen = f"{host}:{port}"
        self._ticker = asyncio.create_task(self._tick(), name="ticks")
        self._ticker.add_done_callback(_report_failure)

    async def close(self) -> None:
        """Aborts all jobs that are not kept, tells their ranks, and takes them off the switches as far as that can be
        done soon."""
        self._stopping = True
        self._jobs.abort_all(pb.CONTROLLER_STOPPED, "the controller was stopped", but_ready=self.keeps_jobs)
        self._carry_out()
        if self._ticker is not None:
            self._ticker.cancel()
        if self._tasks:
            # What cannot reach a switch now is not waited for.
            away = all(switch.problem for switch in self._switches)
            await asyncio.wait(self._tasks, timeout=TICK if away else CLOSE_TIMEOUT)
        for task in self._tasks:
            task.cancel()
        if self._server is not None:
            await self._server.stop(grace=1.0)

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK)
            self._jobs.tick(self._clock())
            self._carry_out()

    # What the switches report.

    def listener(self, switch: int) -> Listener:
        """Who is told what happens at the switch of that index."""
        return _Ear(self, switch)

    async def find_children(self, timeout: float) -> None:
        """Each switch with a parent says HELLO to it: so the cables are tried, and the parent learns where it is.

        Raises SwitchError naming a switch that is not heard.
        """
        trees = self._jobs.site.trees
        waiting = {secrets.randbits(64): child for child in trees.uplinks}
        self._hellos = waiting
        deadline = self._clock() + timeout
        while waiting:
            for nonce, child in list(waiting.items()):
                uplink = trees.uplinks[child]
                to = self._switches[uplink.parent].address
                await self._switches[child].say_hello(uplink.port, to, child % 256, nonce)
                if self._clock() >= deadline:
                    raise SwitchError(
                        f"no HELLO of the switch {trees.names[child]}, sent out of its port {uplink.port} for "
                        f"{timeout:g} s, has reached its parent {trees.names[uplink.parent]} at {to}"
                    )
            await asyncio.sleep(TICK)

    def heard(self, switch: int, hello: Heard) -> None:
        child = self._hellos.get(hello.nonce)
        if hello.job == 0 and child is not None and self._jobs.site.trees.uplinks[child].parent == switch:
            del self._hellos[hello.nonce]
            self._jobs.child_heard(child, hello)
            return
        if self._jobs.heard(switch, hello, self._clock()):
            self._carry_out()

    def connected(self, switch: int, lost_jobs: frozenset[int]) -> None:
        why = f"the switch at {self._switches[switch].target} was restarted and lost the job's state"
        for job in self._jobs.live:
            if job.number in lost_jobs:
                self._jobs.failed(job, why, pb.SWITCH_LOST)
        self._carry_out()

    def superseded(self, why: str) -> None:
        self.superseded_by = why
        self._stopping = True
        self._jobs.abort_all(pb.CONTROLLER_STOPPED, why)
        self._carry_out()
        self.over.set()

    def _switches_away(self) -> str:
        """Said to those who lose a rank, which may have given up because of that."""
        away = [switch for switch in self._switches if switch.problem]
        return "".join(f"; the switch at {switch.address} is away: {switch.problem}" for switch in away)

    # Effects.

    def _carry_out(self) -> None:
        for effect in self._jobs.take_effects():
            if isinstance(effect, Tell):
                assert isinstance(effect.session, _Stream)
                effect.session.outgoing.put_nowait((effect.message, effect.last))
            elif isinstance(effect, Install):
                self._installing[effect.job.number] = self._spawn(self._install(effect.job))
            elif isinstance(effect, Remove):
                try:
                    self._save()
                except StateError as error:  # it has a job too many, whose ranks will not come back
                    log.error("%s", error)
                self._spawn(self._remove(effect.job, effect.abort))

    def _save(self, *more: Job) -> None:
        """Those that are ready, and `more`. Raises StateError."""
        if self._state is not None:
            ready = [job for job in self._jobs if job.state is State.READY]
            self._state.save([*ready, *more], self._jobs.children, self._clock())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(_report_failure)
        return task

    async def _install(self, job: Job) -> None:
        """On all switches at once. They are all waited for, so that none is written to after the job has failed."""
        work = [
            self._install_on(self._switches[number], job, placement) for number, placement in job.placements.items()
        ]
        problems = [problem for problem in await asyncio.gather(*work) if problem]
        if not problems and job.state is State.INSTALLING:
            try:
                self._save(job)  # before any rank knows that it is ready
            except StateError as error:
                problems = [str(error)]
        if problems:
            self._jobs.failed(job, "; ".join(problems))
        else:
            self._jobs.installed(job)
            log.info("job %r (%d.%d) is ready: %d ranks", job.name, job.number, job.generation, job.world_size)
        self._carry_out()

    async def _install_on(self, switch: Aggregator, job: Job, placement: Placement) -> str:
        """Returns what went wrong, or ""."""
        try:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(switch.wait_connected(), CONNECT_WAIT)
            await switch.install(placement)
            if job.state is State.INSTALLING:
                await switch.reset(placement)
        except SwitchError as error:
            return str(error)
        except Exception as error:  # or its ranks would wait for it
            log.exception("installing job %r at the switch at %s", job.name, switch.target)
            return f"the switch at {switch.target} cannot be set up for it: {type(error).__name__}: {error}"
        return ""

    async def _remove(self, job: Job, abort: pb.Abort | None) -> None:
        if abort is not None:
            log.warning("aborted: %s", abort.message)
        # The ranks are told at once; only the slots have to wait until nothing can reach them. An installation that is
        # under way is waited for, since a write that is cancelled here may still take place there.
        installing = self._installing.pop(job.number, None)
        if installing is not None:
            await asyncio.wait([installing])
        # An ABORT says only who went. Where that is nobody, ranks that are away shall hear why when they come back.
        packet = abort if abort is not None and (abort.HasField("rank") or not job.away) else None
        work = [self._remove_from(self._switches[number], one, packet) for number, one in job.placements.items()]
        await asyncio.gather(*work)
        self._jobs.freed(job)

    async def _remove_from(self, switch: Aggregator, placement: Placement, abort: pb.Abort | None) -> None:
        await self._insist(switch, lambda: switch.fence(placement))
        # Where a switch is away, ranks shall hear that first, from the service.
        if abort is not None and placement.has_ranks and not self._switches_away():
            worker = abort.rank if abort.HasField("rank") else None
            try:
                await switch.abort(placement, worker, abort.reason)
            except SwitchError as error:
                log.warning("%s", error)
        await self._insist(switch, lambda: switch.forget(placement))

    async def _insist(self, switch: Aggregator, work: Callable[[], Awaitable[None]]) -> None:
        """Until it is done: a slot range with entries left must not be given to another job."""
        while True:
            try:
                return await work()
            except SwitchUnavailable:
                if self._stopping:
                    return None
                await switch.wait_connected()
            except SwitchError as error:
                log.warning("%s", error)
                await asyncio.sleep(RETRY)

    # The service.

    async def Session(self, _: object, context: _Context) -> None:  # type: ignore[override]
        stream = _Stream()
        reader = asyncio.create_task(self._read(stream, context))
        reader.add_done_callback(_report_failure)
        try:
            while True:
                message, last = await stream.outgoing.get()
                await context.write(message)
                if last:
                    return
        finally:
            reader.cancel()
            self._lost(stream)

    async def _read(self, stream: _Stream, context: _Context) -> None:
        """Until the client sends no more, which before its Leave means that it is lost."""
        try:
            message = await asyncio.wait_for(context.read(), FIRST_MESSAGE_TIMEOUT)
            kind = message.WhichOneof("message") if isinstance(message, pb.ClientMessage) else None
            if kind == "join":
                self._jobs.join(stream, message.join, self._clock())
            elif kind == "rejoin":
                self._jobs.rejoin(stream, message.rejoin, self._clock())
            else:
                raise _ProtocolError("the first message must be Join or Rejoin")
            self._carry_out()
            while isinstance(message := await context.read(), pb.ClientMessage):
                self._handle(stream, message)
                self._carry_out()
        except (_ProtocolError, asyncio.TimeoutError) as error:
            text = str(error) or f"no Join came within {FIRST_MESSAGE_TIMEOUT:g} s"
            abort = pb.Abort(reason=pb.JOIN_REFUSED, message=text)
            stream.outgoing.put_nowait((pb.ServerMessage(abort=abort), True))
        self._lost(stream)

    def _lost(self, stream: _Stream) -> None:
        if not self._stopping:  # else it was we who ended it
            self._jobs.lost(stream, self._switches_away())
            self._carry_out()

    def _handle(self, stream: _Stream, message: pb.ClientMessage) -> None:
        now = self._clock()
        kind = message.WhichOneof("message")
        if kind == "heartbeat":
            self._jobs.heartbeat(stream, now)
            stream.outgoing.put_nowait((pb.ServerMessage(heartbeat=pb.Heartbeat()), False))
        elif kind == "leave":
            self._jobs.leave(stream, now)
        else:
            raise _ProtocolError(f"a {kind or 'message without content'} is not expected after Join")

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusReply:  # noqa: ARG002
        return await self.status()

    async def status(self) -> pb.StatusReply:
        """What there is to know. Counters are missing while their switch is away."""
        jobs, now = self._jobs, self._clock()
        return pb.StatusReply(
            switches=[await self._describe_switch(number, pool.used) for number, pool in enumerate(jobs.pools)],
            jobs=[_describe(job, now) for job in jobs],
            joins=jobs.joins,
            jobs_started=jobs.started,
            jobs_aborted=jobs.aborted,
            jobs_finished=jobs.finished,
        )

    async def _describe_switch(self, number: int, slots_used: int) -> pb.Switch:
        switch, trees = self._switches[number], self._jobs.site.trees
        uplink = trees.uplinks.get(number)
        described = pb.Switch(
            name=trees.names[number],
            parent=trees.names[uplink.parent] if uplink else "",
            address=switch.target,
            connected=not switch.problem,
            ip=switch.address.ip,
            udp_port=switch.address.udp_port,
            mac=switch.address.mac,
            lanes=switch.layout.lanes,
            block_size=switch.layout.block_size,
            slots=switch.layout.slots,
            slots_used=slots_used,
            problem=switch.problem,
        )
        losses: dict[tuple[int, Direction], int] = {}
        try:
            described.outcomes.update(await switch.outcomes())
            losses = await switch.losses()
        except SwitchError as error:
            described.problem = str(error)
        for port, direction in sorted(losses.keys() | switch.loss_rates.keys()):
            rate = switch.loss_rates.get((port, direction), 0.0)
            which = pb.IN if direction == "in" else pb.OUT
            lost = losses.get((port, direction), 0)
            described.losses.append(pb.PortLoss(port=port, direction=which, rate=rate, lost=lost))
        return described

    async def SetLoss(self, request: pb.SetLossRequest, context: Any) -> pb.SetLossReply:
        if not 0 <= request.rate <= 1:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"rate={request.rate}: 0 to 1 is accepted")
        if not 0 <= request.port < 512:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"port={request.port}: 0 to 511 is accepted")
        known = [switch.target for switch in self._switches]
        if request.switch and request.switch not in known:
            reason = f"switch={request.switch!r}: accepted are {', '.join(known)}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, reason)
        try:
            for switch in self._switches:
                if request.switch in ("", switch.target):
                    if request.direction in (pb.BOTH, pb.IN):
                        await switch.set_loss(request.port, "in", request.rate)
                    if request.direction in (pb.BOTH, pb.OUT):
                        await switch.set_loss(request.port, "out", request.rate)
        except SwitchUnavailable as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        except SwitchError as error:
            await context.abort(grpc.StatusCode.INTERNAL, str(error))
        return pb.SetLossReply()


class _Ear:
    """One switch's listener: tells the service which switch it was."""

    def __init__(self, service: Service, switch: int) -> None:
        self._service = service
        self._switch = switch

    def heard(self, hello: Heard) -> None:
        self._service.heard(self._switch, hello)

    def connected(self, lost_jobs: frozenset[int]) -> None:
        self._service.connected(self._switch, lost_jobs)

    def disconnected(self, why: str) -> None:
        """Jobs carry on: the data plane does not need us, until we know that it lost their state."""

    def superseded(self, why: str) -> None:
        self._service.superseded(why)


def _report_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.error("a task of the service failed", exc_info=task.exception())


class _ProtocolError(Exception):
    """The client does not speak the service's language."""


def check_listen(config: ServiceConfig) -> None:
    """Raises ListenError for an address that is none, or that would lay the service open."""
    host, colon, port = config.listen.rpartition(":")
    if not (host and colon and port.isdigit() and int(port) < 65536):
        raise ListenError(f"--listen {config.listen}: HOST:PORT is accepted, as in 127.0.0.1:7700")
    if bool(config.certificate) != bool(config.key):
        raise ListenError("TLS needs both a certificate and its key")
    if not (config.certificate or config.insecure or _is_loopback(host)):
        raise ListenError(
            f"--listen {config.listen} is open to other hosts without TLS; "
            "give --tls-cert and --tls-key, or --insecure if the network is trusted"
        )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _describe(job: Job, now: float) -> pb.Job:
    return pb.Job(
        name=job.name,
        number=job.number,
        generation=job.generation,
        state=job.state.value,
        world_size=job.world_size,
        first_slots=[taken.first for taken in job.ranges],
        slots=job.slots,
        age_s=now - job.started,
        members=[
            pb.Member(
                rank=member.rank,
                silent_s=now - member.last_sign,
                leaving=member.leaving,
                away=member.session is None,
                places=[_describe_place(member, switch) for switch in range(len(job.ranges))],
            )
            for _, member in sorted(job.members.items())
        ],
    )


def _describe_place(member: Member, switch: int) -> pb.Place:
    heard = member.heard.get(switch)
    if heard is None:
        return pb.Place()
    sender = heard.sender
    return pb.Place(heard=True, port=heard.port, mac=sender.mac, ip=sender.ip, udp_port=sender.udp_port)


class _TokenCheck(grpc.aio.ServerInterceptor):
    """Lets through only calls with `authorization: Bearer <token>`."""

    def __init__(self, token: str) -> None:
        self._wanted = f"Bearer {token}".encode()

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(details)
        given = [value for key, value in details.invocation_metadata or () if key == "authorization"]
        text = given[0] if given else ""
        value = text if isinstance(text, bytes) else text.encode()
        if handler is None or hmac.compare_digest(value, self._wanted):
            return handler
        reason = "the token is wrong" if given else "a token is needed"

        async def refuse(_: Any, context: Any) -> NoReturn:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, reason)
            raise AssertionError

        if handler.response_streaming:
            return grpc.stream_stream_rpc_method_handler(refuse)
        return grpc.unary_unary_rpc_method_handler(refuse)


__all__ = ["ListenError", "Service", "ServiceConfig", "check_listen"]
