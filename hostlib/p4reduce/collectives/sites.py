# SPDX-License-Identifier: Apache-2.0
"""Call sites of dense sums: for each size, dtype, operation and wire, which layout calls had, and why."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import NamedTuple

from p4reduce.collectives.choice import Estimate
from p4reduce.collectives.plan import Taken
from p4reduce.protocol.numbers import Wire
from p4reduce.tensors.spec import WireChoice, why_wire

MOST_SITES = 64
"""Most sites that are remembered: those with the latest calls."""


@dataclass(frozen=True)
class CallSite:
    """Calls of `allreduce` and `allreduce_async` for dense tensors of one size and dtype, with one operation."""

    op: str
    """"sum" or "average"."""
    size: int
    """Elements."""
    dtype: str
    wire: Wire
    """Integer type of the values in packets."""
    wire_reason: str
    blocks: int
    """Calls that went by blocks."""
    elements: int
    """Calls that went by elements."""
    layout: Taken
    """Layout of the last call."""
    reason: str
    """Why, such as "elements: 1.2 MB a rank in place of 12.6 MB by blocks, at 200 Mbit/s: 48 ms in place of 503 ms"."""
    estimate: Estimate | None
    """Costs of both layouts in the last call; None if ranks did not tell each other how many non-zeros they have."""

    def __str__(self) -> str:
        return f"{self.op} of {self.size} {self.dtype}, {self.reason}; {self.wire}: {self.wire_reason}"


class Key(NamedTuple):
    """The properties that the calls of a site have in common."""

    op: str
    size: int
    dtype: str
    wire: Wire


class Sites:
    """The call sites of a communicator. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sites: dict[Key, _Calls] = {}  # the last call's last

    def went(self, key: Key, choice: WireChoice, layout: Taken, why: str, estimate: Estimate | None = None) -> None:
        """Count one more call. choice: the wire that was asked for. why: "" if the estimate is the reason."""
        with self._lock:
            calls = self._sites.pop(key, None) or _Calls()
            self._sites[key] = calls
            if len(self._sites) > MOST_SITES:
                del self._sites[next(iter(self._sites))]
            calls.counts[layout] += 1
            calls.last = choice, layout, why, estimate

    def all(self) -> tuple[CallSite, ...]:
        """Return the sites of the latest calls, the newest last."""
        with self._lock:
            return tuple(calls.as_site(key) for key, calls in self._sites.items())


class _Calls:
    def __init__(self) -> None:
        self.counts: dict[Taken, int] = {"blocks": 0, "elements": 0}
        self.last: tuple[WireChoice, Taken, str, Estimate | None] = ("auto", "blocks", "", None)

    def as_site(self, key: Key) -> CallSite:
        choice, layout, why, estimate = self.last
        return CallSite(
            **key._asdict(),
            wire_reason=why_wire(key.dtype, choice),
            blocks=self.counts["blocks"],
            elements=self.counts["elements"],
            layout=layout,
            reason=f"{layout}: {why or estimate}",
            estimate=estimate,
        )
