# SPDX-License-Identifier: Apache-2.0
"""Guards of the service: they admit calls by the role of the caller, and by the rate limits of its tenant or host."""

from __future__ import annotations

import hmac
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import grpc.aio

from p4reduce_controller.base.limits import Rates
from p4reduce_controller.base.listening import file_limit, most_connections
from p4reduce_controller.base.sizes import LARGEST_MESSAGE
from p4reduce_controller.tenants.access import ANYONE, METHODS, Caller, Role, Unauthenticated
from p4reduce_controller.tenants.audit import Audit
from p4reduce_controller.tenants.pace import Pace, host_of
from p4reduce_controller.tenants.users import UsersFile

STRANGER = Caller("", Role.VIEWER, "")


class Refused(Exception):
    """An error: a call is not admitted. The message says why. `caller`: the caller, if it is known."""

    def __init__(self, code: grpc.StatusCode, why: str, caller: Caller = STRANGER) -> None:
        super().__init__(why)
        self.code = code
        self.caller = caller


@dataclass(frozen=True)
class Group:
    """The callers that share `rates`, called `key` among the buckets, `label` in metrics and `name` in errors."""

    key: str
    label: str
    name: str
    rates: Rates


class Guard(grpc.aio.ServerInterceptor):
    """An interceptor that admits calls by role and rate.

    `asks`: whether it requires a token.
    `by_peer`: whether the group depends on the peer, which only the call's handler knows.
    """

    asks = True
    by_peer = False

    def __init__(self, audit: Audit, pace: Pace | None = None) -> None:
        self.pace = pace or Pace()
        self.refusals: Counter[str] = Counter()  # by tenant
        self._audit = audit
        self._ranks: Counter[str] = Counter()
        self._connected = 0

    @abstractmethod
    def caller(self, metadata: Any) -> Caller:
        """Return the caller. Raise Refused if it is unknown."""

    @abstractmethod
    def admit(self, given: str, peer: str, method: str = "Status") -> Caller:
        """Return the caller of a call, or HTTP request, that may be made now. Raises Refused.

        `given`: the authorization that the call contains.
        """

    @abstractmethod
    def group_of(self, caller: Caller, peer: str) -> Group: ...

    @contextmanager
    def rank(self, caller: Caller, peer: str) -> Iterator[Callable[[int], float]]:
        """Count a rank while it is connected.

        Yield a function that returns a message's delay from its size. Raises Refused.
        """
        group = self.group_of(caller, peer)
        if self._connected >= (most := most_connections()):
            why = (
                f"{most} ranks are connected, and this controller may open {file_limit()} files, one for each; raise "
                "that limit where the controller is started: `ulimit -Hn`, LimitNOFILE= of systemd, or --ulimit nofile "
                "of a container"
            )
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        if self._ranks[group.key] >= group.rates.ranks:
            self.refusals[group.label] += 1
            self.pace.limited[group.label, "rank"] += 1
            why = f"{group.name} has {group.rates.ranks:g} ranks connected, which is its limit"
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        self._ranks[group.key] += 1
        self._connected += 1
        try:
            yield partial(self._due, caller, peer)
        finally:
            self._connected -= 1
            self._ranks[group.key] -= 1
            if not self._ranks[group.key]:
                del self._ranks[group.key]

    def _due(self, caller: Caller, peer: str, size: int) -> float:
        group = self.group_of(caller, peer)
        wait = self.pace.due(group.key, group.rates.messages, size)
        self.pace.limited[group.label, "message"] += wait > 0
        self.pace.limited[group.label, "size"] += size > LARGEST_MESSAGE
        return wait

    def check_rate(self, group: Group, method: str, caller: Caller = STRANGER) -> None:
        """Raise Refused if the group calls too fast."""
        joins = method == "Session"
        what, rate = ("join", group.rates.joins) if joins else ("call", group.rates.calls)
        if wait := self.pace.wait(group.key, what, rate):
            self.pace.limited[group.label, what] += 1
            does = "starts ranks" if joins else "asks"
            why = f"{group.name} {does} more than {rate:g} times a second; try again in {wait:.1f} s"
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, why, caller)

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        method, given = details.method.rpartition("/")[2], given_in(details.invocation_metadata)

        def problem(peer: str) -> Refused | None:
            try:
                self.admit(given, peer, method)
            except Refused as error:
                return error
            return None

        early = None if self.by_peer else problem("")  # early, because a call that is cancelled at once counts too
        if early is None and not self.by_peer:
            return handler
        ways = (handler.request_streaming, handler.response_streaming)
        kind = "_".join("stream" if streaming else "unary" for streaming in ways)
        behaviour = getattr(handler, kind)

        async def checked(request: Any, context: Any) -> Any:
            error = early or problem(context.peer())
            if error is None:
                return await behaviour(request, context)
            await self.refuse(method, error, context.peer())
            await context.abort(error.code, str(error))
            raise AssertionError

        make = getattr(grpc, f"{kind}_rpc_method_handler")
        return make(checked, handler.request_deserializer, handler.response_serializer)

    async def refuse(self, what: str, error: Refused, peer: str) -> None:
        """Count and log a refusal before the caller is told, and delay callers with many of them."""
        self.refusals[error.caller.tenant] += 1
        self._audit.note(error.caller, what, str(error), refused=True, peer=peer)
        await self.pace.penalty(error.caller.tenant or host_of(peer))


class Gate(Guard):
    """The guard of a controller with users: each user has the rights of its role.

    Methods that are not in METHODS require an operator.
    """

    def __init__(self, users: UsersFile, audit: Audit) -> None:
        super().__init__(audit)
        self.users = users

    def caller(self, metadata: Any) -> Caller:
        return self._caller(given_in(metadata))

    def _caller(self, given: str) -> Caller:
        if not given.startswith("Bearer "):
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, "a token is needed")
        try:
            return self.users.caller(given.removeprefix("Bearer "))
        except Unauthenticated as error:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, str(error)) from None

    def group_of(self, caller: Caller, peer: str) -> Group:  # noqa: ARG002
        quota, tenant = self.users.book.policy.quota(caller.tenant), caller.tenant
        rates = Rates(quota.joins_per_s, quota.calls_per_s, quota.messages_per_s, quota.ranks)
        return Group(tenant, tenant, f"tenant {tenant!r}", rates)

    def admit(self, given: str, peer: str, method: str = "Status") -> Caller:
        caller, joins = self._caller(given), method == "Session"
        least = METHODS.get(method, Role.OPERATOR)
        if caller.role < least:
            role = caller.role.name.lower()
            why = f"{method} is for the role {least.name.lower()}, and {caller.name!r} is a {role}"
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, why, caller)
        if caller.expired and not joins:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, "the token has expired", caller)
        if joins or caller.role is not Role.OPERATOR:
            self.check_rate(self.group_of(caller, peer), method, caller)
        return caller


def given_in(metadata: Any) -> str:
    """Return the authorization that the call contains, or ""."""
    given = next((value for key, value in metadata or () if key == "authorization"), "")
    return given if isinstance(given, str) else bytes(given).decode(errors="replace")


class Peers(Guard):
    """The guard of a controller without users.

    It admits everyone with the token, if there is one, within the limits of the host.
    """

    by_peer = True

    def __init__(self, rates: Rates, pace: Pace, token: str | None = None, audit: Audit | None = None) -> None:
        super().__init__(audit or Audit(), pace)
        self.rates = rates
        self.asks = bool(token)
        self._token = token

    def caller(self, metadata: Any) -> Caller:  # noqa: ARG002
        """Return the caller for everyone, since callers are unknown."""
        return ANYONE

    def group_of(self, caller: Caller, peer: str) -> Group:  # noqa: ARG002
        host = host_of(peer)
        return Group(host, "", host, self.rates)

    def admit(self, given: str, peer: str, method: str = "Status") -> Caller:
        self.check_rate(self.group_of(ANYONE, peer), method)
        wanted = f"Bearer {self._token}".encode()
        if self._token and not hmac.compare_digest(given.encode(errors="replace"), wanted):
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, "the token is wrong" if given else "a token is needed")
        return ANYONE
