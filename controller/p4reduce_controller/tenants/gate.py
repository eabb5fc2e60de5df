# SPDX-License-Identifier: Apache-2.0
"""Lets in calls of users, each to what its role may, and no faster than its tenant may."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc
import grpc.aio

from p4reduce_controller.base.sizes import LARGEST_REQUEST
from p4reduce_controller.tenants.access import METHODS, Caller, Role, Unauthenticated
from p4reduce_controller.tenants.audit import Audit
from p4reduce_controller.tenants.pace import Pace, host_of
from p4reduce_controller.tenants.users import UsersFile

STRANGER = Caller("", Role.VIEWER, "")


class Refused(Exception):
    """A call is not let in; the message says why. `caller`: whose it is, as far as that is known."""

    def __init__(self, code: grpc.StatusCode, why: str, caller: Caller = STRANGER) -> None:
        super().__init__(why)
        self.code = code
        self.caller = caller


class Gate(grpc.aio.ServerInterceptor):
    """Every method that is not in METHODS is the operator's."""

    def __init__(self, users: UsersFile, audit: Audit) -> None:
        self.users = users
        self.pace = Pace()
        self.refusals: Counter[str] = Counter()  # by tenant
        self._audit = audit
        self._ranks: Counter[str] = Counter()

    def caller(self, metadata: Any) -> Caller:
        """Raises Refused."""
        text = given_in(metadata)
        if not text.startswith("Bearer "):
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, "a token is needed")
        try:
            return self.users.caller(text.removeprefix("Bearer "))
        except Unauthenticated as error:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, str(error)) from None

    @contextmanager
    def rank(self, caller: Caller, _: str) -> Iterator[Callable[[int], float]]:
        """While one is connected: how long its messages wait, by their size. Raises Refused."""
        most = self.users.book.policy.quota(caller.tenant).ranks
        if self._ranks[caller.tenant] >= most:
            self.refusals[caller.tenant] += 1
            self.pace.limited[caller.tenant, "rank"] += 1
            why = f"tenant {caller.tenant!r} has {most:g} ranks connected, which is its limit"
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        self._ranks[caller.tenant] += 1
        try:
            yield partial(self._due, caller.tenant)
        finally:
            self._ranks[caller.tenant] -= 1

    def _due(self, tenant: str, size: int) -> float:
        """Seconds until a message of so many bytes is due, in one of the tenant's streams."""
        wait = self.pace.due(tenant, self.users.book.policy.quota(tenant).messages_per_s, size)
        self.pace.limited[tenant, "message"] += wait > 0
        self.pace.limited[tenant, "size"] += size > LARGEST_REQUEST
        return wait

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        method = details.method.rpartition("/")[2]
        try:
            self.check(self.caller(details.invocation_metadata), method)
        except Refused as error:
            refused = error
            return refusing(handler, lambda _: refused, partial(self.refuse, method))
        return handler

    asks = True

    def admit(self, given: str, _: str) -> Caller:
        """Of HTTP: who may look at what there is. `given`: the header Authorization. Raises Refused."""
        caller = self.caller([("authorization", given)] if given else [])
        self.check(caller, "Status")
        return caller

    async def refuse(self, what: str, error: Refused, peer: str) -> None:
        """Before that is told: counts it, writes it down, and has who has heard many wait."""
        tenant = error.caller.tenant
        self.refusals[tenant] += 1
        self._audit.note(error.caller, what, str(error), refused=True, peer=peer)
        await self.pace.penalty(tenant or host_of(peer))

    def check(self, caller: Caller, method: str) -> None:
        """Whether the caller may that now. Raises Refused."""
        least = METHODS.get(method, Role.OPERATOR)
        if caller.role < least:
            role = caller.role.name.lower()
            why = f"{method} is for the role {least.name.lower()}, and {caller.name!r} is a {role}"
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, why, caller)
        joins = method == "Session"
        if caller.expired and not joins:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, "the token has expired", caller)
        if caller.role is Role.OPERATOR and not joins:
            return
        quota = self.users.book.policy.quota(caller.tenant)
        rate = quota.joins_per_s if joins else quota.calls_per_s
        what = "join" if joins else "call"
        if wait := self.pace.wait(caller.tenant, what, rate):
            self.pace.limited[caller.tenant, what] += 1
            does = "starts ranks" if joins else "asks"
            why = f"tenant {caller.tenant!r} {does} more than {rate:g} times a second; try again in {wait:.1f} s"
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, why, caller)


def given_in(metadata: Any) -> str:
    """What a call has as its authorization, or ""."""
    given = next((value for key, value in metadata or () if key == "authorization"), "")
    return given if isinstance(given, str) else bytes(given).decode(errors="replace")


def refusing(
    handler: Any, problem: Callable[[str], Refused | None], refuse: Callable[[Refused, str], Awaitable[None]]
) -> Any:
    """The handler, for calls with which there is no problem; of one, `refuse` is told first. Both are given gRPC's name
    of the peer."""
    kind = f"{'stream' if handler.request_streaming else 'unary'}_{'stream' if handler.response_streaming else 'unary'}"
    behaviour = getattr(handler, kind)

    async def checked(request: Any, context: Any) -> Any:
        error = problem(context.peer())
        if error is None:
            return await behaviour(request, context)
        await refuse(error, context.peer())
        await context.abort(error.code, str(error))
        raise AssertionError

    make = getattr(grpc, f"{kind}_rpc_method_handler")
    return make(checked, handler.request_deserializer, handler.response_serializer)
