# SPDX-License-Identifier: Apache-2.0
"""Lets in calls no faster than the host may that they come from, where nobody knows whose they are."""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import unquote

import grpc
import grpc.aio

from p4reduce_controller.tenants.gate import Refused, refusing
from p4reduce_controller.tenants.limits import Rates
from p4reduce_controller.tenants.pace import Pace
from p4reduce_controller.tenants.sizes import LARGEST_REQUEST


class Peers(grpc.aio.ServerInterceptor):
    def __init__(self, rates: Rates, pace: Pace) -> None:
        self.rates = rates
        self.pace = pace
        self._ranks: Counter[str] = Counter()

    def due(self, host: str, size: int) -> float:
        """Seconds until a message of so many bytes is due, in one of the host's streams."""
        wait = self.pace.due(host, self.rates.messages, size)
        self.pace.limited["", "message"] += wait > 0
        self.pace.limited["", "size"] += size > LARGEST_REQUEST
        return wait

    async def intercept_service(self, continuation: Any, details: grpc.HandlerCallDetails) -> Any:
        handler = await continuation(details)
        if handler is None:
            return None
        method = details.method.rpartition("/")[2]

        def problem(peer: str) -> Refused | None:
            try:
                self.check(host_of(peer), method)
            except Refused as error:
                return error
            return None

        return refusing(handler, problem, lambda peer: self.pace.penalty(host_of(peer)))

    def check(self, host: str, method: str) -> None:
        """Whether the host may call that now. Raises Refused."""
        joins = method == "Session"
        what, rate = ("join", self.rates.joins) if joins else ("call", self.rates.calls)
        if wait := self.pace.wait(host, what, rate):
            self.pace.limited["", what] += 1
            does = "begins ranks" if joins else "asks"
            why = f"{host} {does} more than {rate:g} times a second; again in {wait:.1f} s"
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, why)

    @contextmanager
    def rank(self, host: str) -> Iterator[None]:
        """While one is connected. Raises Refused."""
        if self._ranks[host] >= self.rates.ranks:
            self.pace.limited["", "rank"] += 1
            why = f"{host} has {self.rates.ranks} ranks connected, and may have no more"
            raise Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, why)
        self._ranks[host] += 1
        try:
            yield
        finally:
            self._ranks[host] -= 1
            if not self._ranks[host]:
                del self._ranks[host]


def host_of(peer: str) -> str:
    """Of gRPC's name of a peer, as "ipv4:10.0.0.9:51934", or of an address: the address, of IPv6 its network of 64
    bits, which one host has all of. Whatever else is a name is one host's."""
    kind, _, rest = unquote(peer).partition(":")
    text = rest.rpartition(":")[0] if kind in ("ipv4", "ipv6") else peer
    try:
        address = ipaddress.ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return peer if kind not in ("ipv4", "ipv6") else text
    if address.version == 6 and not address.is_loopback:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
