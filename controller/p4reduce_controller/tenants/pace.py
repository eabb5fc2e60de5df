# SPDX-License-Identifier: Apache-2.0
"""Rate limits per tenant, or per host if there are no users, so that none slows down others."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections import Counter
from collections.abc import Callable, Iterator
from urllib.parse import unquote

from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from p4reduce_controller.base.limits import BURST_S, JOIN_BURST_S, Bucket

MOST_KNOWN = 4096  # tenants and hosts whose rates are remembered
FREE_REFUSALS = 2.0  # refusals per second without a delay, in bursts of up to ten seconds' worth
REFUSAL_DELAY = 1.0  # seconds by which further refusals are delayed, so that repeating a call at once gains nothing
MOST_DELAYED_REFUSALS = 1024  # concurrent delays; beyond them, refusals are not delayed
UNIT_BYTES = 1024  # bytes of a message; a longer one counts as several


class Pace(Collector):
    """The rate limits. `limited` counts refused and delayed requests by tenant and kind, for the metrics."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.limited: Counter[tuple[str, str]] = Counter()
        self._clock = clock
        self._buckets: dict[tuple[str, str], tuple[float, Bucket]] = {}
        self._penalties = 0

    def wait(self, whose: str, what: str, rate: float) -> float:
        """Take a token of the bucket and return 0.0; if there is none, return the seconds until there will be one."""
        return self._bucket(whose, what, rate).take(self._clock())

    def due(self, whose: str, rate: float, size: int) -> float:
        """Return the seconds that a received message of so many bytes has to wait."""
        return self._bucket(whose, "message", rate).owe(1 + size // UNIT_BYTES, self._clock())

    async def penalty(self, whose: str) -> None:
        """Delay a refusal if its recipient has had many."""
        due = self._bucket(whose, "refusal", FREE_REFUSALS).take(self._clock()) > 0
        if due and self._penalties < MOST_DELAYED_REFUSALS:
            self._penalties += 1
            try:
                await asyncio.sleep(REFUSAL_DELAY)
            finally:
                self._penalties -= 1

    def collect(self) -> Iterator[Metric]:
        found = CounterMetricFamily(
            "p4reduce_limited",
            "Calls that were refused and messages that had to wait, as their tenant was too fast",
            labels=["tenant", "what"],
        )
        for (tenant, what), count in sorted(self.limited.items()):
            found.add_metric([tenant, what], count)
        yield found

    def _bucket(self, whose: str, what: str, rate: float) -> Bucket:
        known_rate, bucket = self._buckets.pop((whose, what), (0.0, None))
        if bucket is None or known_rate != rate:
            bucket = Bucket(rate, self._clock(), JOIN_BURST_S if what == "join" else BURST_S)
        self._buckets[whose, what] = rate, bucket  # the last of the order: the first one has been unused for longest
        if len(self._buckets) > MOST_KNOWN:
            del self._buckets[next(iter(self._buckets))]
        return bucket


def host_of(peer: str) -> str:
    """Return the host's address from gRPC's name of a peer, as "ipv4:10.0.0.9:51934", or from an address.

    For IPv6 it is the network of 64 bits, all of which one host may have. Any other name counts as a host's.
    """
    kind, _, rest = unquote(peer).partition(":")
    text = rest.rpartition(":")[0] if kind in ("ipv4", "ipv6") else peer
    try:
        address = ipaddress.ip_address(text.strip("[]").partition("%")[0])
    except ValueError:
        return peer if kind not in ("ipv4", "ipv6") else text
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:  # a socket of both families has such peers
            return str(address.ipv4_mapped)
        if not address.is_loopback:
            return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)
