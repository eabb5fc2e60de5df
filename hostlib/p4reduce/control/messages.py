# SPDX-License-Identifier: Apache-2.0
"""The controller's messages to a rank, translated into the host library's errors and texts."""

from __future__ import annotations

from p4reduce.control import jobs_pb2 as pb
from p4reduce.errors import JobAborted, JoinError, SlotsExhausted, list_numbers

LONGEST_FAILURE = 1000
"""Most characters of a rank's report of its failure."""

MOST_AWAITED = 8
"""Most ranks that one report can name as awaited."""

LONGEST_TIMEOUT = 86400.0
"""Most seconds that a rank can wait for its job."""

LONGEST_QUEUE = 7 * 86400.0
"""Most seconds that a rank can wait in the queue."""

MISMATCH = "MISMATCH"
"""The reason of a JobAborted without a single cause: the ranks called different collectives."""


def take_abort(message: pb.Abort) -> JobAborted:
    rank = message.rank if message.HasField("rank") else None
    known = message.reason in pb.AbortReason.values()  # later controllers may have others
    name = pb.AbortReason.Name(message.reason) if known else f"REASON_{message.reason}"
    reason = MISMATCH if message.mismatch else name
    return JobAborted(message.message, rank=rank, reason=reason)


def refusal(aborted: JobAborted, known: str = "") -> JoinError:
    """Return the error of a rank that cannot join. `known`: what this host knows of the cause besides, or ""."""
    exhausted = aborted.reason == pb.AbortReason.Name(pb.SLOTS_EXHAUSTED)
    error = (SlotsExhausted if exhausted else JoinError)(f"{aborted}; {known}" if known else str(aborted))
    error.timed_out = aborted.reason == pb.AbortReason.Name(pb.JOIN_TIMEOUT)
    return error


def awaited_text(waiting: pb.Waiting) -> str:
    """Return what the controller waits for: "ranks that have not joined: 1, 2"."""
    ranks = list_numbers(waiting.ranks) + (f" and {waiting.more} more" if waiting.more else "")
    return {
        pb.Waiting.JOIN: f"ranks that have not joined: {ranks}",
        pb.Waiting.HELLO: f"ranks that the switch has not heard from: {ranks}",
        pb.Waiting.SWITCH: "the switch is still being set up",
        pb.Waiting.LEAVE: f"ranks that have not left: {ranks}",
        pb.Waiting.AWAY: f"switches that are unavailable: {waiting.why}",
        pb.Waiting.QUEUE: f"its turn in the queue, position {waiting.place} of {waiting.queued}: {waiting.why}",
    }[waiting.what]
