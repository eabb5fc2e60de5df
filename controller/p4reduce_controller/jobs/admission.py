# SPDX-License-Identifier: Apache-2.0
"""Checks of a rank's request to join: by itself, and against the requests of the job's other ranks."""

from __future__ import annotations

import math
from collections.abc import Collection

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control.messages import LONGEST_TIMEOUT
from p4reduce.errors import list_ranks
from p4reduce.protocol.constants import MAX_AGGREGATORS, MAX_RANKS, MAX_THREADS
from p4reduce_controller.jobs.job import Job, State
from p4reduce_controller.switches.site import Site
from p4reduce_controller.tenants.access import LONGEST_NAME

DEFAULT_SLOTS = 32  # fill a link of 1 Gbit/s; docs/benchmarks.md has measurements
DEFAULT_TIMEOUT = 60.0  # seconds for a job's gathering, if its ranks do not say
LONGEST_HOST = 64  # characters of a host's name
OTHER_RUN = "if another run uses this job name, give each run a name of its own"


def refusal(join: pb.Join, problem: str, reason: pb.AbortReason = pb.JOIN_REFUSED) -> pb.Abort:
    """Build the Abort that refuses the rank, with its number and what is wrong with its request."""
    message = f"job {join.job[:LONGEST_NAME]!r}: rank {join.rank} is refused: {problem}"
    return pb.Abort(rank=join.rank, reason=reason, message=message)


def problem_of(join: pb.Join, site: Site, default_slots: int) -> str | None:
    if not join.job or len(join.job) > LONGEST_NAME or not join.job.isprintable():
        return f"its job name must have 1 to {LONGEST_NAME} printable characters"
    if not 1 <= join.world_size <= MAX_RANKS:
        return f"world_size={join.world_size}: must be from 1 to {MAX_RANKS}"
    if join.rank >= join.world_size:
        return f"world_size={join.world_size} has ranks 0 to {join.world_size - 1}"
    if len(join.switch) > LONGEST_NAME:
        return f"the name of its switch has {len(join.switch)} characters: must be at most {LONGEST_NAME}"
    if join.switch and join.switch not in site.trees.names:
        return f"its switch is {join.switch!r}, and the switches are {', '.join(site.trees.names)}"
    if len(join.host) > LONGEST_HOST:
        return f"the name of its host has {len(join.host)} characters: must be at most {LONGEST_HOST}"
    if join.slots > site.capacity:
        trees = site.stripes
        have = "the switch has" if trees == 1 else f"the {trees} switches have"
        return f"slots={join.slots}, and {have} {site.capacity}"
    if site.repeats > 1 and not join.numbers:
        return "its release of p4reduce cannot use switches with several parents, which are here; update it"
    if problem := _threads_problem(join.threads or 1, join.slots or default_slots, site):
        return problem
    if not (math.isfinite(join.timeout_s) and 0 <= join.timeout_s <= LONGEST_TIMEOUT):
        return f"timeout_s={join.timeout_s}: must be from 0 to {LONGEST_TIMEOUT:g}"
    return None


def _threads_problem(threads: int, slots: int, site: Site) -> str | None:
    """Return what is wrong with the number of threads: each thread needs slots of its own in every tree."""
    trees = len(site.trees.roots)
    most = min(MAX_THREADS, MAX_AGGREGATORS // trees)
    if threads > most:
        of = "" if most == MAX_THREADS else f" with {trees} switches that share the slots"
        return f"threads={threads}: must be at most {most}{of}"
    if threads > slots:
        return f"threads={threads} of {slots} slots, and each needs one of its own"
    if (taken := site.for_threads(threads).most_at_a_switch(slots)) > site.layout.slots:
        return f"slots={slots} of threads={threads} take {taken} at each switch, which has {site.layout.slots}"
    return None


def conflict_with(job: Job, join: pb.Join, default_slots: int) -> str | None:
    """Return why the job, which has begun, cannot take the request; None if it can."""
    if job.state is not State.GATHERING:
        what = "joined it already" if join.rank in job.members else f"is not one of its {job.world_size}"
        return (
            f"the job is {job.state.value} and this rank {what}: another run uses this job name, or this process joins "
            "a second time; wait until that run ends, or use another name"
        )
    return conflict(join, job.members, job.world_size, job.slots, job.threads, default_slots)


def conflict(
    join: pb.Join, ranks: Collection[int], world_size: int, slots: int, threads: int, default_slots: int
) -> str | None:
    """Return how the request disagrees with those of `ranks`, which agree with each other; None if it fits."""
    if join.world_size != world_size:
        return f"it says world_size={join.world_size}, but {list_ranks(ranks)} said {world_size}; {OTHER_RUN}"
    if join.rank in ranks:
        return f"this rank has joined already; every process of the job needs a rank of its own; {OTHER_RUN}"
    wanted = join.slots or default_slots
    if wanted != slots:
        return f"it wants {wanted} slots, but {list_ranks(ranks)} wanted {slots}; {OTHER_RUN}"
    if (join.threads or 1) != threads:
        return f"it has threads={join.threads or 1}, but {list_ranks(ranks)} said {threads}; {OTHER_RUN}"
    return None
