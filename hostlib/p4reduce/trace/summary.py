# SPDX-License-Identifier: Apache-2.0
"""What a trace says, in numbers and in words: the same for the page, for the terminal and for JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

from p4reduce.trace.model import Trace

STRAGGLES = 0.2
"""The share of the time for which a straggler is awaited, at least."""


@dataclass(frozen=True)
class Share:
    """Of one worker. awaited_s: while all others of a round had sent, slots side by side counted once. sent: packets,
    each time that one was. lost: of these, on the way there or their answer on the way back. asked: sent again though
    nothing was lost. left_out: blocks that others had and this one did not."""

    name: str
    awaited_s: float
    awaited: float
    sent: int
    lost: int
    asked: int
    left_out: int


@dataclass(frozen=True)
class Summary:
    """seconds: of the trace. busy_s: with a round under way. carried, skipped: blocks. said: all that in words."""

    seconds: float
    busy_s: float
    operations: int
    rounds: int
    unfinished: int
    packets: int
    lost: int
    asked: int
    carried: int
    skipped: int
    workers: list[Share]
    stragglers: list[str]
    said: list[str] = field(default_factory=list)

    @property
    def loss(self) -> float:
        """The share of workers' packets that were lost, or whose answers were."""
        sent = sum(one.sent for one in self.workers)
        return self.lost / sent if sent else 0.0

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "loss": self.loss}


def summarise(trace: Trace) -> Summary:
    busy = covered((one.begin, one.end) for one in trace.rounds)
    shares = [_share(trace, index, busy) for index in range(len(trace.workers))]
    most = max((one.awaited for one in shares), default=0.0)
    made = Summary(
        seconds=trace.length / 1e6,
        busy_s=busy / 1e6,
        operations=len({one.operation for one in trace.rounds}),
        rounds=len(trace.rounds),
        unfinished=sum(not one.complete for one in trace.rounds),
        packets=trace.packets,
        lost=sum(one.lost for one in shares),
        asked=sum(one.asked for one in shares),
        carried=sum(one.active.bit_count() for one in trace.rounds),
        skipped=sum(one.skipped for one in trace.rounds),
        workers=shares,
        stragglers=[one.name for one in shares if one.awaited >= max(STRAGGLES, most / 2)],
    )
    made.said.extend(_sentences(trace, made))
    return made


def _share(trace: Trace, index: int, busy: float) -> Share:
    waits = covered(one.awaited for one in trace.rounds if one.awaited is not None and one.last == index)
    again = [one.kind for each in trace.rounds for one in each.again if one.worker == index]
    parts = [(each.active, part.present) for each in trace.rounds for part in each.parts if part.worker == index]
    return Share(
        trace.workers[index].name,
        waits / 1e6,
        waits / busy if busy else 0.0,
        len(parts) + len(again),
        sum(kind != "asked" for kind in again),
        again.count("asked"),
        sum((active & ~present).bit_count() for active, present in parts),
    )


def covered(spans: Iterable[tuple[float, float]]) -> float:
    """The length of all spans together, where they overlap counted once."""
    total, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        total += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def _sentences(trace: Trace, made: Summary) -> Iterable[str]:
    yield (
        f"{made.operations:,} operations of {made.rounds:,} rounds in {len(trace.slots)} slots, by "
        f"{len(trace.workers)} workers, within {duration(made.seconds)}."
    )
    late = sorted((one for one in made.workers if one.awaited_s > 0), key=lambda one: -one.awaited_s)
    for one in late:
        if one.name in made.stragglers:
            yield f"{one.name} was awaited for {one.awaited:.0%} of the time, {duration(one.awaited_s)}: a straggler."
    if not made.stragglers:
        first = f": {late[0].name} longest, {duration(late[0].awaited_s)}" if late else ""
        yield f"Nobody was a straggler{first}."
    if made.lost:
        each = ", ".join(
            f"{one.name} {one.lost}" for one in sorted(made.workers, key=lambda one: -one.lost) if one.lost
        )
        yield f"{made.lost:,} packets or answers were lost, {made.loss:.2%} of what workers sent: {each}."
    else:
        yield "Nothing was lost."
    if made.asked:
        yield f"{made.asked:,} packets were sent again only to ask whether others had come."
    if made.carried or made.skipped:
        share = made.skipped / (made.carried + made.skipped)
        yield f"{made.skipped:,} blocks between {made.carried:,} others were zero at all workers: skipped, {share:.0%}."
    if made.unfinished:
        yield f"{made.unfinished:,} rounds have no result in the trace."
    yield from trace.notes


def duration(seconds: float) -> str:
    """As "1.25 s", "3.1 ms" or "40 µs"."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"
