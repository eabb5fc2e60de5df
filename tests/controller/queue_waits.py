# SPDX-License-Identifier: Apache-2.0
"""Simulate how long jobs wait for slots where running jobs may be moved or shrunk, and where they may not.

python -m tests.controller.queue_waits prints the figures of docs/decisions/51-running-jobs-make-room.md.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import statistics
from typing import Any
from unittest.mock import patch

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs import compacting
from p4reduce_controller.jobs.job import Job
from tests.support.controller.jobs_harness import JobsHarness

SLOTS = 1024
SIZES = (8, 16, 32, 32, 32, 32, 64, 64, 128, 256, 512)
MEAN_S, LEAST_S, MOST_S = 120.0, 10.0, 1200.0  # that a job runs
STEP_S, REPORT_S = 0.5, 2.0
LEAST, FIRST_OF = compacting.least, compacting._first_of


def all_slots(job: Job) -> int:
    """Return all of the job's slots, as the least that it keeps: no job is shrunk."""
    return job.slots


def first_to_shrink(_: object, *others: Any) -> Any:
    """Return the first change that moves no job to make room for another."""
    return FIRST_OF([], *others)


CHANGES = {
    "none": (False, LEAST, FIRST_OF),
    "moved": (True, all_slots, FIRST_OF),
    "shrunk": (True, LEAST, first_to_shrink),
    "both": (True, LEAST, FIRST_OF),
}


class Cluster(JobsHarness):
    """One switch, and jobs of one rank each that hold at once when they are asked to."""

    def __init__(self, *, moves_slots: bool) -> None:
        super().__init__(slots=SLOTS)
        compaction: Any = self.jobs._compaction._wanted
        compaction.__self__._moves_slots = moves_slots
        self.running: dict[str, tuple[object, float, int]] = {}  # by name: its stream, when it ends, slots that it uses

    def step(self) -> None:
        self.tick(STEP_S)
        for name, (session, end, used) in list(self.running.items()):
            job = self.jobs.named(name)
            for message in self.told[session]:
                if message.HasField("hold"):
                    self.hold(session, job, message.hold)
            self.told[session].clear()
            if self.now % REPORT_S < STEP_S:
                job.members[0].used.append(min(used, job.slots))
            if self.now >= end:
                self.leave(session)
                self.removed()
                del self.running[name]

    def hold(self, session: object, job: Job, hold: pb.Hold) -> None:
        held = pb.Held(operations=1, quiet=True, first_seq=job.first_seq, number=hold.number)
        self.jobs.held(session, held, self.now)
        self.carry_out()
        for changed in self.changes:
            self.jobs.moved(changed, self.now)
        self.changes.clear()
        self.carry_out()


def waits(jobs: int, load: float, excess: float, seed: int, *, moves_slots: bool) -> list[float]:
    """Return the seconds that each job waits. excess: the share of jobs that ask for 4 to 16 times what they use."""
    rng, cluster = random.Random(seed), Cluster(moves_slots=moves_slots)
    rate = load * SLOTS / (statistics.mean(SIZES) * MEAN_S)
    arrival, waiting, found = cluster.now, {}, []
    coming: list[tuple[float, str, int, float, int]] = []
    for number in range(jobs):
        arrival += rng.expovariate(rate)
        slots, seconds = rng.choice(SIZES), min(MOST_S, max(LEAST_S, rng.expovariate(1 / MEAN_S)))
        used = max(1, slots // rng.choice((4, 8, 16))) if rng.random() < excess else slots
        coming.append((arrival, f"job-{number}", slots, seconds, used))
    coming.reverse()
    while coming or waiting or cluster.running:
        while coming and coming[-1][0] <= cluster.now:
            _, name, slots, seconds, used = coming.pop()
            session = cluster.join(0, 1, name, slots=slots, queue_s=600_000.0, holds=True)
            waiting[name] = session, cluster.now, seconds, used
        for name, (session, since, seconds, used) in list(waiting.items()):
            if "assigned" in cluster.kinds(session):
                cluster.hear(session)
                cluster.installed()
                found.append(cluster.now - since)
                cluster.running[name] = session, cluster.now + seconds, used
                del waiting[name]
        cluster.step()
    return sorted(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    logging.disable()
    for load, excess, (name, change) in itertools.product((0.7, 0.9), (0.0, 0.5), CHANGES.items()):
        moves_slots, least, first_of = change
        with patch.object(compacting, "least", least), patch.object(compacting, "_first_of", first_of):
            runs = [waits(given.jobs, load, excess, seed + 1, moves_slots=moves_slots) for seed in range(given.seeds)]
        mean = statistics.median(statistics.mean(run) for run in runs)
        late = statistics.median(run[int(0.95 * len(run))] for run in runs)
        case = f"load {load}, {excess:.0%} ask for too much, {name}"
        print(f"{case}: mean {mean:.0f} s, 95 % within {late:.0f} s", flush=True)


if __name__ == "__main__":
    main()
