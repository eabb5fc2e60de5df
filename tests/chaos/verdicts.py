# SPDX-License-Identifier: Apache-2.0
"""The rules for errors: each names who failed and why, and only some are excused by the faults of the run."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

WHO = re.compile(
    r"ranks? \d+|this rank|switch at \S+|the switch \S+|controller at \S+|[Tt]he controller|this controller|etcd at "
    r"\S+|tenant '\w+'|the operator"
)
WHY = re.compile(
    r"has left it|was lost|has failed|broke\b|was stopped|was killed|was restarted|did not (come|join|return|confirm"
    r"|answer)|stands by|is (being )?(stopped|started)|connection refused|no answer within|does not answer|cannot be"
    r" kept|cannot store|nothing can be kept|unreachable|unavailable|not serve|left (early|while|before)|does not know"
    r" the job|slots? (asked|are free)|which is its limit|in the queue|another controller"
)
AFTER_S = 15.0
"""Seconds after a change of controllers, or of etcd, in which jobs that gather may have to begin anew."""


def is_clear(text: str) -> bool:
    """Return whether an error names who failed, and why."""
    return bool(WHO.search(text) and WHY.search(text))


@dataclass
class Attempt:
    """One attempt at a job: its ranks, the faults that they got, and their results."""

    job: str
    tenant: str
    world_size: int
    begun: float
    pids: dict[int, int] = field(default_factory=dict)
    killed: dict[int, float] = field(default_factory=dict)  # rank -> when
    stopped: list[int] = field(default_factory=list)
    ready: dict[int, dict[str, Any]] = field(default_factory=dict)
    results: dict[int, dict[str, Any]] = field(default_factory=dict)  # done, error or wrong
    ended: set[int] = field(default_factory=set)

    @property
    def over(self) -> bool:
        return len(self.ended) == self.world_size

    @property
    def well(self) -> bool:
        return all(one["event"] == "done" for one in self.results.values()) and len(self.results) == self.world_size

    @property
    def disturbed(self) -> bool:
        return bool(self.killed or self.stopped)

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [one for one in self.results.values() if one["event"] == "error"]

    @property
    def seconds_to_ready(self) -> float | None:
        """Return the seconds from the last rank's call until all are ready.

        None if not all became ready, or if one was stopped or killed.
        """
        if len(self.ready) < self.world_size or self.disturbed:
            return None
        ready, began = ([float(one[key]) for one in self.ready.values()] for key in ("at", "began"))
        return max(ready) - max(began)


def problems(attempt: Attempt, changes: list[tuple[float, float]]) -> list[str]:
    """Return the faults of p4reduce in an attempt. `changes`: intervals in which controllers or etcd had faults."""
    found = []
    where = f"{attempt.tenant}/{attempt.job}"
    for rank in set(range(attempt.world_size)) - attempt.results.keys() - attempt.killed.keys():
        found.append(f"{where}: rank {rank} ended without a word")
    for one in attempt.results.values():
        if one["event"] == "wrong":
            found.append(f"{where}: rank {one['rank']}: a wrong sum: {one['text']}")
    for error in attempt.errors:
        text = f"{where}: rank {error['rank']} in {error['phase']}: {error['kind']}: {error['text']}"
        if not is_clear(error["text"]):
            found.append(f"unclear: {text}")
        elif attempt.killed:
            blamed = error["blamed"]
            if blamed is not None and blamed not in attempt.killed:
                found.append(f"the wrong rank is blamed, it was {sorted(attempt.killed)}: {text}")
            elif blamed is None and not _names(error["text"], attempt.killed) and not _excused(error, changes):
                found.append(f"nobody is blamed, it was rank {sorted(attempt.killed)}: {text}")
        elif not _excused(error, changes):
            found.append(f"nothing was done to it: {text}")
    return found


def _names(text: str, ranks: dict[int, float]) -> bool:
    return any(re.search(rf"\brank {rank}\b|\branks [\d, and]*\b{rank}\b", text) for rank in ranks)


def _excused(error: dict[str, Any], changes: list[tuple[float, float]]) -> bool:
    """Return whether the error is excused: jobs that gather during a fault may have to start again."""
    return error["phase"] == "join" and any(
        error["at"] > since and error["began"] < until + AFTER_S for since, until in changes
    )
