# SPDX-License-Identifier: Apache-2.0
"""The controller's data about a job whose packets are recorded: its numbers, and the names of its workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.asking import ANSWER_TIMEOUT, ask
from p4reduce.control.channel import Tls
from p4reduce.errors import P4ReduceError, list_ranks
from p4reduce.trace.frames import Address

if TYPE_CHECKING:
    from p4reduce.trace.live import Recorder

_POLL_S = 0.15  # a job takes longer from its first rank's join to its first packet; a controller may take 10 a second


@dataclass(frozen=True)
class Running:
    """A running job. numbers: the job number of each thread of its ranks. names: its workers' names, by address."""

    numbers: tuple[int, ...]
    names: dict[Address, str]

    def updated(self, now: Running | None) -> Running | None:
        """Return the job as it is now, also with the workers that have left; None if it is no longer the same job."""
        if now is None or now.numbers[0] != self.numbers[0]:
            return None
        return Running(now.numbers, self.names | now.names)


def asked(controller: str, token: str | None, tls: Tls | None) -> pb.StatusReply:
    """Return the controller's status. Raises P4ReduceError if no controller answers."""
    request = pb.StatusRequest()
    reply: pb.StatusReply = ask(
        controller, token, tls, lambda stub, metadata: stub.Status(request, timeout=ANSWER_TIMEOUT, metadata=metadata)
    )
    return reply


def running(status: pb.StatusReply, job: str, controller: str) -> Running:
    """Return the job that has this name at `controller`. Raises P4ReduceError if there is none."""
    found = find(status, job)
    if found is None:
        jobs = sorted(map(_called, status.jobs))
        there = f"its jobs are {', '.join(jobs)}" if jobs else "it has no jobs"
        raise P4ReduceError(
            f"job {job!r} is not known at the controller {controller}: {there}. If the job has not begun yet, wait for "
            "it with --wait 60"
        )
    return found


def find(status: pb.StatusReply, job: str) -> Running | None:
    """Return the job that has this name, if there is one."""
    found = next((one for one in status.jobs if _called(one) == job), None)
    return None if found is None else Running((int(found.number), *map(int, found.more_numbers)), _names(found))


class Follower:
    """The recording of a job from its begin to its end.

    known: the job, once it has begun, with all ranks that it has had, including those that have left.
    """

    def __init__(self, look: Callable[[], Running | None], wait: float) -> None:
        """Prepare the recording. look: asks the controller for the job. wait: seconds in which it must begin."""
        self.known: Running | None = None
        self._look, self._wait = look, wait

    def record(self, recorder: Recorder, seconds: float, told: Callable[[int], None] = lambda _: None) -> None:
        """Record until the job has ended, for at most `seconds`. Return early if it does not begin in time."""
        until = time.monotonic() + self._wait
        while (known := self._look()) is None:
            recorder.forget()  # packets of other jobs: this one has not had time to send anything
            if time.monotonic() >= until:
                return
            recorder.record(_POLL_S, told)
        self.known = known
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            recorder.record(min(_POLL_S, left), told)
            try:
                now = self._look()
            except P4ReduceError:  # a job goes on while its controller is away
                continue
            if (updated := self.known.updated(now)) is None:
                return
            self.known = updated


def ports(status: pb.StatusReply) -> tuple[int, ...]:
    """Return the UDP ports at which switches aggregate."""
    return tuple(sorted({int(one.udp_port) for one in status.switches}))


def _called(job: pb.Job) -> str:
    """Return the job's name in commands: with its tenant if the controller has users."""
    return f"{job.tenant}/{job.name}" if job.tenant else str(job.name)


def _names(job: pb.Job) -> dict[Address, str]:
    """Return a name for each stream by its address: the rank that sends it, and all ranks for which it sends."""
    streams: dict[int, list[pb.Member]] = {}
    for member in job.members:
        streams.setdefault(member.leader if member.HasField("leader") else member.rank, []).append(member)
    names = {}
    for leader, members in streams.items():
        ranks = sorted(int(member.rank) for member in members)
        text = list_ranks(ranks)
        for member in members:
            if member.rank == leader:
                names.update({(str(seen.ip), int(seen.udp_port)): text for seen in member.places if seen.heard})
    return names
