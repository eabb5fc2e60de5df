# SPDX-License-Identifier: Apache-2.0
"""Switches that operators add or remove by command are there, or gone, for the next controller, too."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from p4reduce.control.client import Assigned
from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.fabric.changes import Changes, changes_from, spec_of, specs_of, written
from p4reduce_controller.p4runtime.switch_config import SwitchConfig
from p4reduce_controller.service import run as whole
from p4reduce_controller.service.run import _initial_switches
from p4reduce_controller.settings.settings import Settings
from p4reduce_controller.store.state import StateError, StateFile
from p4reduce_controller.switches.aggregator import Heard
from p4reduce_controller.switches.frames import Endpoint
from tests.support.controller.changing import FIRST, FIRST_FILED, SECOND, UP, Changing, filed, leave, settings
from tests.support.controller.fake_etcd import FakeEtcd
from tests.support.controller.fake_switch import FakeSwitch
from tests.support.controller.ranks import hello_packet, ready
from tests.support.controller.running import Starter
from tests.support.controller.standby import Controller, after, run
from tests.support.waiting import wait_until

ONE, TWO = filed("one", "10.0.0.1"), filed("two", "10.0.0.2")
LEAF = {
    "name": "leaf", "switch": "leaf:1", "address": ["10.0.0.3:7", "10.9.0.3"], "mac": ["02:00:00:00:00:03"],
    "device_id": 3, "ports": [1, 2], "lag": [[1, 3], [4, 5]], "hosts": {"02:00:00:00:00:09": 2}, "hello_rate": 7,
    "routes": [{"destination": "10.1.0.0/24", "port": 2, "next_hop_mac": "02:00:00:00:00:08"}],
    "uplink": {"port": 2, "to": "one"},
}  # fmt: skip


def spec(one: dict[str, Any]) -> SwitchConfig:
    return spec_of(json.dumps(one), settings(ONE))


def names(specs: Any) -> list[str]:
    return [one.name for one in specs]


@pytest.fixture
def kept(start: Starter, tmp_path: Path) -> Changing:
    return start(Changing, state=tmp_path / "state")


def test_a_link_group_leads_to_one_parent() -> None:
    """If it had uplinks to two, the sums for one would go to the other when a port goes down."""
    uplinks = [{"port": 1, "to": "one"}, {"port": 2, "to": "two"}]
    assert spec(LEAF | {"uplink": uplinks}).uplinks == ((1, "one"), (2, "two"))
    said = "--lag 3,2,1: the switch leaf has uplinks from port 1 to one and port 2 to two; the ports of a group must"
    leaf = LEAF | {"uplink": uplinks, "lag": [[4, 5], [3, 2, 1]]}
    with pytest.raises(SettingsError, match=said):
        spec(leaf)
    with pytest.raises(SettingsError, match=said):
        specs_of(settings(ONE, TWO, leaf))


def next_one(kept: Changing) -> Any:
    """Return the switches that another controller with the same settings begins with."""
    kept.state.peek()
    return changes_from(kept.state.fabric, kept.settings).begin_with(specs_of(kept.settings))


def test_a_switch_is_kept_as_it_was_added() -> None:
    for one in (ONE, LEAF):
        assert spec(written(spec(one))) == spec(one)


def test_what_commands_change_is_kept(kept: Changing) -> None:
    kept.add("third")
    kept.add("fourth", switch="fourth:1", address=["127.0.0.1:40200"])
    kept.drain("fourth")
    kept.drain(FIRST)
    beginning = next_one(kept)
    assert names(beginning.specs) == [FIRST, SECOND, "third", "fourth"]
    assert beginning.draining == {FIRST, "fourth"}
    kept.drain(FIRST, undo=True)
    kept.remove("third")
    kept.remove(SECOND)
    wait_until(lambda: names(next_one(kept).specs) == [FIRST, "fourth"], "the two to be gone")
    assert next_one(kept).draining == {"fourth"}


def test_one_that_leaves_still_does_and_who_waits_for_its_place_comes_then(kept: Changing) -> None:
    [running] = kept.job(1, job="running")
    kept.remove(SECOND)
    kept.add("heir", switch="fake 1", address=[SECOND])
    beginning = next_one(kept)
    assert (names(beginning.specs), names(beginning.leaving), names(beginning.waiting)) == (
        [SECOND, FIRST], [SECOND], ["heir"],
    )  # fmt: skip
    kept.loop.call(kept.controller.open, kept.settings, kept._make, replace(beginning))
    assert kept.status()[SECOND].leaving
    assert "heir" not in kept.status()
    leave(kept, running)
    wait_until(lambda: list(kept.status()) == [FIRST, "heir"], "the heir to come")


def test_what_settings_say_by_now_comes_first(caplog: pytest.LogCaptureFixture) -> None:
    kept = Changes(added=(spec(LEAF), spec(TWO)), removed=(spec(ONE),), draining=frozenset({"two", "gone"}))
    beginning = kept.begin_with(specs_of(settings(ONE, {**TWO, "switch": "two:2"})))
    assert names(beginning.specs) == ["two"]
    assert beginning.specs[0].target == "two:2"
    assert "the switch two is ignored: two of the settings has taken its place" in caplog.text
    assert "the switch leaf is ignored: its parent is no longer a switch" in caplog.text
    other = kept.begin_with(specs_of(settings({**ONE, "ports": [1, 2]}, TWO)))  # which was changed since
    assert names(other.specs) == ["one", "two", "leaf"]


def test_etcd_has_it_too(tmp_path: Path) -> None:
    etcd = FakeEtcd()
    one = Controller(etcd, tmp_path / "one")
    one.load()
    one.state.fabric = Changes(added=(spec(LEAF),), draining=frozenset({"one"})).to_json()
    one.keep()
    two = after(etcd, tmp_path)
    run(two.state.fetch())
    beginning = _initial_switches(settings(ONE, TWO), two.state)
    assert names(beginning.specs) == ["one", "two", "leaf"]
    assert beginning.draining == {"one"}


@pytest.mark.parametrize(
    "fabric",
    [[], {"added": 3}, {"added": [3]}, {"added": [{"name": "x"}]}, {"draining": [3]}, {"leaving": [{"colour": "red"}]}],
)
def test_what_cannot_be_is_refused(tmp_path: Path, fabric: Any) -> None:
    path = tmp_path / "state"
    path.write_text(json.dumps({"version": 4, "children": {}, "jobs": [], "fabric": fabric}))
    path.chmod(0o600)
    file = StateFile(path)
    with pytest.raises(StateError, match="fabric") as caught:
        _initial_switches(settings(ONE), file)
    assert "remove the file" in str(caught.value)
    file.close()


def test_what_a_port_carried_is_forgotten_with_its_switch(kept: Changing) -> None:
    reports = kept.controller.reports
    for place in ((0, 1), (1, 1), (1, 2)):
        kept.loop.call(reports.ports.__getitem__, place)
    kept.remove(SECOND)
    wait_until(lambda: list(reports.ports) == [(0, 1)], "the ports of the second to go")


# --- jobs at switches whose names others have -------------------------------------------------------------------------


class Later:
    """A later controller that has served with a copy of the state file, with its switches and jobs.

    status: the switches, as that controller reported them.
    jobs: the targets of the switches at which each running job has slots, by the job's name.
    """

    def __init__(self, kept: Changing, monkeypatch: pytest.MonkeyPatch) -> None:
        self._kept = kept
        self._made: dict[str, FakeSwitch] = {}
        monkeypatch.setattr(whole, "P4RuntimeSwitch", self._make)
        monkeypatch.setattr(whole, "Program", lambda _: kept.switch)  # which has a layout

    def _make(self, config: Any, *_: Any) -> FakeSwitch:
        """Return a fake switch that has the jobs of the one with the same target."""
        switch = FakeSwitch(16)
        switch.target, switch.address = config.target, config.address
        [there] = [one for one in self._kept.switches if one.target == config.target]
        switch.admitted = dict(there.admitted)
        self._made[config.target] = switch
        return switch

    def serve(self, settings: Settings | None = None) -> None:
        self._kept.loop.run(self._serve(settings or self._kept.settings))

    async def _serve(self, settings: Settings) -> None:
        await self._kept.controller.saver.save()  # what has just changed may not be saved yet
        path = self._kept.state.path.with_name("copy")
        shutil.copy(self._kept.state.path, path)
        async with whole.running(replace(settings, state=str(path), listen="127.0.0.1:0"), 1.0) as controller:
            switches = controller.inventory.switches
            self.status = (await controller.status()).switches
            self.jobs = {
                job.name: {switches[number].target for number in job.holds}
                for job in controller.jobs.live
                if not job.over
            }
            await controller.saver.save()
        again = json.loads(path.read_text())
        now = json.loads(self._kept.state.path.read_text())
        assert [job["site"] for job in again["jobs"]] == [job["site"] for job in now["jobs"]]
        assert again["fabric"] == now["fabric"]


@pytest.fixture
def later(kept: Changing, monkeypatch: pytest.MonkeyPatch) -> Later:
    return Later(kept, monkeypatch)


def by_target(later: Later) -> dict[str, tuple[str, bool]]:
    return {one.address: (one.name, one.leaving) for one in later.status}


def test_one_whose_name_another_has_is_there_with_its_jobs(kept: Changing, later: Later) -> None:
    """The other switch, which has its name now, is there with its own jobs, too."""
    kept.add("third")
    kept.job(1, job="before")
    for round in (1, 2):  # it is replaced twice
        kept.remove("third")
        kept.add("third", switch=f"new:{round}", address=[f"127.0.0.1:4020{round}"])
        kept.job(1, job=f"after {round}")
    later.serve()
    assert by_target(later) == {
        "fake": (FIRST, False), "fake 1": (SECOND, False),
        "third:1": ("third", True), "new:1": ("third", True), "new:2": ("third", False),
    }  # fmt: skip
    assert later.jobs == {
        name: {"fake", "fake 1", target}
        for name, target in (("before", "third:1"), ("after 1", "new:1"), ("after 2", "new:2"))
    }


def test_one_of_the_settings_that_a_command_has_replaced_stays_so(kept: Changing, later: Later) -> None:
    [before] = kept.job(1, job="before")
    kept.remove(SECOND)
    kept.add(SECOND, switch="new:1")
    [after] = kept.job(1, job="after")
    later.serve()
    assert later.jobs == {"before": {"fake", "fake 1"}, "after": {"fake", "new:1"}}
    assert by_target(later)["fake 1"] == (SECOND, True)
    leave(kept, before)
    wait_until(lambda: len(kept.look().switches) == 2, "the old one to go")
    later.serve()
    assert by_target(later) == {"fake": (FIRST, False), "new:1": (SECOND, False)}
    assert later.jobs == {"after": {"fake", "new:1"}}
    leave(kept, after)


def test_one_that_is_replaced_at_its_address_is_there_with_its_jobs(kept: Changing, later: Later) -> None:
    kept.job(1, job="before")
    kept.remove(SECOND)
    kept.add(SECOND, switch="fake 1", address=[SECOND], ports=[1, 2])
    kept.job(1, job="after")
    later.serve()
    assert by_target(later) == {"fake": (FIRST, False), "fake 1": (SECOND, True)}
    assert later.jobs == {"before": {"fake", "fake 1"}, "after": {"fake"}}


def test_who_waits_for_the_address_of_one_whose_name_another_has_does_so_later(kept: Changing) -> None:
    kept.add("third")
    kept.job(1, job="before")
    kept.remove("third")
    kept.add("third", switch="new:1", address=["127.0.0.1:40201"])
    kept.add("heir")  # at the address of the first
    beginning = next_one(kept)
    assert (names(beginning.specs), names(beginning.retained), names(beginning.waiting)) == (
        [FIRST, SECOND, "third"], ["third"], ["heir"],
    )  # fmt: skip
    assert beginning.retained[0].target == "third:1"


def test_a_file_that_calls_another_so(kept: Changing, later: Later) -> None:
    """A standby that has not read the file again still takes the first switch for what it was."""
    kept.job(1, job="before")
    after = settings(FIRST_FILED, filed(SECOND, "127.0.0.1:40201", switch="new:1"))
    kept.reload(after)
    kept.job(1, job="after")
    later.serve(after)
    assert later.jobs == {"before": {"fake", "fake 1"}, "after": {"fake", "new:1"}}
    assert by_target(later)["fake 1"] == (SECOND, True)
    beginning = next_one(kept)
    assert (names(beginning.specs), beginning.retained) == ([FIRST, SECOND], [])


LEAVES = {"a": 40211, "b": 40212}


def tree(number: int) -> Settings:
    leaves = [filed(leaf, f"127.0.0.1:{port}", uplink={"port": UP, "to": "top"}) for leaf, port in LEAVES.items()]
    return settings(filed("top", f"127.0.0.1:4020{number}", switch=f"top:{number}"), *leaves)


@pytest.fixture
def leaves(kept: Changing) -> Changing:
    """Return a controller with a spine and its leaves.

    The spine hears its leaves at port 7, and a leaf that is added later at port 8.
    """
    original = kept._make

    def make(spec: SwitchConfig) -> FakeSwitch:
        switch = original(spec)
        for other in kept.switches:
            if other.target in ("top:1", "top:2") and spec.uplinks:
                switch.cables.setdefault(UP, []).append((other, 7))
            if other.target in ("a:1", "b:1") and not spec.uplinks:
                other.cables.setdefault(UP, []).append((switch, 8))
        return switch

    kept.loop.call(kept.controller.open, kept.settings, make, Changes().begin_with(specs_of(kept.settings)))
    change(kept, tree(1), "top:1", "a:1", "b:1")
    return kept


def change(kept: Changing, after: Settings, *targets: str) -> None:
    """Reload the settings, and wait until exactly the switches with these targets are there and heard."""
    kept.reload(after)

    def there() -> bool:
        every = kept.look().switches
        return {one.address for one in every if one.state in ("Ready", "Draining", "Cordoned")} == set(targets)

    wait_until(there, f"{targets} to be there")


def run_at(kept: Changing, name: str, *leaves: str) -> None:
    """Run a job with one rank at each of these leaves."""

    def hello(assigned: Assigned) -> None:
        packet = hello_packet(assigned)
        sender = Endpoint(f"02:00:00:00:00:{assigned.worker:02x}", "127.0.0.1", 41000 + assigned.worker)
        heard = Heard(1, sender, packet.job, packet.generation, packet.worker, packet.nonce)
        kept.loop.call(kept.made[f"{leaves[assigned.worker]}:1"].hear, heard)

    kept._hello = hello  # type: ignore[method-assign]
    ready([kept.rank(rank, len(leaves), job=name) for rank in range(len(leaves))])


def test_leaves_below_one_whose_name_another_has(leaves: Changing, later: Later) -> None:
    """The other hears them at another port."""
    run_at(leaves, "before", "a", "b")
    change(leaves, tree(2), "top:1", "top:2", "a:1", "b:1")
    run_at(leaves, "after", "a", "b")
    later.serve(tree(2))
    assert later.jobs == {"before": {"top:1", "a:1", "b:1"}, "after": {"top:2", "a:1", "b:1"}}


def test_a_leaf_that_leaves_after_what_was_above_it(leaves: Changing, later: Later) -> None:
    run_at(leaves, "rack", "a", "a")
    after = settings(filed("other", "127.0.0.1:40230"))
    change(leaves, after, "other:1", "a:1")
    later.serve(after)
    assert later.jobs == {"rack": {"a:1"}}
    assert by_target(later) == {"other:1": ("other", False), "a:1": ("a", True)}


def test_leaves_that_leave_while_others_have_their_names(leaves: Changing, later: Later) -> None:
    run_at(leaves, "before", "a", "b")
    named = {"switch": "left:1", "uplink": {"port": UP, "to": "top"}}
    top, *_ = tree(2).switches
    after = settings(top, filed("a", "127.0.0.1:40240", **named))
    change(leaves, after, "top:1", "top:2", "a:1", "b:1", "left:1")
    later.serve(after)
    assert later.jobs == {"before": {"top:1", "a:1", "b:1"}}
    assert by_target(later) == {
        "top:2": ("top", False), "left:1": ("a", False), "b:1": ("b", True), "top:1": ("top", True), "a:1": ("a", True),
    }  # fmt: skip


def test_what_is_below_one_that_waits_comes_after_it() -> None:
    upper = {**ONE, "name": "upper"}
    lower = {**LEAF, "uplink": {"port": 2, "to": "upper"}}
    beginning = Changes(leaving=(spec(ONE),)).begin_with(specs_of(settings(upper, lower, TWO)))
    assert (names(beginning.specs), names(beginning.waiting), names(beginning.configured)) == (
        ["one", "two"], ["upper", "leaf"], ["upper", "leaf", "two"],
    )  # fmt: skip


def test_no_switch_for_jobs_that_begin() -> None:
    with pytest.raises(ValueError, match="one of the settings wait until jobs have left the switches in their place"):
        Changes(replaced=(spec({**ONE, "name": "other"}),)).begin_with(specs_of(settings(ONE)))
