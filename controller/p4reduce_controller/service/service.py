# SPDX-License-Identifier: Apache-2.0
"""The gRPC control service: streams of ranks, and calls of users and operators."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import grpc
import grpc.aio

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce_controller.base.listening import ServiceConfig, bound_server
from p4reduce_controller.base.sizes import Sizes
from p4reduce_controller.jobs.jobs import BROKEN
from p4reduce_controller.jobs.reports import Reports
from p4reduce_controller.service.effect_runner import EffectRunner
from p4reduce_controller.service.operations import Operations
from p4reduce_controller.service.streams import FIRST_MESSAGE_TIMEOUT, Context, NotServing, ProtocolError, Stream
from p4reduce_controller.tenants.access import ANYONE, Caller, seen_by
from p4reduce_controller.tenants.gate import Guard, Refused

JOIN_RETRY_AFTER = (
    1.0  # seconds after which a rank learns that the controller waits for a switch, and has to join again
)

Reply = TypeVar("Reply")


@dataclass(eq=False, repr=False)
class Service(rpc.JobsServicer):
    """The gRPC service.

    `listens`: callers are at least told why it does not serve yet.
    `serves`: callers are served.
    `begun`: the service serves, or never will.
    `guard`: admits callers.
    """

    config: ServiceConfig
    guard: Guard
    runner: EffectRunner
    operations: Operations
    reports: Reports
    status: Callable[[], Awaitable[pb.StatusReply]]
    address: str = ""  # once it is bound
    listens: bool = False
    serves: bool = False
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    _server: grpc.aio.Server | None = None

    def bind(self, *interceptors: grpc.aio.ServerInterceptor) -> None:
        """Bind the port, without serving there yet. Raises ListenError."""
        self._server, self.address = bound_server(self.config, [*interceptors, self.guard, Sizes(self._too_large)])
        rpc.add_JobsServicer_to_server(self, self._server)

    async def listen(self) -> None:
        """Tell callers that the controller waits for a switch, until `serve`."""
        assert self._server is not None
        self.listens = True
        await self._server.start()

    async def serve(self) -> None:
        if not self.listens:
            await self.listen()
        self.serves = True
        self.begun.set()

    async def stop(self, grace: float) -> None:
        if self._server is not None:
            if not self.listens:
                await self._server.start()  # gRPC does not release the port of a server that was never started
            await self._server.stop(grace=grace if self.serves else None)

    def _waits_for(self) -> str:
        """Return the reason why the service does not serve yet, or ""."""
        if self.serves or not self.listens:
            return ""
        switches = self.operations.fabric.inventory.switches.values()
        troubles = [(one.target, why.reason) for one in switches if (why := one.unavailable)]
        whys = [why if target in why else f"switch at {target}: {why}" for target, why in troubles]
        because = f" ({'; '.join(whys)})" if whys else ""
        return f"this controller stands by until its first switch answers{because}"

    @property
    def _stands_by(self) -> str:
        """The reason why another controller may serve by now, or ""."""
        why = self.runner.saver.maybe_lost_leadership
        return f"this controller stands by: {why}" if why else ""

    def _too_large(self, context: Any) -> None:
        tenant = ""
        with contextlib.suppress(Refused):
            tenant = self._caller(context).tenant
        self.guard.pace.limited[tenant, "size"] += 1

    def _caller(self, context: Any) -> Caller:
        """Return the caller. Raise Refused if it is not admitted."""
        return self.guard.caller(context.invocation_metadata())

    # Calls of users and operators.

    async def _answer(
        self, context: Any, work: Callable[[Caller, str], Awaitable[Reply]], *, by_standby: bool = False
    ) -> Reply:
        """Do the work of a call. `by_standby`: even if another controller may serve by now."""
        try:
            if why := self._waits_for() or ("" if by_standby else self._stands_by):
                raise Refused(grpc.StatusCode.UNAVAILABLE, why)
            return await work(self._caller(context), context.peer())
        except Refused as error:
            await context.abort(error.code, str(error))
            raise AssertionError from None

    async def Status(self, request: pb.StatusRequest, context: Any) -> pb.StatusReply:  # noqa: ARG002
        async def seen(caller: Caller, _: str) -> pb.StatusReply:
            return seen_by(caller, await self.status())

        return await self._answer(context, seen, by_standby=True)

    async def SetLoss(self, request: pb.SetLossRequest, context: Any) -> pb.SetLossReply:
        return await self._answer(context, partial(self.operations.lose, request), by_standby=True)

    async def AbortJob(self, request: pb.AbortJobRequest, context: Any) -> pb.AbortJobReply:
        return await self._answer(context, partial(self.operations.abort, request))

    async def Slots(self, request: pb.SlotsRequest, context: Any) -> pb.SlotsReply:
        return await self._answer(context, partial(self.operations.slots, request))

    async def AddSwitch(self, request: pb.AddSwitchRequest, context: Any) -> pb.SwitchesReply:
        return await self._answer(context, partial(self.operations.add, request))

    async def DrainSwitch(self, request: pb.DrainSwitchRequest, context: Any) -> pb.SwitchesReply:
        return await self._answer(context, partial(self.operations.drain, request))

    async def RemoveSwitch(self, request: pb.RemoveSwitchRequest, context: Any) -> pb.SwitchesReply:
        return await self._answer(context, partial(self.operations.remove, request))

    # Streams of ranks.

    async def Session(self, _: object, context: Context) -> None:
        caller = ANYONE
        try:
            caller = self._caller(context)
            first = await self._hold_early(context) if self._waits_for() else None
            with self.guard.rank(caller, context.peer()) as due:
                await Stream(context, partial(self._handle, caller), due, first).serve(self._lost)
        except Refused as error:
            self.runner.audit.note(caller, "join", str(error), refused=True, peer=context.peer())
            await context.abort(error.code, str(error))
        except NotServing as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))

    async def _hold_early(self, context: Context) -> pb.ClientMessage | None:
        """Hold a rank that comes before the controller serves, and return its first message. Raises NotServing.

        A rank that rejoins waits until the controller serves. A rank that joins waits for `JOIN_RETRY_AFTER` and is
        then refused.
        """
        message = await asyncio.wait_for(context.read(), FIRST_MESSAGE_TIMEOUT)
        if not isinstance(message, pb.ClientMessage):
            return None
        limit = None if message.WhichOneof("message") == "rejoin" else JOIN_RETRY_AFTER
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.begun.wait(), limit)
        if why := self._waits_for():
            raise NotServing(why)
        return message

    def _handle(self, caller: Caller, stream: Stream, message: pb.ClientMessage, first: bool) -> None:
        now = self.runner.clock()
        kind = message.WhichOneof("message")
        if first and (why := self._stands_by):
            raise NotServing(why)
        if first and kind == "join":
            if caller.expired:
                raise ProtocolError("the token has expired; a new one is needed to join")
            self.runner.jobs.join(stream, message.join, now, caller)
            if found := self.runner.jobs.member_at(stream):
                self.runner.traces.joined(found[0], found[1].rank)
        elif first and kind == "rejoin":
            self.runner.jobs.rejoin(stream, message.rejoin, now, caller)
        elif first:
            raise ProtocolError("the first message must be Join or Rejoin")
        elif kind == "report":
            if found := self.runner.jobs.member_at(stream):  # a report after the job's end is ignored
                self.reports.record(*found, message.report, now)
        elif kind == "held":
            self.runner.jobs.held(stream, message.held, now)
        elif kind == "leave":
            self.runner.jobs.leave(stream, now, lingers=message.leave.lingers)
        elif kind == "failed":
            self.runner.jobs.rank_failed(stream, message.failed)
        elif kind == "unanswered":
            self.runner.jobs.unanswered(stream, message.unanswered.half, now)
        elif kind == "rounds":
            self.runner.jobs.rounds(stream, message.rounds)
        else:
            raise ProtocolError(f"a {kind or 'message without content'} is not expected after Join")
        self.runner.run()
        if found := self.runner.jobs.member_at(stream):
            found[1].heard_at = now

    def _lost(self, stream: Stream, said: str) -> None:
        if self.runner.supervisor.stopping.is_set():
            return  # this controller has ended the stream
        # The other ranks are also told of unavailable switches and ports, which may be why the rank has given up.
        switches = self.operations.fabric.inventory.switches.values()
        whys = [(one.address, why.reason) for one in switches if (why := one.unavailable)]
        away = [f"the switch at {address} is unavailable: {reason}" for address, reason in whys]
        found = self.runner.jobs.member_at(stream)
        what = "; ".join([said or BROKEN, *away, *(found[0].ports_down if found else ())])
        if self.runner.saver.shared:
            self.runner.tasks.start(self._lost_if_leader(stream, what), "lost")
        else:
            self._is_lost(stream, what)

    async def _lost_if_leader(self, stream: Stream, what: str) -> None:
        """Treat the rank as lost, unless another controller serves, because then the rank is connected to that one."""
        store = self.runner.saver.store
        if store and await store.is_ours() and not self.runner.supervisor.stopping.is_set():
            self._is_lost(stream, what)

    def _is_lost(self, stream: Stream, what: str) -> None:
        self.runner.jobs.lost(stream, what)
        self.runner.run()
