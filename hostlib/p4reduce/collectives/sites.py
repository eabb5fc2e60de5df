# SPDX-License-Identifier: Apache-2.0
"""How sums of dense tensors went, and why, call site by call site: those of one have the same size, dtype and so on."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import NamedTuple

from p4reduce.collectives.choice import Estimate, Taken
from p4reduce.collectives.latest import Latest
from p4reduce.protocol.numbers import Wire
from p4reduce.tensors.dense import WireChoice, why_wire, wire_for

MOST = 64
"""Sites that are remembered: those of the latest calls."""


@dataclass(frozen=True)
class CallSite:
    """Calls of `allreduce` and `allreduce_async` for dense tensors of one size and dtype, with one operation."""

    op: str
    """"sum" or "average"."""
    size: int
    """Elements."""
    dtype: str
    wire: Wire
    """In words of which form values travelled."""
    wire_reason: str
    blocks: int
    """Calls that went by blocks."""
    elements: int
    """Calls that went by elements."""
    layout: Taken
    """The last one's."""
    reason: str
    """Why, such as "elements: 1.2 MB a rank in place of 12.6 MB by blocks, at 200 Mbit/s: 48 ms in place of 503 ms"."""
    estimate: Estimate | None
    """By which the last one chose, or what it is by elements that were asked for; None where ranks did not tell each
    other how many elements they have."""

    def __str__(self) -> str:
        return f"{self.op} of {self.size} {self.dtype}, {self.reason}; {self.wire}: {self.wire_reason}"


class Key(NamedTuple):
    """What the calls of a site have in common."""

    op: str
    size: int
    dtype: str
    wire: Wire

    @classmethod
    def of(cls, op: str, size: int, dtype: str, choice: WireChoice) -> Key:
        """dtype: one that can be added."""
        return cls(op, size, dtype, wire_for(dtype, choice))


class Sites:
    """What a communicator's calls were. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sites: Latest[Key, _Calls] = Latest(_Calls, MOST)

    def went(self, key: Key, choice: WireChoice, layout: Taken, why: str, estimate: Estimate | None = None) -> None:
        """One more call. choice: of the wire. why: "" for what the estimate says."""
        with self._lock:
            calls = self._sites[key]
            calls.counts[layout] += 1
            calls.last = _Last(choice, layout, why, estimate)

    def all(self) -> tuple[CallSite, ...]:
        """Those of the latest calls, the last one's last."""
        with self._lock:
            found = [(key, dict(calls.counts), calls.last) for key, calls in self._sites.items()]
        return tuple(
            CallSite(
                **key._asdict(),
                wire_reason=why_wire(key.dtype, last.choice),
                blocks=counts["blocks"],
                elements=counts["elements"],
                layout=last.layout,
                reason=f"{last.layout}: {last.why or last.estimate}",
                estimate=last.estimate,
            )
            for key, counts, last in found
        )


class _Last(NamedTuple):
    choice: WireChoice = "auto"
    layout: Taken = "blocks"
    why: str = ""
    estimate: Estimate | None = None


class _Calls:
    def __init__(self) -> None:
        self.counts: dict[Taken, int] = {"blocks": 0, "elements": 0}
        self.last = _Last()
