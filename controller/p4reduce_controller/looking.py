# SPDX-License-Identifier: Apache-2.0
"""What a job's switches hold in a half of it: where a rank has gone ahead, the others have no answer, and only this
tells who it was."""

from __future__ import annotations

from collections.abc import Sequence

from p4reduce.control import jobs_pb2 as pb
from p4reduce.protocol.aggregators import to_aggregator
from p4reduce_controller.aggregator import Aggregator
from p4reduce_controller.job import Job
from p4reduce_controller.placement import Site
from p4reduce_controller.tasks import apart


async def look(site: Site, job: Job, half: int, switches: Sequence[Aggregator]) -> pb.Counted:
    """The latest round of that half where there are ranks, and who of those that send is counted in it. Raises
    SwitchError."""
    tree, there = to_aggregator(half, len(site.trees.roots))
    rounds: dict[int, list[int]] = {}
    for switch, placement in job.placements.items():
        if placement.has_ranks and site.trees.tree(switch) == tree:
            state = await apart(switches[switch].query(2 * placement.slots.first + there))
            ranks = job.workers_at(switch)
            rounds.setdefault(state.seq, []).extend(rank for at, rank in enumerate(ranks) if state.bitmap >> at & 1)
    some = next(iter(rounds))
    latest = max(rounds, key=lambda seq: (seq - some + 2**31) % 2**32)
    return pb.Counted(half=half, seq=latest, ranks=sorted(rounds[latest]))
