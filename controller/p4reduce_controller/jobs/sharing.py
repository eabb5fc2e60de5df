# SPDX-License-Identifier: Apache-2.0
"""Why ranks of one host do not send as one worker, for people."""

from __future__ import annotations

from collections import Counter

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.job import Job, Member, list_ranks

_MOST_NAMED = 8


def how_to_be_fewer(job: Job) -> str:
    """For a job of which all ranks have been heard, and that has more workers than a switch can add up: on how many
    hosts they are, and which ranks send for themselves beside others of their host."""
    hosts = Counter(map(_host, job.members.values()))
    followed = Counter(job.leaders.values())
    alone = [rank for rank, one in job.members.items() if followed[rank] == 1 and hosts[_host(one)] > 1]
    unable = [rank for rank, one in job.members.items() if one.stream == pb.UNSAID]
    on = f"its {job.world_size} ranks are on {len(hosts)} host{'s' if len(hosts) > 1 else ''}"
    if job.threads > 1 and len(hosts) < job.world_size:
        return f"{on}, and those of one host are one worker if all of the job have threads=1, not {job.threads}"
    if unable:
        return (
            f"{on}, and those of one host are one worker if all of the job use the C backend and the transport udp; "
            f"this is not so for {_some(unable)}"
        )
    text = f"{on}, and those of one host are one worker if they have local='auto' and are behind one port of the switch"
    return f"{text}; this is not so for {_some(alone)}" if alone else text


def _some(ranks: list[int]) -> str:
    more = f" and {len(ranks) - _MOST_NAMED} more" if len(ranks) > _MOST_NAMED else ""
    return list_ranks(sorted(ranks)[:_MOST_NAMED]) + more


def _host(member: Member) -> str:
    """As seen from a switch."""
    return next(iter(member.heard.values())).sender.ip
