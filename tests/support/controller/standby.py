# SPDX-License-Identifier: Apache-2.0
"""Controllers that share a fake etcd; the one with the lease serves."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

from p4reduce_controller.etcd.lease import Lease
from p4reduce_controller.etcd.state import EtcdState
from p4reduce_controller.jobs.job import Job
from tests.support.controller.fake_etcd import FakeEtcd
from tests.support.controller.stored_jobs import StoredJobs

T = TypeVar("T")
KEY = "/p4reduce/serving"


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, 20))


def taken(etcd: FakeEtcd, said: str = "me") -> Lease:
    lease = Lease(etcd, KEY, etcd.clock)
    assert run(lease.campaign(said, 2))
    return lease


class Controller:
    """A controller whose jobs are in a harness and stored in etcd."""

    def __init__(self, etcd: FakeEtcd, folder: Path) -> None:
        folder.mkdir()
        self.stored = StoredJobs(folder)
        self.lease = taken(etcd)
        self.state = EtcdState(etcd, self.lease, "/p4reduce/state/", "--store etcd://x")

    def load(self) -> list[Job]:
        run(self.state.fetch())
        return self.state.load(self.stored.setup(), 1000.0)[0]

    def keep(self) -> None:
        harness = self.stored.harness
        run(self.state.keep(lambda: list(harness.jobs), harness.switches.children, harness.now))


def after(etcd: FakeEtcd, tmp_path: Path, name: str = "two") -> Controller:
    """Return the controller that takes over after the lease has expired."""
    etcd.now += 3
    return Controller(etcd, tmp_path / name)
