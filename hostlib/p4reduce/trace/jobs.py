# SPDX-License-Identifier: Apache-2.0
"""What the controller calls a job whose packets are recorded."""

from __future__ import annotations

from dataclasses import dataclass

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.asking import ANSWER_TIMEOUT, ask
from p4reduce.control.channel import Tls
from p4reduce.errors import P4ReduceError
from p4reduce.trace.frames import Address


@dataclass(frozen=True)
class Running:
    """A job as packets have it. numbers: of each of its ranks' threads. names: of those that send, by their
    addresses."""

    numbers: tuple[int, ...]
    names: dict[Address, str]


def asked(controller: str, token: str | None, tls: Tls | None) -> pb.StatusReply:
    """Raises P4ReduceError where nobody answers."""
    request = pb.StatusRequest()
    reply: pb.StatusReply = ask(
        controller, token, tls, lambda stub, metadata: stub.Status(request, timeout=ANSWER_TIMEOUT, metadata=metadata)
    )
    return reply


def running(status: pb.StatusReply, job: str, controller: str) -> Running:
    """The job that has this name at `controller`. Raises P4ReduceError where there is none."""
    jobs = {_called(one): one for one in status.jobs}
    if job not in jobs:
        there = f"there run {', '.join(sorted(jobs))}" if jobs else "none runs there"
        raise P4ReduceError(f"job {job!r} is not known at the controller {controller}: {there}")
    found = jobs[job]
    return Running((int(found.number), *map(int, found.more_numbers)), _names(found))


def ports(status: pb.StatusReply) -> tuple[int, ...]:
    """The UDP ports at which switches aggregate."""
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
