# SPDX-License-Identifier: Apache-2.0
"""A state file, and the jobs that a later controller restores from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.job import Job
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.jobs.lifecycle import JobOptions
from p4reduce_controller.jobs.switches import Switches
from p4reduce_controller.store.state import StateFile
from p4reduce_controller.store.state_names import Setup
from p4reduce_controller.switches.aggregator import Placement
from p4reduce_controller.switches.site import Site
from p4reduce_controller.switches.trees import Trees
from tests.support.controller.fake_switch import FakeSwitch, _entries
from tests.support.controller.jobs_harness import TWO_LEAVES, TreeHarness


class StoredJobs:
    """Jobs on two leaves and a spine, and the state file that stores them. nodes: as in `Switches`."""

    def __init__(self, folder: Path, trees: Trees = TWO_LEAVES, nodes: Sequence[int] = ()) -> None:
        self.path = folder / "state"
        self.trees, self.nodes = trees, nodes
        self.harness = TreeHarness(trees, nodes=nodes)
        self.harness.jobs = Jobs(self.harness.switches, JobOptions(returns=True))
        self.file = StateFile(self.path)
        self.switches = [FakeSwitch(number=number) for number in range(len(set(nodes)) or len(trees.names))]
        self.load()

    def job(self, name: str, *switches: int, host: str = "") -> list[pb.Assigned]:
        """Start a job with a rank at each of these switches, and return what the ranks were assigned."""
        sessions = [self.harness.join(rank, len(switches), name, host=host) for rank in range(len(switches))]
        for session, switch in zip(sessions, switches, strict=True):
            self.harness.hear(session, switch)
        self.harness.installed()
        return [self.harness.assigned(session) for session in sessions]

    def save(self) -> None:
        self.file.save(self.harness.jobs, self.harness.switches.children, self.harness.now)

    def load(self) -> list[Job]:
        return self.file.load(self.setup(), 1000.0)[0]

    def setup(self) -> Setup:
        return Setup(dict(enumerate(self.switches)), lambda: self.harness.switches.site)

    def restored(self) -> Jobs:
        known = self.harness.switches
        addresses = list(known.addresses.values())
        jobs = Jobs(Switches(known.site.layout, addresses, self.trees, self.nodes), JobOptions(returns=True))
        jobs.restore(*self.file.load(self.setup(), 1000.0))
        return jobs

    def close(self) -> None:
        self.file.close()


def entries(placements: dict[int, Placement]) -> dict[int, tuple[object, ...]]:
    return {switch: _entries(placement) for switch, placement in placements.items()}


def as_version_3(root: Any, site: Site, setup: Setup) -> dict[str, Any]:
    """Return a state as version 3 of the file stores it, which refers to switches by index instead of name."""

    def at(place: str) -> str:
        thread, _, name = place.partition(":")
        return str(int(thread) * site.nodes + list(site.trees.names).index(name))

    jobs = [
        {
            **{key: value for key, value in job.items() if key != "site"},
            "first_slots": {at(place): first for place, first in job["first_slots"].items()},
            "slots_elsewhere": {at(place): count for place, count in job["slots_elsewhere"].items()},
            "members": [
                {**one, "heard": {at(place): heard for place, heard in one["heard"].items()}} for one in job["members"]
            ],
        }
        for job in root["jobs"]
    ]
    return {
        "version": 3,
        "switches": [setup.description(site, index) for index in range(site.nodes)],
        "children": {at(f"0:{name}"): heard for name, heard in root["children"].items()},
        "jobs": jobs,
    }
