# SPDX-License-Identifier: Apache-2.0
"""The state file: what was kept is what is found, and nothing else is taken for it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import shutil
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p4reduce_controller.etcd import rpc_pb2 as rpc
from p4reduce_controller.etcd.lease import Lease
from p4reduce_controller.etcd.state import EtcdState
from p4reduce_controller.jobs.job import Job, State
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.jobs.lifecycle import JobOptions
from p4reduce_controller.jobs.numbers import GENERATIONS
from p4reduce_controller.jobs.switches import Switches
from p4reduce_controller.store.state import PREVIOUS_VERSION, VERSION, StateError, StateFile
from p4reduce_controller.store.state_names import Setup
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.pools import SlotPool, SlotRange
from p4reduce_controller.switches.site import Site
from p4reduce_controller.switches.trees import Trees, Uplink
from tests.support.controller.fake_etcd import FakeEtcd
from tests.support.controller.fake_switch import FakeSwitch
from tests.support.controller.jobs_harness import ADDRESSES, LEAF1, LEAF2, SPINE
from tests.support.controller.stored_jobs import StoredJobs, as_version_3, entries

KEY = re.compile(r"^[0-9a-f]{32}$")


@pytest.fixture
def stored(tmp_path: Path) -> StoredJobs:
    return StoredJobs(tmp_path)


@settings(deadline=None)  # it waits for the disk
@given(st.lists(st.lists(st.sampled_from([LEAF1, LEAF2]), min_size=1, max_size=5), max_size=4), st.data())
def test_what_was_kept_is_found(tmp_path_factory: pytest.TempPathFactory, places: list[list[int]], data: Any) -> None:
    stored = StoredJobs(tmp_path_factory.mktemp("stored"))
    for number, switches in enumerate(places):
        stored.job(f"job {number}", *switches)
    for job in data.draw(st.lists(st.sampled_from(stored.harness.jobs.live), unique_by=id)) if places else []:
        stored.harness.jobs.failed(job, "it ends")
        stored.harness.carry_out()
        stored.harness.removed()
    stored.save()
    before, after = stored.harness.jobs, stored.restored()
    assert len(list(after)) == len(list(before))
    for then, now in zip(sorted(before, key=lambda job: job.number), after, strict=True):
        assert entries(now.placements) == entries(then.placements)
        for name in (
            "name",
            "number",
            "generation",
            "world_size",
            "slots",
            "ranges",
            "first_seq",
            "abort_secret",
            "rejoin_time",
            "state",
        ):
            assert getattr(now, name) == getattr(then, name)
        assert [member.key for member in now.members.values()] == [member.key for member in then.members.values()]
        assert len(now.away) == now.world_size
    assert [pool.used for pool in after.pools] == [pool.used for pool in before.pools]
    assert [pool._free for pool in after.pools] == [pool._free for pool in before.pools]
    stored.close()


def test_no_ranks_key_is_in_it_and_only_its_owner_may_read_it(stored: StoredJobs) -> None:
    keys = [assigned.rejoin_key for assigned in stored.job("job", LEAF1, LEAF2)]
    stored.save()
    assert all(KEY.match(key) and key not in stored.path.read_text() for key in keys)
    assert len(set(keys)) == 2
    for path in (stored.path, Path(f"{stored.path}.lock")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_numbers_and_generations_go_on(stored: StoredJobs) -> None:
    one, two = stored.job("one", LEAF1)[0], stored.job("two", LEAF2)[0]
    stored.harness.jobs.failed(next(iter(stored.harness.jobs)), "it ends")
    stored.harness.carry_out()
    stored.harness.removed()
    stored.save()
    jobs = stored.restored()
    assert [job.number for job in jobs] == [two.job] == [2]
    numbers = jobs._registry._numbers
    assert numbers.take()[0] == one.job == 1
    assert numbers.take()[0] == 3
    numbers.give_back(2)
    later = [numbers.take()]
    for _ in range(GENERATIONS - 2):
        numbers.give_back(2)
        later.append(numbers.take())
    assert {number for number, _ in later} == {2}
    assert len({*later, (2, two.generation)}) == GENERATIONS


def slots(root: dict[str, Any], firsts: dict[str, object]) -> None:
    root["jobs"][0].update(first_slots=firsts)


def replaced(stored: StoredJobs, change: Callable[[dict[str, Any]], object]) -> str:
    """Change a state file so, and return the error with which it is refused."""
    stored.job("job", LEAF1, LEAF2)
    stored.job("other", LEAF2)
    stored.save()
    root = json.loads(stored.path.read_text())
    change(root)
    stored.path.write_text(json.dumps(root))
    text = stored.path.read_text()
    with pytest.raises((StateError, ValueError)) as caught:
        stored.restored()
    assert stored.path.read_text() == text
    assert "\n" not in str(caught.value)
    return str(caught.value)


def unheard(root: dict[str, Any]) -> None:
    """Remove the record that its parent has heard leaf1."""
    for one in (root, *root["jobs"]):
        del one["children"]["leaf1"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda root: root.update(version=5), "it has version 5, but this controller reads versions 3 and 4; remove"),
        (lambda root: root.pop("version"), "version is None: must be an integer"),
        (lambda root: root.update(jobs={}), "jobs is {}: must be a list"),
        (lambda root: root["jobs"].append(3), "jobs[2] is 3: must be an object"),
        (unheard, "the switch leaf1 has not been heard by its parent spine"),
        (lambda root: root["children"]["leaf1"].update(mac="x"), "mac is 'x': MAC address 'x': must be six"),
        (lambda root: root["children"]["leaf1"].update(ip="x"), "ip is 'x'"),
        (lambda root: root["jobs"][0].update(number=2), "job number 2: 3 to 4094 are free"),
        (lambda root: root["jobs"][0].update(number=True), "number is True: must be an integer"),
        (lambda root: root["jobs"][0].update(generation=65536), "generation is 65536: must be from 0 to 65535"),
        (lambda root: root["jobs"][0].update(name="other"), "job 'other': there are two of that name"),
        (lambda root: root["jobs"][0].update(name=""), "1 to 200 printable characters"),
        (lambda root: root["jobs"][0].update(members=[]), "world_size=0"),
        (lambda root: root["jobs"][0]["members"][0].update(heard={}), "rank 0 is not at one switch of each of the 1"),
        (lambda root: slots(root, {"0:spine": 0, "0:leaf1": 0, "0:leaf2": 4}), "slots 4 to 7 are not all free"),
        (lambda root: slots(root, {"0:spine": "x"}), "first_slots is {0: 'x'}: each value must be"),
        (lambda root: slots(root, {"0:leaf2": 0}), "it has slots at other switches than those that"),
        (lambda root: root["jobs"][0].update(slots_each=3), "slots=4, of which 3 at each switch"),
        (lambda root: root["jobs"][0].update(slots=99, most_slots=99), "slots=99, and the switch has 16"),
        (lambda root: root["jobs"][0].update(most_slots=3), "most_slots is 3: must be from 4 to 4294967295"),
        (lambda root: root["jobs"][0].update(rejoin_s=-1.0), "rejoin_s is -1.0: must be from 0 to 3600"),
        (lambda root: root["jobs"][0].update(rejoin_s=float("nan")), "rejoin_s is nan"),
        (lambda root: root["jobs"][0].update(first_seq=2**32), "first_seq is 4294967296"),
        (
            lambda root: root["jobs"][0].update(abort_secret=str(root["jobs"][0]["abort_secret"])),
            f"jobs[0]: abort_secret is not a number from 0 to {2**64 - 1}; remove",
        ),
        (lambda root: root["jobs"][0].update(abort_secret=2**64), "abort_secret is not a number from 0 to"),
        (lambda root: slots(root, {"0:leaf9": 0}), "switch '0:leaf9': must be THREAD:NAME"),
        (lambda root: slots(root, {"1:leaf1": 0}), "switch '1:leaf1': must be THREAD:NAME"),
        (lambda root: root["jobs"][0]["site"].pop(), "switch '0:leaf2': must be THREAD:NAME"),
        (lambda root: root["jobs"][0]["site"][1].pop("ip"), "site: KeyError 'ip'"),
        (lambda root: root["jobs"][0]["site"][1].update(described="old"), "Its switch was old; now there is leaf1 at"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_named(stored: StoredJobs, change: Callable[[dict[str, Any]], object], said: str) -> None:
    assert said in replaced(stored, change)


def values(root: Any) -> list[tuple[Any, Any]]:
    """Return the container and the key of every value in a JSON value."""
    inside = root.items() if isinstance(root, dict) else enumerate(root) if isinstance(root, list) else ()
    return [place for key, value in inside for place in [(root, key), *values(value)]]


@settings(deadline=None)
@given(data=st.data())
def test_whatever_is_in_it_is_found_or_refused(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    stored = StoredJobs(tmp_path_factory.mktemp("damaged"))
    stored.job("job", LEAF1, LEAF2)
    stored.save()
    text = stored.path.read_text()
    if data.draw(st.booleans()):
        text = text[: round(len(text) * data.draw(st.floats(0, 1)))]
    else:
        root = json.loads(text)
        container, key = data.draw(st.sampled_from(values(root)))
        container[key] = data.draw(
            st.sampled_from([None, -1, 0, 1, 2**70, 1.5, "", "1", "\udc00", [], {}, [[]], True, float("inf")])
        )
        text = json.dumps(root)
    stored.path.write_text(text)
    with contextlib.suppress(StateError, ValueError):
        assert len(list(stored.restored())) <= 1
    stored.close()


def test_a_file_without_jobs_may_be_of_other_switches(stored: StoredJobs) -> None:
    stored.save()
    stored.switches[0].target = "another"
    assert stored.load() == []


@pytest.mark.parametrize("mode", [0o602, 0o620, 0o604, 0o640])
def test_a_file_that_others_may_use_is_refused(stored: StoredJobs, mode: int) -> None:
    stored.path.chmod(mode)
    with pytest.raises(StateError, match="other users may access it"):
        stored.load()


def test_two_controllers_cannot_have_one_file(stored: StoredJobs) -> None:
    with pytest.raises(StateError, match=f"--state {stored.path}: another controller uses it"):
        StateFile(stored.path)
    stored.close()
    StateFile(stored.path).close()


def test_a_place_where_there_can_be_none(tmp_path: Path) -> None:
    with pytest.raises(StateError, match=r"state\.lock: No such file or directory"):
        StateFile(tmp_path / "none" / "state")


def test_a_write_that_does_not_end_leaves_the_file_as_it_was(
    stored: StoredJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.job("job", LEAF1, LEAF2)
    stored.save()
    before = stored.path.read_text()
    stored.job("other", LEAF2)

    def killed(*_: object) -> None:
        raise OSError(28, "No space left on device")

    for function in ("fsync", "replace"):
        with monkeypatch.context() as patch:
            patch.setattr(os, function, killed)
            with pytest.raises(StateError, match="cannot be written: No space left"):
                stored.save()
        assert stored.path.read_text() == before
        assert [job.name for job in stored.load()] == ["job"]
    Path(f"{stored.path}.new").write_text('{"version": ')  # as a crash leaves it
    stored.save()
    assert [job.name for job in stored.load()] == ["job", "other"]


def test_it_is_not_written_through_a_link(stored: StoredJobs, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("as it was")
    Path(f"{stored.path}.new").symlink_to(target)
    with pytest.raises(StateError, match="cannot be written"):
        stored.save()
    assert target.read_text() == "as it was"


def test_several_trees(tmp_path: Path) -> None:
    """There are two trees, and a rank is at one switch of each."""
    trees = Trees(["root1", "root2", "leaf"], {2: Uplink(9, 0)})
    stored = StoredJobs(tmp_path, trees)
    sessions = [stored.harness.join(rank, 2) for rank in range(2)]
    for session in sessions:
        for switch in (2, 1):
            assert stored.harness.hear(session, switch)
    stored.harness.installed()
    stored.save()
    [now], [then] = stored.restored(), stored.harness.jobs
    assert entries(now.placements) == entries(then.placements)
    assert now.placements.keys() == {1, 2}


@given(st.lists(st.tuples(st.integers(-1, 12), st.integers(0, 6)), max_size=6))
def test_ranges_that_are_taken_up_again(wanted: list[tuple[int, int]]) -> None:
    pool, used = SlotPool(12), [False] * 12
    for first, count in wanted:
        fits = count > 0 and first >= 0 and first + count <= 12 and not any(used[first : first + count])
        if fits:
            pool.take(SlotRange(first, count))
            used[first : first + count] = [True] * count
        else:
            with pytest.raises(ValueError, match="not all free"):
                pool.take(SlotRange(first, count))
        assert pool.used == sum(used)


def test_an_address_in_a_file_is_normal(stored: StoredJobs) -> None:
    stored.job("job", LEAF1, LEAF2)
    stored.save()
    stored.path.write_text(stored.path.read_text().replace("02:00:00:00:00:01", "02-00-00-00-00-01"))
    assert stored.load()[0].members[1].heard[LEAF2].sender == Endpoint("02:00:00:00:00:01", "10.0.0.1", 5001)


def test_ipv6_addresses_are_kept(stored: StoredJobs) -> None:
    """They are normal too, so that they compare equal to those of HELLOs and settings."""
    stored.job("job", LEAF1, LEAF2)
    stored.save()
    text = stored.path.read_text()
    for site in range(3):
        text = text.replace(f'"10.0.255.{site}"', f'"FD00:0:0:0::{site}"')
    for rank in range(2):
        text = text.replace(f'"10.0.0.{rank}"', f'"fd01:0:0:0::{rank}"')
    stored.path.write_text(text)
    for _ in range(2):
        kept = stored.file.load(stored.setup(), 1000.0)
        (job,), _ = kept
        assert [address.ip for address in job.site.addresses] == ["fd00::", "fd00::1", "fd00::2"]
        assert job.members[1].heard[LEAF2].sender == Endpoint("02:00:00:00:00:01", "fd01::1", 5001)
        jobs = Jobs(Switches(job.site.layout, job.site.addresses, stored.trees), JobOptions(returns=True))
        jobs.restore(*kept)
        stored.file.save(jobs, {}, stored.harness.now)


def test_vlans_are_kept(stored: StoredJobs) -> None:
    stored.job("job", LEAF1, LEAF2)
    (job,) = stored.harness.jobs
    for rank, vlan in ((0, 20), (1, 0)):
        heard = job.members[rank].heard
        for at, one in heard.items():
            heard[at] = replace(one, vlan=vlan)
    stored.save()
    (restored,) = stored.load()
    assert [{one.vlan for one in restored.members[rank].heard.values()} for rank in (0, 1)] == [{20}, {0}]


def test_hosts_are_kept_and_files_without_them_are_read(stored: StoredJobs) -> None:
    """Those of releases whose ranks shared no memory."""
    stored.job("job", LEAF1, LEAF1, host="here")
    stored.save()
    (job,) = stored.restored()
    assert job.hosts == [0, 0]
    root = json.loads(stored.path.read_text())
    for member in root["jobs"][0]["members"]:
        del member["host"]
    stored.path.write_text(json.dumps(root))
    (job,) = stored.restored()
    assert job.hosts == []


def test_a_file_of_the_release_before_is_read(stored: StoredJobs) -> None:
    stored.job("wide", LEAF1, LEAF2)
    stored.job("rack", LEAF2)
    stored.save()
    root = as_version_3(json.loads(stored.path.read_text()), stored.harness.switches.site, stored.setup())
    stored.path.write_text(json.dumps(root))
    for then, now in zip(stored.harness.jobs, stored.restored(), strict=True):
        assert (now.name, entries(now.placements)) == (then.name, entries(then.placements))
    root["switches"].reverse()
    stored.path.write_text(json.dumps(root))
    with pytest.raises(StateError, match="it has jobs on switches that this controller does not have"):
        stored.restored()


def test_switches_of_no_job_may_come_and_go(stored: StoredJobs) -> None:
    """They may also be in another order. Switches at which a job has slots must be as they were."""
    stored.job("rack", LEAF2)
    stored.save()
    fewer = Trees(["new", "leaf2"], {})
    site = Site(
        stored.harness.switches.site.layout, (Endpoint("02:00:00:00:00:09", "10.0.9.9", 1), ADDRESSES[LEAF2]), fewer
    )
    setup = Setup({0: FakeSwitch(number=9), 1: stored.switches[LEAF2]}, lambda: site)
    with pytest.raises(StateError, match="below spine by port 9; now there is leaf2 at fake 2, aggregator"):
        stored.file.load(setup, 1000.0)
    under = Trees(["new", "leaf2", "spine"], {1: Uplink(9, 2)})
    site = Site(site.layout, (*site.addresses, ADDRESSES[SPINE]), under)
    setup = Setup({0: FakeSwitch(number=9), 1: stored.switches[LEAF2], 2: stored.switches[SPINE]}, lambda: site)
    [job], children = stored.file.load(setup, 1000.0)
    assert job.holds == {1}
    assert list(children) == [(1, 2)]
    assert job.site.numbers == (2, -1, 1)
    jobs = Jobs(Switches(site.layout, site.addresses, under), JobOptions(returns=True))
    jobs.restore([job], children)
    assert [pool.used for pool in jobs.pools] == [0, 4, 0]


# --- states that releases have written -------------------------------------------------------------------------------


STATES = Path(__file__).with_name("states")
READ = ["version3.json", "version4.json"]  # the release before switches came and went, and the next
REFUSED = ["version1.json"]  # 0.1.0
PREFIX = "/p4reduce/state/"


def placed(stored: StoredJobs, state: str) -> Path:
    shutil.copy(STATES / state, stored.path)
    stored.path.chmod(0o600)
    return stored.path


def as_written(jobs: list[Job], root: dict[str, Any]) -> None:
    """Check the jobs of a stored state: one with ranks at two leaves, and one with ranks at one leaf.

    A third job was over when the state was written.
    """
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
def test_a_file_is_read(stored: StoredJobs, state: str) -> None:
    path = placed(stored, state)
    as_written(stored.load(), json.loads(path.read_text()))
    jobs = stored.restored()
    # Each job has 4 of the 16 slots at each of its switches.
    assert [pool.used for pool in jobs.pools] == [4, 4, 8]


@pytest.mark.parametrize("state", REFUSED)
def test_a_file_is_refused_by_its_version_and_left_as_it_is(stored: StoredJobs, state: str) -> None:
    path = placed(stored, state)
    text = path.read_text()
    version = json.loads(text)["version"]
    with pytest.raises(StateError, match=f"it has version {version}, but this controller reads versions"):
        stored.load()
    assert path.read_text() == text


def test_what_is_written_now_is_among_the_samples(stored: StoredJobs) -> None:
    """Else the next release is not held to it: keep a sample when the version is another."""
    versions = {json.loads(path.read_text())["version"] for path in STATES.iterdir()}
    assert VERSION in versions
    assert {path.name for path in STATES.iterdir()} == {*READ, *REFUSED}
    stored.save()
    assert json.loads(stored.path.read_text())["version"] == VERSION
    notes = " ".join((STATES.parents[2] / "docs" / "deploying.md").read_text().split())
    said = (
        f"This release writes version {VERSION}, and reads {PREVIOUS_VERSION} and {VERSION}; "
        f"the previous release reads {PREVIOUS_VERSION}, but not {VERSION}."
    )
    assert said in notes


@pytest.mark.parametrize("state", [*READ, *REFUSED])
def test_in_etcd_it_is_the_same(stored: StoredJobs, state: str) -> None:
    """A state of version 3 is in etcd only if somebody has copied it there."""
    root = json.loads((STATES / state).read_text())
    etcd = FakeEtcd()
    keys = {f"jobs/{job['number']}": job for job in root["jobs"]}
    keys["site"] = {key: value for key, value in root.items() if key != "jobs"}
    for key, value in keys.items():
        etcd.keys[f"{PREFIX}{key}"] = rpc.KeyValue(key=f"{PREFIX}{key}".encode(), value=json.dumps(value).encode())

    def load() -> list[Job]:
        store = EtcdState(etcd, Lease(etcd, "/p4reduce/serving"), PREFIX, "--store etcd://x")
        asyncio.run(store.fetch())
        store.check()  # as a standby does before it becomes leader
        return store.load(stored.setup(), 1000.0)[0]

    if state in READ:
        as_written(load(), root)
    else:
        with pytest.raises(StateError, match=f"it has version {root['version']}"):
            load()
