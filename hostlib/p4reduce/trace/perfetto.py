# SPDX-License-Identifier: Apache-2.0
"""A trace in the Trace Event Format, which https://ui.perfetto.dev and chrome://tracing open.

The format: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU. Rounds are complete events
("X") of their slots' threads, and waits are nested in them. Lost packets are instant events ("i"). Names are metadata
("M").
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from p4reduce.trace.model import Again, Round, Trace
from p4reduce.trace.summary import merged, summarise

WORKERS, SLOTS, OPERATIONS = 1, 2, 3
"""The processes: workers, with waits for them and their losses; slots, with their rounds; whole operations."""

SENT_AGAIN = {"lost": "lost", "answer": "answer lost", "asked": "asked"}

Event = dict[str, Any]


def write(trace: Trace, file: Path) -> None:
    file.write_text(json.dumps(document(trace), separators=(",", ":")) + "\n")


def document(trace: Trace) -> dict[str, Any]:
    """Return the file's contents."""
    summary = summarise(trace)
    return {
        "traceEvents": list(events(trace)),
        "displayTimeUnit": "ms",
        "otherData": {"title": trace.title, "began": trace.began, "summary": " ".join(summary.said)},
    }


def events(trace: Trace) -> Iterator[Event]:
    """Yield all events. Times and durations are in us, from the beginning of the trace."""
    late = dict.fromkeys(summarise(trace).stragglers, " (straggler)")
    yield from _names(WORKERS, "Workers", [one.name + late.get(one.name, "") for one in trace.workers])
    yield from _names(SLOTS, f"Slots of {trace.title}", trace.slots)
    yield from _names(OPERATIONS, "Operations", [])
    for index in range(len(trace.workers)):
        waits = [one.awaited for one in trace.rounds if one.awaited is not None and index in one.late]
        for begin, end in merged(waits):
            yield _span(WORKERS, index, "awaited", begin, end, "awaited")
    free = [0.0] * len(trace.slots)
    for one in sorted(trace.rounds, key=lambda one: (one.slot, one.begin)):
        begin = max(one.begin, free[one.slot])  # rounds of a slot must not overlap, even if clocks differ
        free[one.slot] = max(begin, one.end)
        yield from _round(trace, replace(one, begin=begin, end=free[one.slot]))
    for number, (begin, end, rounds) in enumerate(_operations(trace)):
        # Operations overlap, because slots go on to the next one. So each is an asynchronous event of its own.
        plain = {"pid": OPERATIONS, "tid": 0, "cat": "operation", "name": f"operation {number}", "id": number}
        yield {**plain, "ph": "b", "ts": begin, "args": {"rounds": rounds}}
        yield {**plain, "ph": "e", "ts": end}


def _round(trace: Trace, one: Round) -> Iterator[Event]:
    last = None if one.last is None else trace.workers[one.last].name
    arguments = {
        "seq": one.seq,
        "complete": one.complete,
        "completed by": last,
        "blocks": one.blocks,
        "blocks skipped before": one.skipped,
        "sent again": sum(again.kind != "asked" for again in one.again),
    }
    name = f"round {one.seq}" if one.active else f"announce {one.seq}"
    yield {**_span(SLOTS, one.slot, name, one.begin, one.end, "round"), "args": arguments}
    if one.awaited is not None:
        begin, end = max(one.awaited[0], one.begin), min(one.awaited[1], one.end)
        awaited = ", ".join(trace.workers[index].name for index in one.late)
        yield _span(SLOTS, one.slot, f"waits for {awaited}", begin, max(begin, end), "awaited")
    for again in one.again:
        yield _instant(WORKERS, again.worker, again, trace)
        yield _instant(SLOTS, one.slot, again, trace)


def _span(process: int, thread: int, name: str, begin: float, end: float, category: str) -> Event:
    length = round(end - begin, 1)
    return {"ph": "X", "pid": process, "tid": thread, "name": name, "cat": category, "ts": begin, "dur": length}


def _instant(process: int, thread: int, again: Again, trace: Trace) -> Event:
    name = f"{SENT_AGAIN[again.kind]}: {trace.workers[again.worker].name}"
    return {"ph": "i", "pid": process, "tid": thread, "name": name, "cat": "again", "ts": again.at, "s": "t"}


def _names(process: int, name: str, threads: Iterable[str]) -> Iterator[Event]:
    plain = {"ph": "M", "pid": process, "ts": 0}
    yield {**plain, "tid": 0, "name": "process_name", "args": {"name": name}}
    yield {**plain, "tid": 0, "name": "process_sort_index", "args": {"sort_index": process}}
    for index, thread in enumerate(threads):
        yield {**plain, "tid": index, "name": "thread_name", "args": {"name": thread}}
        yield {**plain, "tid": index, "name": "thread_sort_index", "args": {"sort_index": index}}


def _operations(trace: Trace) -> list[tuple[float, float, int]]:
    """Return begin, end and number of rounds of each operation, in order."""
    found: dict[int, tuple[float, float, int]] = {}
    for one in trace.rounds:
        begin, end, rounds = found.get(one.operation, (one.begin, one.end, 0))
        found[one.operation] = (min(begin, one.begin), max(end, one.end), rounds + 1)
    return sorted(found.values())
