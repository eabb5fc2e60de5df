# SPDX-License-Identifier: Apache-2.0
"""What the controller calls a job whose packets are recorded."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.asking import ANSWER_TIMEOUT, ask
from p4reduce.control.channel import Tls
from p4reduce.errors import P4ReduceError
from p4reduce.trace.frames import Address

if TYPE_CHECKING:
    from p4reduce.trace.live import Recorder

_LOOK_S = 0.15  # a job takes longer from its first rank's join to its first packet; a controller may take 10 a second


@dataclass(frozen=True)
class Running:
    """A job as packets have it. numbers: of each of its ranks' threads. names: of those that send, by their
    addresses."""

    numbers: tuple[int, ...]
    names: dict[Address, str]


def asked(controller: str, token: str | None, tls: Tls | None) -> pb.StatusReply:
    """Raise P4ReduceError where nobody answers."""
    request = pb.StatusRequest()
    reply: pb.StatusReply = ask(
        controller, token, tls, lambda stub, metadata: stub.Status(request, timeout=ANSWER_TIMEOUT, metadata=metadata)
    )
    return reply


def running(status: pb.StatusReply, job: str, controller: str) -> Running:
    """Return the job that has this name at `controller`. Raises P4ReduceError where there is none."""
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
    """Records a job from when it begins until it ends.

    known: the job, as soon as it has begun; with all of its ranks that were seen, also those that have left.
    """

    def __init__(self, look: Callable[[], Running | None], wait: float) -> None:
        """look: asks the controller for the job. wait: seconds in which it has to begin."""
        self.known: Running | None = None
        self._look, self._wait = look, wait

    def record(self, recorder: Recorder, seconds: float, told: Callable[[int], None] = lambda _: None) -> None:
        """Until the job has ended, for so many seconds at most; returns, too, where it does not begin in time."""
        until = time.monotonic() + self._wait
        while (known := self._look()) is None:
            recorder.forget()  # what others have sent: the job has not had time to send anything
            if time.monotonic() >= until:
                return
            recorder.record(_LOOK_S, told)
        self.known = known
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            recorder.record(min(_LOOK_S, left), told)
            try:
                now = self._look()
            except P4ReduceError:  # a controller that is away ends no job
                continue
            if now is None or now.numbers[0] != known.numbers[0]:
                return
            self.known = Running(now.numbers, self.known.names | now.names)


def ports(status: pb.StatusReply) -> tuple[int, ...]:
    """Return the UDP ports at which switches aggregate."""
    return tuple(sorted({int(one.udp_port) for one in status.switches}))


def _called(job: pb.Job) -> str:
    """As commands name it: with its tenant, where the controller has users."""
    return f"{job.tenant}/{job.name}" if job.tenant else str(job.name)


def _names(job: pb.Job) -> dict[Address, str]:
    """Of each stream the rank that sends it, with all that it sends for."""
    streams: dict[int, list[pb.Member]] = {}
    for member in job.members:
        streams.setdefault(member.leader if member.HasField("leader") else member.rank, []).append(member)
    names = {}
    for leader, members in streams.items():
        ranks = sorted(int(member.rank) for member in members)
        text = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
        for member in members:
            if member.rank == leader:
                names.update({(str(place.ip), int(place.udp_port)): text for place in member.places if place.heard})
    return names
