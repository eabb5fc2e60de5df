# SPDX-License-Identifier: Apache-2.0
"""A trace: the rounds of a job, and for each the workers that were awaited, the losses and the skipped blocks."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from p4reduce.errors import P4ReduceError

VERSION = 1
CAPTURE_WHOLE = "capture whole packets (tcpdump -s 0)"

Kind = Literal["lost", "answer", "asked"]
"""Why a packet was sent again.

"lost": the packet was lost, or its answer, if only the sender was captured. "answer": the answer was lost on its way to
this worker alone. "asked": nothing was lost, and the worker asked whether the others' packets had come.
"""


@dataclass(frozen=True)
class Worker:
    """A worker of a switch. number: its number in packets, which is the rank if one switch has all ranks."""

    name: str
    number: int
    address: str


class Again(NamedTuple):
    """A packet that was sent again. worker: its index in the trace. at: us."""

    worker: int
    at: float
    kind: Kind


class Part(NamedTuple):
    """A worker's packet in a round. at: when it was first sent, us. present: lanes with its values, as a mask."""

    worker: int
    at: float
    present: int


@dataclass
class Round:
    """One aggregation in a slot. Times are in us since the trace began.

    slot: its index in the trace.
    operation: the operation's part of the fingerprint.
    begin: the time of the first packet.
    end: the time of the first RESULT. Without a RESULT the round is not `complete`. Then it is the end of the trace, or
        the round's last packet if its slot went on to later rounds.
    active: lanes that carry values.
    blocks: the numbers of these blocks in their streams, lane by lane, if known.
    skipped: blocks between them and those of the round before, which are zero at all workers; 0 if the trace lacks that
        round's RESULT.
    last: the worker whose packet completed the round.
    awaited: from when all others had sent until when that worker had; None if it was not late.
    missing: the workers that had not sent when the trace ended.
    """

    slot: int
    seq: int
    operation: int
    begin: float
    end: float
    complete: bool = False
    active: int = 0
    blocks: list[int] = field(default_factory=list)
    skipped: int = 0
    last: int | None = None
    awaited: tuple[float, float] | None = None
    parts: list[Part] = field(default_factory=list)
    again: list[Again] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)

    @property
    def late(self) -> list[int]:
        """The workers that were awaited, if any were."""
        return self.missing or ([] if self.last is None else [self.last])


@dataclass
class Trace:
    """The trace of one job.

    began: seconds since 1970.
    notes: other observations, in words.
    silent: workers without a packet in the trace.
    missed: packets that came faster than they could be recorded.
    cut: packets that were captured without their whole header. If packets were missed or cut, rounds do not say who was
        awaited or what was sent again, because that might be wrong.
    ended: blocks that are zero at all workers in streams that have ended, up to the farthest block that their operation
        names in another stream.
    """

    job: int
    generation: int
    began: float = 0.0
    name: str = ""
    lanes: int = 4
    block_size: int = 64
    workers: list[Worker] = field(default_factory=list)
    slots: list[str] = field(default_factory=list)
    rounds: list[Round] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    packets: int = 0
    silent: list[str] = field(default_factory=list)
    missed: int = 0
    cut: int = 0
    ended: int = 0

    @property
    def is_incomplete(self) -> bool:
        """Whether packets are known to be missing from it."""
        return bool(self.missed or self.cut)

    @property
    def title(self) -> str:
        return f"job {self.name!r}" if self.name else f"job {self.job}"

    @property
    def length(self) -> float:
        """Time from the first packet to the end of the last round, in us."""
        return max((one.end for one in self.rounds), default=0.0)


def save(trace: Trace, file: Path) -> None:
    """Write a trace as JSON, as a whole or not at all."""
    unfinished = file.with_name(file.name + ".unfinished")
    unfinished.write_text(json.dumps({"p4reduce_trace": VERSION, **as_dict(trace)}, separators=(",", ":")) + "\n")
    unfinished.replace(file)


def as_dict(trace: Trace) -> dict[str, Any]:
    """Return a trace for JSON. Rounds and their parts are lists in the order of their fields, as there are many."""
    rounds = [list(vars(one).values()) for one in trace.rounds]
    return {**vars(trace), "workers": [asdict(one) for one in trace.workers], "rounds": rounds}


def load(file: Path) -> Trace:
    """Return the trace in a file. Raises P4ReduceError if `save` has not written the file."""
    try:
        made = json.loads(file.read_text())
        if made.pop("p4reduce_trace") != VERSION:
            raise P4ReduceError(f"{file}: this trace has another version: accepted is {VERSION}")
        made["workers"] = [Worker(**one) for one in made["workers"]]
        made["rounds"] = [_round(*row) for row in made["rounds"]]
        return Trace(**made)
    except OSError as error:
        raise P4ReduceError(f"{file}: {error.strerror}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise P4ReduceError(f"{file}: neither a capture nor a trace of `p4reduce trace record`: {error}") from error


def _round(*row: Any) -> Round:
    made = Round(*row)
    made.awaited = None if made.awaited is None else (float(made.awaited[0]), float(made.awaited[1]))
    made.parts, made.again = [Part(*one) for one in made.parts], [Again(*one) for one in made.again]
    return made
