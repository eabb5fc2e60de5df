# SPDX-License-Identifier: Apache-2.0
"""One run of chaos: lanes that run job after job, and the verdict on them."""

from __future__ import annotations

import json
import os
import random
import secrets
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from p4reduce_bench.processes.children import Child, ChildFailed, ChildProcesses
from tests.chaos.faults import Faults
from tests.chaos.site import LEASE_S, Cluster, Controllers, child_processes, entries, switches, users_file
from tests.chaos.verdicts import Attempt, problems
from tests.chaos.watch import Watch

TENANTS = ("red", "green", "blue")
SLOTS = 8
QUEUE_S = 30.0
LONGEST_S = 150.0  # of a job, beyond which it hangs
RANK_TIMEOUT_S = 60.0
PACE_S = 0.1
TURNS = (20, 80)
HOSTS = 2  # processes whose threads are ranks
SHARES = {"kill": 0.12, "stop": 0.12}  # of jobs of which a rank is killed or stopped
STAND_S = (0.3, 3.0)
IDLE_S = 30.0  # in which all has to be freed when the last job is over
FEWEST_UNDISTURBED = 1
TRIES = 3  # of the last job, as etcd may be slow to come to itself


@dataclass
class Lane:
    tenant: str
    attempt: Attempt | None = None
    plan: list[tuple[float, signal.Signals, int]] = field(default_factory=list)  # when, what, to which rank


class Run:
    """`jobs` of `ranks` ranks by three tenants, so many at a time."""

    def __init__(
        self,
        *,
        jobs: int,
        at_a_time: int,
        ranks: int,
        switches: int,
        seed: int,
        faults: bool,
        target: str,
        on_progress: Callable[[int, str], object],
    ) -> None:
        """Draw the lanes. on_progress: called with the number of finished jobs, and with the latest fault."""
        self._target = target
        self._jobs, self._ranks, self._switches, self._faults = jobs, ranks, switches, faults
        self._seed = seed
        self._rng = random.Random(seed)
        self._tell = on_progress
        self._lanes = [Lane(TENANTS[lane % len(TENANTS)]) for lane in range(at_a_time)]
        self._begun = 0
        self._over: list[Attempt] = []
        self._again = 0
        self.found: list[str] = []

    def measure(self) -> dict[str, Any]:
        """Run all jobs and return the figures.

        Raises ChildFailed if a process fails by itself, and P4ReduceError without etcd.
        """
        with child_processes(self._target) as processes, tempfile.TemporaryDirectory() as folder:
            self._start(processes, Path(folder))
            before = [entries(address) for address in self._switch_addresses]
            began = time.monotonic()
            self._chaos.start() if self._faults else None
            with Watch(self.controllers) as watch:
                self._run_jobs()
                if self._faults:
                    self._chaos.stop()
                seconds = time.monotonic() - began
                self._wait_until_idle()
            self.found += watch.found
            if self._chaos.failure is not None:
                raise self._chaos.failure
            after = [entries(address) for address in self._switch_addresses]
            for address, one, other in zip(self._switch_addresses, before, after, strict=True):
                left = [entry for entry in other if entry not in one]
                gone = [entry for entry in one if entry not in other]
                if left or gone:
                    self.found.append(
                        f"the switch at {address} has {len(left)} entries more and {len(gone)} less: {left}"
                    )
            self._take_everything()
            return self._figures(seconds, watch.samples)

    def _start(self, processes: ChildProcesses, folder: Path) -> None:
        cluster = Cluster(folder, processes)
        options, self._switch_addresses = switches(processes, self._target, self._switches)
        most = {name: sum(lane.tenant == name for lane in self._lanes) for name in TENANTS}
        self._tokens = {name: secrets.token_urlsafe(32) for name in ("operator", *TENANTS)}
        (folder / "users.toml").write_text(users_file(self._tokens, most, SLOTS))
        options += ["--users", str(folder / "users.toml"), "--store", cluster.url, "--store-lease", str(LEASE_S)]
        self.controllers = Controllers(processes, [*options, "--standby"], self._tokens["operator"])
        self._hosts = [self._start_ranks(processes, folder / f"ranks{at}", "threads") for at in range(HOSTS)]
        self._forks = self._start_ranks(processes, folder / "ranks", "processes")
        self._chaos = Faults(self.controllers, cluster, random.Random(self._seed + 1), self._note)
        self.controllers.wait_until_serving()

    def _start_ranks(self, processes: ChildProcesses, fifo: Path, kind: str) -> tuple[Child, TextIO]:
        """Return the process, and the FIFO from which it reads the ranks to start."""
        os.mkfifo(fifo)
        child = processes.start(
            f"ranks as {kind}",
            "tests.chaos.ranks",
            *(str(fifo), kind),
            environment={"P4REDUCE_QUEUE": str(QUEUE_S), "OMP_NUM_THREADS": "1"},
        )
        return child, fifo.open("w")

    def _note(self, what: str) -> None:
        self._tell(len(self._over), what)

    # Jobs.

    def _run_jobs(self) -> None:
        while self._begun < self._jobs or any(lane.attempt for lane in self._lanes):
            for lane in self._lanes:
                if lane.attempt is None and self._begun < self._jobs:
                    self._begun += 1
                    self._begin(lane, f"job-{self._begun}")
                self._disturb(lane)
            self._hear()
            for lane in self._lanes:
                if lane.attempt is not None and (lane.attempt.over or self._hangs(lane.attempt)):
                    self._end(lane, lane.attempt)
            self.controllers.check()
            time.sleep(0.01)

    def _begin(self, lane: Lane, name: str, *, slots: int = SLOTS, token: str = "") -> None:
        turns = self._rng.randint(*TURNS)
        lane.attempt = Attempt(name, lane.tenant, self._ranks, time.monotonic())
        lane.plan = self._plan(time.monotonic(), turns) if self._faults and not token else []
        for rank in range(self._ranks):
            task = {
                "job": name,
                "rank": rank,
                "world_size": self._ranks,
                "slots": slots,
                "controller": self.controllers.all_addresses,
                "token": self._tokens[token or lane.tenant],
                "turns": turns,
                "pace": PACE_S,
                "timeout": RANK_TIMEOUT_S,
                "seed": self._begun,
            }
            hit = any(rank == one for _, _, one in lane.plan)
            _, to = self._forks if hit else self._hosts[(self._begun + rank) % HOSTS]
            to.write(json.dumps(task) + "\n")
            to.flush()

    def _plan(self, now: float, turns: int) -> list[tuple[float, signal.Signals, int]]:
        draw = self._rng.random()
        rank, at = self._rng.randrange(self._ranks), now + self._rng.uniform(0.0, 0.2 + turns * PACE_S)
        if draw < SHARES["kill"]:
            return [(at, signal.SIGKILL, rank)]
        if draw < SHARES["kill"] + SHARES["stop"]:
            return [(at, signal.SIGSTOP, rank), (at + self._rng.uniform(*STAND_S), signal.SIGCONT, rank)]
        return []

    def _disturb(self, lane: Lane) -> None:
        attempt = lane.attempt
        while attempt is not None and lane.plan and time.monotonic() >= lane.plan[0][0]:
            _, what, rank = lane.plan[0]
            if rank not in attempt.pids and not attempt.ended:
                return  # it is not there yet
            lane.plan.pop(0)
            if rank in attempt.ended or rank in attempt.results:
                continue
            os.kill(attempt.pids[rank], what)
            if what is signal.SIGKILL:
                attempt.killed[rank] = time.monotonic()
            elif what is signal.SIGSTOP:
                attempt.stopped.append(rank)

    def _hear(self) -> None:
        by_job = {lane.attempt.job: lane.attempt for lane in self._lanes if lane.attempt is not None}
        for event in (event for child, _ in (*self._hosts, self._forks) for event in child.read()):
            attempt = by_job.get(event["job"])
            if attempt is None:
                continue
            rank = event["rank"]
            if event["event"] == "started":
                attempt.pids[rank] = event["pid"]
            elif event["event"] == "ready":
                attempt.ready[rank] = event
            elif event["event"] == "ended":
                attempt.ended.add(rank)
            else:
                attempt.results[rank] = event
        for child, _ in (*self._hosts, self._forks):
            if child.process.poll() is not None:
                raise child.failure()

    def _hangs(self, attempt: Attempt) -> bool:
        if time.monotonic() - attempt.begun < LONGEST_S:
            return False
        left = sorted(set(range(self._ranks)) - attempt.ended)
        self.found.append(f"{attempt.tenant}/{attempt.job}: ranks {left} hang after {LONGEST_S:g} s")
        return True

    def _end(self, lane: Lane, attempt: Attempt) -> None:
        lane.attempt = None
        self._over.append(attempt)
        if not (attempt.well or attempt.killed):  # as a user would
            self._again += 1
            self._begin(lane, f"{attempt.job}'")
        self._tell(len(self._over) - self._again, "")

    # The end.

    def _wait_until_idle(self) -> None:
        deadline = time.monotonic() + IDLE_S
        while True:
            _, reply = self.controllers.wait_until_serving()
            used = {switch.address: switch.slots_used for switch in reply.switches if switch.slots_used}
            held = {one.name: one.jobs for one in reply.tenants if one.jobs or one.slots}
            if not (used or held or reply.jobs or reply.queue) and all(one.connected for one in reply.switches):
                self._capacity = sum(switch.slots for switch in reply.switches)
                return
            if time.monotonic() >= deadline:
                jobs = [f"{job.tenant}/{job.name}: {job.state}" for job in reply.jobs]
                self.found.append(f"leaked: slots {used}, tenants {held}, jobs {jobs}, {len(reply.queue)} in the queue")
                self._capacity = 0
                return
            time.sleep(0.1)

    def _take_everything(self) -> None:
        """Run a job that needs every slot of every switch, so that each is reset, acknowledged and used."""
        if not self._capacity:
            return
        lane = self._lanes[0]
        said: list[str] = []
        for number in range(TRIES):
            self._begin(lane, f"everything-{number}", slots=self._capacity, token="operator")
            attempt = lane.attempt
            assert attempt is not None
            while not attempt.over and not self._hangs(attempt):
                self._hear()
                time.sleep(0.02)
            if attempt.well:
                return
            said += [one.get("text", "") for one in attempt.results.values()]
        self.found.append(f"a job of all {self._capacity} slots, when no other is there, fails: {said}")

    def _figures(self, seconds: float, samples: int) -> dict[str, Any]:
        faults = self._chaos.done
        changes = [(fault.at, fault.until) for fault in faults]
        for attempt in self._over:
            self.found += problems(attempt, changes)
        ready = sorted(one for attempt in self._over if (one := attempt.seconds_to_ready) is not None)
        served = [one.served_after for one in faults if one.what.startswith(("kill the one", "end the one"))]
        pauses = [
            (length, start)
            for attempt in self._over
            if not attempt.disturbed
            for one in attempt.results.values()
            for start, length in one.get("gaps", [])
            if any(
                start < fault.until + 3.0 and start + length > fault.at for fault in faults if "serves" in fault.what
            )
        ]
        others = [
            length
            for attempt in self._over
            if not attempt.disturbed
            for one in attempt.results.values()
            for _, length in one.get("gaps", [])
        ]
        errors = [error for attempt in self._over for error in attempt.errors]
        if len(ready) < FEWEST_UNDISTURBED:
            raise ChildFailed("no job came to be without a rank killed or stopped: there is nothing to measure")
        return {
            "jobs": len(self._over) - self._again,
            "attempts": len(self._over),
            "seconds": seconds,
            "done_well": sum(one.well for one in self._over),
            "ranks_killed": sum(len(one.killed) for one in self._over),
            "ranks_stopped": sum(len(one.stopped) for one in self._over),
            "errors": len(errors),
            "faults": {what: sum(one.what == what for one in faults) for what in sorted({one.what for one in faults})},
            "join_s": _spread(ready),
            "serves_after_s": _spread(sorted(one for one in served if one is not None)),
            "never_served": sum(one is None for one in served),
            "pause_s": max([length for length, _ in pauses], default=0.0),
            "longest_gap_s": max(others, default=0.0),
            "quota_samples": samples,
            "texts": sorted({f"{one['phase']}: {one['text']}" for one in errors}),
            "problems": self.found,
        }


def _spread(ordered: list[float]) -> dict[str, float]:
    if not ordered:
        return {"count": 0}
    return {
        "count": len(ordered),
        "median": statistics.median(ordered),
        "p95": ordered[int(0.95 * len(ordered))],
        "longest": ordered[-1],
    }


__all__ = ["Run"]
