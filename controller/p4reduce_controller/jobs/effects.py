# SPDX-License-Identifier: Apache-2.0
"""What `Jobs`, which does no I/O, asks of the service."""

from __future__ import annotations

from dataclasses import dataclass

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.job import Job, Session
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
    """All ranks hold: keep the job as it is now, put it on every switch in its new slots, reset these, then call
    `moved`; or `not_moved`, where it cannot be kept and no switch was changed."""

    job: Job


@dataclass(frozen=True)
class Remove:
    """Take the job off every switch, with an ABORT to its group where `abort` is given, then call `freed`."""

    job: Job
    abort: pb.Abort | None


@dataclass(frozen=True)
class Look:
    """Ask the job's switches what they hold in that half of the job, then call `looked`."""

    job: Job
    half: int


@dataclass(frozen=True)
class Answer:
    """Send a HELLO to whoever has sent this one at that switch, as long as it."""

    switch: int
    hello: Heard


@dataclass(frozen=True)
class Note:
    """Write in the audit log that the job has begun ("" for `outcome`), or what became of it."""

    job: Job
    outcome: str


Effect = Tell | Install | Change | Remove | Look | Answer | Note
