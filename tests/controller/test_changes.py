# SPDX-License-Identifier: Apache-2.0
"""What operators change of switches by command is there for the next controller, too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.changes import Changes, changes_from, written
from p4reduce_controller.run import _beginning
from p4reduce_controller.settings import Settings, load
from p4reduce_controller.specs import SwitchSpec, spec_of, specs_of
from p4reduce_controller.state import StateError, StateFile

from .conftest import Loop
from .fake_etcd import FakeEtcd
from .ranks import ready, wait_until
from .test_etcd import Controller, after, run
from .test_fabric import FIRST, SECOND, Changing, leave

ONE = {"name": "one", "switch": "one:1", "address": ["10.0.0.1"]}
TWO = {"name": "two", "switch": "two:1", "address": ["10.0.0.2"]}
LEAF = {
    "name": "leaf", "switch": "leaf:1", "address": ["10.0.0.3:7", "10.9.0.3"], "mac": ["02:00:00:00:00:03"],
    "device_id": 3, "ports": [1, 2], "hosts": {"02:00:00:00:00:09": 2}, "hello_rate": 7,
    "routes": [{"destination": "10.1.0.0/24", "port": 2, "next_hop_mac": "02:00:00:00:00:08"}],
    "uplink": {"port": 2, "to": "one"},
}  # fmt: skip


def settings(*switches: dict[str, Any]) -> Settings:
    return load(None, {"switches": list(switches), "switch_insecure": True})


def spec(one: dict[str, Any]) -> SwitchSpec:
    return spec_of(json.dumps(one), settings(ONE))


def names(specs: Any) -> list[str]:
    return [one.name for one in specs]


@pytest.fixture
def kept(loop: Loop, tmp_path: Path) -> Iterator[Changing]:
    changing = Changing(loop, state=tmp_path / "state")
    yield changing
    changing.close()


def next_one(kept: Changing) -> Any:
    """What a controller with the same settings begins with."""
    assert kept.state is not None
    kept.state.peek()
    return changes_from(kept.state.fabric, kept.settings).begin_with(specs_of(kept.settings))


def test_a_switch_is_kept_as_it_was_added() -> None:
    for one in (ONE, LEAF):
        assert spec(written(spec(one))) == spec(one)


def test_what_commands_change_is_kept(kept: Changing) -> None:
    kept.add("third")
    kept.add("fourth", switch="fourth:1", address=["127.0.0.1:40200"])
    kept.ask("DrainSwitch", pb.DrainSwitchRequest(name="fourth"))
    kept.ask("DrainSwitch", pb.DrainSwitchRequest(name=FIRST))
    beginning = next_one(kept)
    assert names(beginning.specs) == [FIRST, SECOND, "third", "fourth"]
    assert beginning.draining == {FIRST, "fourth"}
    kept.ask("DrainSwitch", pb.DrainSwitchRequest(name=FIRST, undo=True))
    kept.ask("RemoveSwitch", pb.RemoveSwitchRequest(name="third"))
    kept.ask("RemoveSwitch", pb.RemoveSwitchRequest(name=SECOND))
    wait_until(lambda: names(next_one(kept).specs) == [FIRST, "fourth"], "the two to be gone")
    assert next_one(kept).draining == {"fourth"}


def test_one_that_leaves_still_does_and_who_waits_for_its_place_comes_then(kept: Changing) -> None:
    running = kept.rank(0, 1, job="running")
    ready([running])
    kept.ask("RemoveSwitch", pb.RemoveSwitchRequest(name=SECOND))
    kept.add("heir", switch="fake 1", address=[SECOND])
    beginning = next_one(kept)
    assert (names(beginning.specs), names(beginning.leaving), names(beginning.waiting)) == (
        [SECOND, FIRST], [SECOND], ["heir"],
    )  # fmt: skip
    kept.loop.call(kept.service.open, kept.settings, kept._make, replace(beginning))
    assert kept.status()[SECOND].leaving
    assert "heir" not in kept.status()
    leave(kept, running)
    wait_until(lambda: list(kept.status()) == [FIRST, "heir"], "the heir to come")


def test_who_is_below_one_that_waits_does_so_too() -> None:
    """A parent was renamed in the file, and its jobs still run under the old name."""
    top, leaf = {**ONE, "name": "top"}, {**LEAF, "uplink": {"port": 2, "to": "top"}}
    beginning = Changes(leaving=(spec(ONE),)).begin_with(specs_of(settings(leaf, top, TWO)))
    assert (names(beginning.specs), names(beginning.waiting)) == (["one", "two"], ["top", "leaf"])


def test_what_settings_say_by_now_comes_first(caplog: pytest.LogCaptureFixture) -> None:
    kept = Changes(added=(spec(LEAF), spec(TWO)), removed=(spec(ONE),), draining=frozenset({"two", "gone"}))
    beginning = kept.begin_with(specs_of(settings(ONE, {**TWO, "switch": "two:2"})))
    assert names(beginning.specs) == ["two"]
    assert beginning.specs[0].config.target == "two:2"
    assert "the switch two is left out: two of the settings is in its place" in caplog.text
    assert "the switch leaf is left out: what was above it is no switch any more" in caplog.text
    other = kept.begin_with(specs_of(settings({**ONE, "ports": [1, 2]}, TWO)))  # which was changed since
    assert names(other.specs) == ["one", "two", "leaf"]


def test_etcd_has_it_too(tmp_path: Path) -> None:
    etcd = FakeEtcd()
    one = Controller(etcd, tmp_path / "one")
    one.load()
    one.state.fabric = Changes(added=(spec(LEAF),), draining=frozenset({"one"})).to_keep()
    one.keep()
    two = after(etcd, tmp_path)
    run(two.state.fetch())
    beginning = _beginning(settings(ONE, TWO), two.state)
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
        _beginning(settings(ONE), file)
    assert "remove the file" in str(caught.value)
    file.close()


def test_what_a_port_carried_is_forgotten_with_its_switch(kept: Changing) -> None:
    reports = kept.service.reports
    for place in ((0, 1), (1, 1), (1, 2)):
        kept.loop.call(reports.ports.__getitem__, place)
    kept.ask("RemoveSwitch", pb.RemoveSwitchRequest(name=SECOND))
    wait_until(lambda: list(reports.ports) == [(0, 1)], "the ports of the second to go")
