# SPDX-License-Identifier: Apache-2.0
"""What a job's switches hold in a half of it: where a rank has gone ahead, the others have no answer, and only this
tells who it was."""

from __future__ import annotations

from collections.abc import Mapping

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.base.tasks import isolate_cancellation
from p4reduce_controller.jobs.job import Job
from p4reduce_controller.switches.aggregator import Aggregator


async def look(job: Job, half: int, switches: Mapping[int, Aggregator]) -> pb.Counted:
    """The latest round of that half where there are ranks, and who of those that send is counted in it. Raises
    SwitchError."""
    site = job.site.for_threads(job.threads)
    tree, there = site.slot_at(half, job.slots)
    rounds: dict[int, list[int]] = {}
    for at, placement in job.placements.items():
        if placement.has_ranks and site.trees.tree(at) == tree:
            state = await isolate_cancellation(switches[site.number(at)].query(2 * placement.slots.first + there))
            ranks = job.workers_at(at)
            rounds.setdefault(state.seq, []).extend(rank for bit, rank in enumerate(ranks) if state.bitmap >> bit & 1)
    some = next(iter(rounds))
    latest = max(rounds, key=lambda seq: (seq - some + 2**31) % 2**32)
    return pb.Counted(half=half, seq=latest, ranks=sorted(rounds[latest]))
