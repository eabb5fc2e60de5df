# SPDX-License-Identifier: Apache-2.0
"""Lets in calls with the one token, if there is one, and no faster than the host may that they come from: where nobody
knows whose they are."""

from __future__ import annotations

import hmac
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import grpc
import grpc.aio

from p4reduce_controller.base.limits import Rates
from p4reduce_controller.base.sizes import LARGEST_REQUEST
from p4reduce_controller.tenants.access import ANYONE, Caller
from p4reduce_controller.tenants.audit import Audit
from p4reduce_controller.tenants.gate import Refused, given_in, refusing
from p4reduce_controller.tenants.pace import Pace, host_of


class Peers(grpc.aio.ServerInterceptor):
    def __init__(self, rates: Rates, pace: Pace, token: str | None = None, audit: Audit | None = None) -> None:
        self.rates = rates
        self.pace = pace
        self._token = token
        self._audit = audit or Audit()
        self._ranks: Counter[str] = Counter()

    def _due(self, host: str, size: int) -> float:
        """Seconds until a message of so many bytes is due, in one of the host's streams."""
        wait = self.pace.due(host, self.rates.messages, size)
        self.pace.limited["", "message"] += wait > 0
        self.pace.limited["", "size"] += size > LARGEST_REQUEST
        return wait

    def caller(self, _: Any) -> Caller:
        """Nobody knows who calls."""
        return ANYONE

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        method = details.method.rpartition("/")[2]
        given = given_in(details.invocation_metadata)

        def problem(peer: str) -> Refused | None:
            try:
                self._check(given, host_of(peer), method)
            except Refused as error:
                return error
            return None

        return refusing(handler, problem, partial(self.refuse, method))

    @property
    def asks(self) -> bool:
        """For a token."""
        return bool(self._token)

    def admit(self, given: str, peer: str) -> Caller:
        """Of HTTP: who may look at what there is. `given`: the header Authorization. Raises Refused."""
        self._check(given, host_of(peer), "page")
        return ANYONE

    async def refuse(self, what: str, error: Refused, peer: str) -> None:
        """Before that is told: writes it down, and has who has heard many wait."""
        self._audit.note(error.caller, what, str(error), refused=True, peer=peer)
        await self.pace.penalty(host_of(peer))

    def _check(self, given: str, host: str, method: str) -> None:
        """Whether the host may call that now. Raises Refused."""
        joins = method == "Session"
        what, rate = ("join", self.rates.joins) if joins else ("call", self.rates.calls)
        if wait := self.pace.wait(host, what, rate):
            self.pace.limited["", what] += 1
            does = "starts ranks" if joins else "asks"
            why = f"{host} {does} more than {rate:g} times a second; try again in {wait:.1f} s"
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        wanted = f"Bearer {self._token}".encode()
        if self._token and not hmac.compare_digest(given.encode(errors="replace"), wanted):
            raise Refused(grpc.StatusCode.UNAUTHENTICATED, "the token is wrong" if given else "a token is needed")

    @contextmanager
    def rank(self, _: Caller, peer: str) -> Iterator[Callable[[int], float]]:
        """While one is connected: how long its messages wait, by their size. Raises Refused."""
        host = host_of(peer)
        if self._ranks[host] >= self.rates.ranks:
            self.pace.limited["", "rank"] += 1
            why = f"{host} has {self.rates.ranks} ranks connected, which is its limit"
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        self._ranks[host] += 1
        try:
            yield partial(self._due, host)
        finally:
            self._ranks[host] -= 1
            if not self._ranks[host]:
                del self._ranks[host]
