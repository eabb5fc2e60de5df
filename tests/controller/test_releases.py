# SPDX-License-Identifier: Apache-2.0
"""States that releases have written, kept in states/: each is read as it was, or refused by its version."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from p4reduce_controller.etcd import rpc_pb2 as rpc
from p4reduce_controller.etcd.lease import Lease
from p4reduce_controller.etcd.state import EtcdState
from p4reduce_controller.jobs.job import Job, State
from p4reduce_controller.store.state import OLDER, VERSION, StateError, StateFile
from tests.support.controller.desks import LEAF1, LEAF2, SPINE
from tests.support.controller.fake_etcd import FakeEtcd
from tests.support.controller.kept import Kept

STATES = Path(__file__).with_name("states")
READ = ["version3.json", "version4.json"]  # the release before switches came and went, and the next
REFUSED = ["version1.json"]  # 0.1.0
PREFIX = "/p4reduce/state/"


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    """With the switches that the states are of."""
    return Kept(tmp_path)


def placed(kept: Kept, state: str) -> Path:
    shutil.copy(STATES / state, kept.path)
    kept.path.chmod(0o600)
    return kept.path


def as_written(jobs: list[Job], root: dict[str, Any]) -> None:
    """Two leaves' ranks in one job, and a leaf's in another; a third job was over."""
    assert [(job.name, job.number, job.world_size) for job in jobs] == [("wide", 2, 2), ("rack", 3, 2)]
    wide, rack = jobs
    assert set(wide.ranges) == {SPINE, LEAF1, LEAF2}
    assert set(rack.ranges) == {LEAF2}
    for job, then in zip(jobs, root["jobs"], strict=True):
        assert job.state == State.READY
        assert len(job.away) == job.world_size
        for name in ("generation", "slots", "first_seq", "abort_secret"):
            assert getattr(job, name) == then[name]
        for rank, member in job.members.items():
            assert member.key == then["members"][rank]["key_sha256"]
            (heard,) = member.heard.values()
            assert heard.sender.mac == f"02:00:00:00:00:0{rank}"


@pytest.mark.parametrize("state", READ)
def test_a_file_is_read(kept: Kept, state: str) -> None:
    path = placed(kept, state)
    as_written(kept.load(), json.loads(path.read_text()))
    jobs = kept.restored()
    # Of 16 slots, 4 a job and switch.
    assert [pool.used for pool in jobs.pools] == [4, 4, 8]


@pytest.mark.parametrize("state", REFUSED)
def test_a_file_is_refused_by_its_version_and_left_as_it_is(kept: Kept, state: str) -> None:
    path = placed(kept, state)
    text = path.read_text()
    version = json.loads(text)["version"]
    with pytest.raises(StateError, match=f"it has version {version}, but this controller reads versions"):
        kept.load()
    assert path.read_text() == text


def test_what_is_written_now_is_among_the_samples(kept: Kept) -> None:
    """Else the next release is not held to it: keep a sample when the version is another."""
    versions = {json.loads(path.read_text())["version"] for path in STATES.iterdir()}
    assert VERSION in versions
    assert {path.name for path in STATES.iterdir()} == {*READ, *REFUSED}
    kept.save()
    assert json.loads(kept.path.read_text())["version"] == VERSION
    notes = " ".join((STATES.parents[2] / "docs" / "deploying.md").read_text().split())
    said = (
        f"This release writes version {VERSION}, and reads {OLDER} and {VERSION}; "
        f"the previous release reads {OLDER}, but not {VERSION}."
    )
    assert said in notes


@pytest.mark.parametrize("state", [*READ, *REFUSED])
def test_in_etcd_it_is_the_same(kept: Kept, state: str) -> None:
    """Where a state of version 3 can be only if somebody has brought it there."""
    root = json.loads((STATES / state).read_text())
    etcd = FakeEtcd()
    keys = {f"jobs/{job['number']}": job for job in root["jobs"]}
    keys["site"] = {key: value for key, value in root.items() if key != "jobs"}
    for key, value in keys.items():
        etcd.keys[f"{PREFIX}{key}"] = rpc.KeyValue(key=f"{PREFIX}{key}".encode(), value=json.dumps(value).encode())

    def load() -> list[Job]:
        store = EtcdState(etcd, Lease(etcd, "/p4reduce/serving"), PREFIX, "--store etcd://x")
        asyncio.run(store.fetch())
        store.check()  # as one that stands by does, before its turn comes
        return store.load(kept.setup(), 1000.0)[0]

    if state in READ:
        as_written(load(), root)
    else:
        with pytest.raises(StateError, match=f"it has version {root['version']}"):
            load()


@pytest.mark.parametrize("version", [VERSION + 1, 99])
def test_a_state_of_a_later_release_is_refused_by_its_version(tmp_path: Path, kept: Kept, version: int) -> None:
    root = json.loads((STATES / READ[-1]).read_text())
    path = tmp_path / "later"
    path.write_text(json.dumps({**root, "version": version, "new": 1}))
    path.chmod(0o600)
    file = StateFile(path)
    with pytest.raises(StateError, match=f"it has version {version}, but this controller reads"):
        file.load(kept.setup(), 1000.0)
    file.close()
