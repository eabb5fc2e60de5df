# SPDX-License-Identifier: Apache-2.0
"""Effects: the I/O that `Jobs`, which does none itself, asks the service to do."""

from __future__ import annotations

from dataclasses import dataclass

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.job import Job, Session, Takeover
from p4reduce_controller.switches.aggregator import Heard


@dataclass(frozen=True)
class Tell:
    """Send `message`. When `last`, end the stream after it."""

    session: Session
    message: pb.ServerMessage
    last: bool = False


@dataclass(frozen=True)
class Install:
    """Put the job on every switch, reset its slots, then call `installed` or `failed`."""

    job: Job


@dataclass(frozen=True)
class Change:
    """Change the slots of a job whose ranks are all paused, then call `moved` or `not_moved`.

    First keep the job's new state, then put the job on every switch in its new slots, and reset these. Call `not_moved`
    if the state could not be kept; then no switch was changed.
    """

    job: Job


@dataclass(frozen=True)
class Keep:
    """Keep the job's new state, in which a tree is lost, then call `stored`."""

    job: Job
    takeover: Takeover


@dataclass(frozen=True)
class TakeOver:
    """Put the slots of a lost tree on the switches of another tree, reset them, then call `taken_over`."""

    job: Job
    takeover: Takeover


@dataclass(frozen=True)
class Remove:
    """Take the job off every switch, then call `freed`. If `abort` is given, its group gets an ABORT packet."""

    job: Job
    abort: pb.Abort | None


@dataclass(frozen=True)
class Look:
    """Ask the job's switches what one half of one of its slots holds, then call `looked`."""

    job: Job
    half: int


@dataclass(frozen=True)
class Answer:
    """Send a HELLO of the same length back to the sender of `hello`, from that switch."""

    switch: int
    hello: Heard


@dataclass(frozen=True)
class Note:
    """Write in the audit log that the job has begun (`outcome` is ""), or how it ended."""

    job: Job
    outcome: str


Effect = Tell | Install | Change | Keep | TakeOver | Remove | Look | Answer | Note
