# SPDX-License-Identifier: Apache-2.0
"""The contents of a job's slots: its switches' answers to QUERYs, for operators and for ranks that get no answer."""

from __future__ import annotations

from collections.abc import Mapping

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.base.tasks import isolate_cancellation
from p4reduce_controller.jobs.job import Job
from p4reduce_controller.jobs.placement import below
from p4reduce_controller.switches.aggregator import Aggregator, SwitchError

MOST_A_REQUEST = 16  # slots per request: a switch answers some hundred QUERYs a second, and others wait for it


async def slots_of(job: Job, switches: Mapping[int, Aggregator], first: int, count: int) -> pb.SlotsReply:
    """Return both halves of `count` of the job's slots from `first` on, at each switch that has them.

    The job must be on its switches. Raises SwitchError.
    """
    site = job.site.for_threads(job.threads)
    reply = pb.SlotsReply(slots=job.slots)
    for half in range(2 * first, 2 * min(first + count, job.slots)):
        tree, tree_half = site.slot_at(half, job.slots)
        for at, placement in sorted(job.placements_of(tree).items()):
            switch = switches.get(site.number(at))
            if job.over or switch is None:
                raise SwitchError(f"job {job.name!r}: it has left the switch {site.trees.names[at]} meanwhile")
            state = await isolate_cancellation(switch.query(2 * placement.slots.first + tree_half))
            ranks, children = job.workers_at(at), below(site, job, at)
            counted = [bit for bit in range(len(ranks) + len(children)) if state.bitmap >> bit & 1]
            age = (state.seq - job.first_seq + 2**31) % 2**32 - 2**31
            reply.halves.add(
                slot=half // 2,
                half=half % 2,
                switch=site.trees.names[at],
                at=placement.slots.first + tree_half // 2,
                seq=state.seq,
                round=max(-1, age),
                ranks=[ranks[bit] for bit in counted if bit < len(ranks)],
                switches=[children[bit - len(ranks)] for bit in counted if bit >= len(ranks)],
                missing=[rank for bit, rank in enumerate(ranks) if bit not in counted],
                fingerprint=state.fingerprint,
            )
    return reply


async def look(job: Job, half: int, switches: Mapping[int, Aggregator]) -> pb.Counted:
    """Return the latest round of that half at the switches of ranks, and which workers it has counted.

    Raises SwitchError.
    """
    site = job.site.for_threads(job.threads)
    tree, tree_half = site.slot_at(half, job.slots)
    rounds: dict[int, list[int]] = {}
    for at, placement in job.placements_of(tree).items():
        if placement.has_ranks:
            state = await isolate_cancellation(switches[site.number(at)].query(2 * placement.slots.first + tree_half))
            ranks = job.workers_at(at)
            rounds.setdefault(state.seq, []).extend(rank for bit, rank in enumerate(ranks) if state.bitmap >> bit & 1)
    reference = next(iter(rounds))  # sequence numbers wrap around, so they are compared as signed distances
    newest = max(rounds, key=lambda seq: (seq - reference + 2**31) % 2**32)
    return pb.Counted(half=half, seq=newest, ranks=sorted(rounds[newest]))
