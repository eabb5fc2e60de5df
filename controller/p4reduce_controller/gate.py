# SPDX-License-Identifier: Apache-2.0
"""Lets in calls of users, each to what its role may, and no faster than its tenant may."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import grpc
import grpc.aio

from p4reduce_controller.access import METHODS, Caller, Role, Unauthenticated
from p4reduce_controller.audit import Audit
from p4reduce_controller.limits import Bucket
from p4reduce_controller.users import UsersFile

STRANGER = Caller("", Role.VIEWER, "")


class Refused(Exception):
    """A call is not let in; the message says why."""

    def __init__(self, code: grpc.StatusCode, why: str) -> None:
        super().__init__(why)
        self.code = code


class Gate(grpc.aio.ServerInterceptor):
    """Every method that is not in METHODS is the operator's."""

    def __init__(self, users: UsersFile, audit: Audit) -> None:
        self.users = users
        self.refusals: Counter[str] = Counter()  # by tenant
        self._audit = audit
        self._buckets: dict[tuple[str, bool], tuple[float, Bucket]] = {}
        self._ranks: Counter[str] = Counter()

    def caller(self, metadata: Any) -> Caller:
        """Raises Refused."""
        given = [value for key, value in metadata or () if key == "authorization"]
        text = given[0] if given else ""
        if not isinstance(text, str) or not text.startswith("Bearer "):
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, "a token is needed")
        try:
            return self.users.caller(text.removeprefix("Bearer "))
        except Unauthenticated as error:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, str(error)) from None

    @contextmanager
    def rank(self, caller: Caller) -> Iterator[None]:
        """While one is connected. Raises Refused."""
        most = self.users.book.policy.quota(caller.tenant).ranks
        if self._ranks[caller.tenant] >= most:
            self.refusals[caller.tenant] += 1
            why = f"tenant {caller.tenant!r} has {most:g} ranks connected, and may have no more"
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        self._ranks[caller.tenant] += 1
        try:
            yield
        finally:
            self._ranks[caller.tenant] -= 1

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        method = details.method.rpartition("/")[2]
        caller = STRANGER
        try:
            caller = self.caller(details.invocation_metadata)
            self.check(caller, method)
        except Refused as error:
            self.refusals[caller.tenant] += 1
            return _refusing(handler, self._audit, caller, method, error)
        return handler

    def check(self, caller: Caller, method: str) -> None:
        """Whether the caller may that now. Raises Refused."""
        least = METHODS.get(method, Role.OPERATOR)
        if caller.role < least:
            role = caller.role.name.lower()
            why = f"{method} is for the role {least.name.lower()}, and {caller.name!r} is a {role}"
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, why)
        joins = method == "Session"
        if caller.expired and not joins:
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, "the token has expired")
        if caller.role is Role.OPERATOR and not joins:
            return
        quota = self.users.book.policy.quota(caller.tenant)
        rate = quota.joins_per_s if joins else quota.calls_per_s
        if wait := self._bucket(caller.tenant, joins, rate).take(time.monotonic()):
            what = "begins ranks" if joins else "asks"
            why = f"tenant {caller.tenant!r} {what} more than {rate:g} times a second; again in {wait:.1f} s"
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, why)

    def _bucket(self, tenant: str, joins: bool, rate: float) -> Bucket:
        known_rate, bucket = self._buckets.get((tenant, joins), (0.0, None))
        if bucket is None or known_rate != rate:
            bucket = Bucket(rate, time.monotonic())
            self._buckets[tenant, joins] = rate, bucket
        return bucket


def _refusing(handler: Any, audit: Audit, caller: Caller, method: str, error: Refused) -> Any:
    async def refuse(_: Any, context: Any) -> NoReturn:
        audit.note(caller, method, str(error), refused=True, peer=context.peer())
        await context.abort(error.code, str(error))
        raise AssertionError

    kinds = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    return kinds[handler.request_streaming, handler.response_streaming](refuse)
