# SPDX-License-Identifier: Apache-2.0
"""The summary of a trace, in numbers and in words: the same for the page, the terminal and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median_low
from typing import Any

from p4reduce.control.diagnostics import counted
from p4reduce.trace.model import CAPTURE_WHOLE, Trace

STRAGGLER_SHARE = 0.2
"""A straggler is awaited for at least this share of the time with rounds under way."""
STRAGGLER_FACTOR = 2
"""A straggler is awaited for at least this many times as long as the median of the other workers."""


_UNKNOWN = "stragglers, losses and rounds without a result are not known"


@dataclass(frozen=True)
class Share:
    """One worker's part of the summary.

    awaited_s: seconds in which all others of a round had sent; slots that wait at the same time count once.
    awaited: that time as a share of `Summary.busy_s`.
    sent: packets sent, including those sent again.
    lost: packets of these that were lost, or whose answers were.
    asked: packets that were sent again although nothing was lost.
    left_out: blocks that others had and this worker did not.
    """

    name: str
    awaited_s: float
    awaited: float
    sent: int
    lost: int
    asked: int
    left_out: int


@dataclass(frozen=True)
class Summary:
    """The summary of a whole trace.

    seconds: length of the trace.
    busy_s: time with a round under way.
    carried: blocks that rounds carried.
    skipped: blocks that were zero at all workers, as far as packets show. Blocks after the last one that an operation
        names are not counted.
    awaited_last: workers that were awaited when the trace ended.
    awaited_last_s: for how long they had been awaited.
    silent: workers without a packet in the trace.
    missed: packets that could not be recorded.
    cut: packets that were captured without their whole header.
    said: all this in words.

    If packets were missed or cut, it is not known who was awaited, what was lost or asked for, and which rounds have no
    result. Then `said` contains none of it, and all counts are lower bounds.
    """

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
    awaited_last: list[str]
    awaited_last_s: float
    silent: list[str]
    missed: int
    cut: int
    said: list[str] = field(default_factory=list)

    @property
    def is_incomplete(self) -> bool:
        """Whether packets are known to be missing from the trace."""
        return bool(self.missed or self.cut)

    @property
    def loss(self) -> float:
        """The share of workers' packets that were lost, or whose answers were."""
        sent = sum(one.sent for one in self.workers)
        return self.lost / sent if sent else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the summary for JSON. Values that are not known are None."""
        made = {**asdict(self), "loss": self.loss}
        if self.is_incomplete:
            made.update(
                dict.fromkeys(("lost", "loss", "asked", "unfinished", "stragglers", "awaited_last", "awaited_last_s"))
            )
            unknown: dict[str, None] = dict.fromkeys(("awaited_s", "awaited", "lost", "asked"))
            made["workers"] = [{**one, **unknown} for one in made["workers"]]
        return made


def summarise(trace: Trace) -> Summary:
    busy = covered((one.begin, one.end) for one in trace.rounds)
    shares = [_share(trace, index, busy) for index in range(len(trace.workers))]
    open_ = [one for one in trace.rounds if one.missing and one.awaited is not None]
    last = {index for one in open_ for index in one.missing}
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
        skipped=sum(one.skipped for one in trace.rounds) + trace.ended,
        workers=shares,
        stragglers=[one.name for index, one in enumerate(shares) if _straggles(shares, index)],
        awaited_last=[one.name for index, one in enumerate(trace.workers) if index in last],
        awaited_last_s=max((one.awaited[1] - one.awaited[0] for one in open_ if one.awaited is not None), default=0.0)
        / 1e6,
        silent=trace.silent,
        missed=trace.missed,
        cut=trace.cut,
    )
    made.said.extend(_sentences(trace, made))
    return made


def _straggles(shares: Sequence[Share], index: int) -> bool:
    """Return whether a worker was awaited for long, and for much longer than others: some worker always is last."""
    own = shares[index].awaited
    others = [one.awaited for other, one in enumerate(shares) if other != index]
    return own >= STRAGGLER_SHARE and (not others or own >= STRAGGLER_FACTOR * median_low(others))


def _share(trace: Trace, index: int, busy: float) -> Share:
    waits = covered(one.awaited for one in trace.rounds if one.awaited is not None and index in one.late)
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
    """Return the total length of all spans. Where they overlap, it counts once."""
    return sum(end - begin for begin, end in merged(spans))


def merged(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the spans in order, with those that overlap or touch merged into one."""
    made: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if made and begin <= made[-1][1]:
            made[-1] = (made[-1][0], max(made[-1][1], end))
        else:
            made.append((begin, end))
    return made


def _sentences(trace: Trace, made: Summary) -> Iterable[str]:
    if made.missed:
        yield f"{counted(made.missed, 'packet')} came faster than they could be recorded: {_UNKNOWN}."
    if made.cut:
        yield f"{counted(made.cut, 'packet')} cut before the end of the header: {_UNKNOWN}; {CAPTURE_WHOLE}."
    least = "At least " if made.is_incomplete else ""
    yield (
        f"{least}{counted(made.operations, 'operation')} of {counted(made.rounds, 'round')} in "
        f"{counted(len(trace.slots), 'slot')}, by {counted(len(trace.workers), 'worker')}, "
        f"within {duration(made.seconds)}."
    )
    yield from _lateness(made)
    yield from _losses(made)
    if made.carried or made.skipped:
        share = f", {at_least(made.skipped, made.carried)}" if made.skipped else ""
        yield (
            f"{counted(made.carried, 'block')} carried, at least {made.skipped:,} skipped because they were zero at "
            f"all workers{share}. Packets do not show the zero blocks after a tensor's last non-zero block; the ranks' "
            "stats() count them."
        )
    if made.unfinished and not made.is_incomplete:
        yield f"{counted(made.unfinished, 'round')} without a result in the trace."
    yield from trace.notes


def _lateness(made: Summary) -> Iterable[str]:
    for name in made.silent:
        if made.is_incomplete:
            yield f"No packet of {name} was recorded."
        else:
            yield (
                f"{name} has sent nothing in this trace: it was awaited all the time, or its packets do not pass where "
                "this was recorded."
            )
    if made.is_incomplete:
        return
    if made.awaited_last:
        names = ", ".join(made.awaited_last)
        yield f"When the trace ended, the others had waited for {names} for {duration(made.awaited_last_s)}."
    late = sorted((one for one in made.workers if one.awaited_s > 0), key=lambda one: -one.awaited_s)
    for one in late:
        if one.name in made.stragglers:
            yield (
                f"{one.name} is a straggler: the others waited for it during {one.awaited:.0%} of the "
                f"{duration(made.busy_s)} with rounds under way, {duration(one.awaited_s)}."
            )
    if made.stragglers or made.awaited_last:
        return
    first = f": {late[0].name} longest, {duration(late[0].awaited_s)}" if late else ""
    yield f"Of the others, none was a straggler{first}." if made.silent else f"No worker was a straggler{first}."


def _losses(made: Summary) -> Iterable[str]:
    if made.is_incomplete:
        return
    if made.lost:
        each = ", ".join(
            f"{one.name} {one.lost}" for one in sorted(made.workers, key=lambda one: -one.lost) if one.lost
        )
        yield f"{made.lost:,} packets or answers were lost, {made.loss:.2%} of what workers sent: {each}."
    else:
        yield "Nothing was lost."
    if made.asked:
        yield f"{made.asked:,} packets were sent again only to ask whether the others' packets had come."


def at_least(part: int, rest: int) -> str:
    """Return the share of `part`, in percent, rounded down: "99.97 %"."""
    return f"{part * 10_000 // (part + rest) / 100:g} %"


def duration(seconds: float) -> str:
    """Return a duration in words, such as "1.25 s", "3.1 ms" or "40 µs"."""
    if seconds >= 1:
        return f"{seconds:.3g} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} µs"
