# SPDX-License-Identifier: Apache-2.0
"""Switches come and go while jobs run: on switches in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import grpc
import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.fabric.changes import Changes, other_changes, spec_of, specs_of
from p4reduce_controller.p4runtime.switch_config import SwitchConfig
from p4reduce_controller.settings.settings import Settings, load
from p4reduce_controller.switches.aggregator import Layout, Superseded
from p4reduce_controller.switches.availability import SwitchState, Unavailable
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.site import Site
from p4reduce_controller.switches.trees import Trees, Uplink
from tests.support.controller.changing import FIRST, FIRST_FILED, SECOND, UP, Changing, filed, leave, settings
from tests.support.controller.fake_switch import FakeSwitch
from tests.support.controller.jobs_harness import LEAF1, LEAF2, SPINE, TWO_LEAVES, TreeHarness
from tests.support.controller.ranks import ready
from tests.support.controller.running import Running, Starter
from tests.support.waiting import wait_until

GONE = "unreachable for 12 s: pulled"
TWO = Trees(["one", "two"])


# --- sites -----------------------------------------------------------------------------------------------------------


def site(trees: Trees) -> Site:
    addresses = tuple(Endpoint(f"02:00:00:00:00:{at:02x}", f"10.0.0.{at}", 31314) for at in range(len(trees.names)))
    return Site(Layout(4, 64, 16), addresses, trees, numbers=tuple(range(10, 10 + len(addresses))))


@pytest.mark.parametrize(
    ("names", "uplinks", "out", "left"),
    [
        ("ab", {}, {0}, "b"),
        ("ab", {}, {0, 1}, "ab"),  # there is nothing else, and errors name them
        ("abc", {1: 0, 2: 0}, {2}, "ab"),
        ("abc", {1: 0, 2: 0}, {0}, "abc"),  # racks by themselves need no spine
        ("abcd", {1: 0, 3: 2}, {0}, "cd"),  # a whole tree goes, as there is another
        ("abc", {1: 0, 2: 1}, {1}, "abc"),  # what is below it needs a way up
        ("abc", {1: 0, 2: 1}, {1, 2}, "a"),
    ],
)
def test_what_is_left_out_of_a_site(names: str, uplinks: dict[int, int], out: set[int], left: str) -> None:
    every = site(Trees(list(names), {child: Uplink(9, parent) for child, parent in uplinks.items()}))
    rest = every.without(out)
    assert "".join(rest.trees.names) == left
    for at, name in enumerate(left):
        assert rest.number(at) == 10 + names.index(name)
        assert rest.index_of(rest.number(at)) == at
        assert rest.addresses[at] == every.addresses[names.index(name)]
        up = rest.trees.uplinks.get(at)
        assert (left[up.parent] if up else None) == (
            names[uplinks[names.index(name)]] if names.index(name) in uplinks else None
        )


def test_threads_have_the_same_numbers() -> None:
    both = site(TWO).for_threads(3)
    assert [both.number(at) for at in range(6)] == [10, 11] * 3


# --- jobs ------------------------------------------------------------------------------------------------------------


def ready_at_all(harness: TreeHarness, name: str, *switches: int) -> object:
    """Run a job of one rank, which each of these switches hears, and return the rank's session."""
    session = harness.join(0, 1, name)
    assert [harness.hear(session, switch) for switch in switches] == [True] * len(switches)
    harness.installed()
    assert harness.kinds(session)[-1] == "ready"
    return session


def test_a_dead_root_is_left_out_of_jobs_that_begin() -> None:
    harness = TreeHarness(TWO)
    ready_at_all(harness, "before", 0, 1)
    assert [pool.used for pool in harness.jobs.pools] == [2, 2]
    harness.absent = {1: GONE}
    session = ready_at_all(harness, "after", 0)
    assert [one.ip for one in harness.assigned(session).aggregators] == ["10.0.255.0"]
    assert [pool.used for pool in harness.jobs.pools] == [6, 2]
    after = harness.jobs.named("after")
    assert after.excluded_switches == [f"the switch two cannot be used: {GONE}"]
    assert after.holds == {0}
    harness.absent.clear()
    ready_at_all(harness, "later", 0, 1)
    assert [pool.used for pool in harness.jobs.pools] == [8, 4]


def test_the_second_root_alone_is_the_first_of_a_job() -> None:
    harness = TreeHarness(TWO)
    harness.absent = {0: GONE}
    session = harness.join(0, 1, slots=4)
    assert not harness.hear(session, 0)
    assert harness.hear(session, 1)
    assert {number: job.holds for job in harness.jobs for number in [job.number]} == {1: {1}}
    harness.installed()
    harness.lose(session)
    harness.removed()
    assert [pool.used for pool in harness.jobs.pools] == [0, 0]


def test_who_asks_for_more_than_is_left_hears_what_is_away() -> None:
    harness = TreeHarness(TWO)
    harness.absent = {1: GONE}
    refused = harness.join(0, 1, slots=20)
    assert f"slots=20, and 16 are available: the switch two cannot be used: {GONE}" in harness.last(refused).message


def test_a_dead_leaf_is_left_out_and_who_is_there_is_told() -> None:
    harness = TreeHarness(TWO_LEAVES)
    harness.absent = {LEAF2: GONE}
    session = harness.join(0, 2, name="wide")
    assert len(harness.assigned(session).aggregators) == 2
    harness.absent.clear()  # it is back, but not of this job
    assert (
        "leaf2 could not be used when the job began"
        in harness.last(harness.join(1, 2, name="wide", switch="leaf2")).message
    )


def test_a_job_that_gathers_begins_though_a_switch_is_drained_meanwhile() -> None:
    harness = TreeHarness(TWO_LEAVES)
    gathering = [harness.join(rank, 2, name="gathering") for rank in range(2)]
    drained = {SPINE: [Unavailable("it is being drained", SwitchState.DRAINING)]}
    harness.switches.conditions = lambda number: drained.get(number, [])  # type: ignore[method-assign]
    harness.hear(gathering[0], LEAF1)
    harness.hear(gathering[1], LEAF2)
    harness.installed()
    assert [harness.kinds(session)[-1] for session in gathering] == ["ready", "ready"]


# --- a service -------------------------------------------------------------------------------------------------------


def test_a_switch_is_added_and_jobs_that_begin_use_it(changing: Changing) -> None:
    [before] = changing.job(1, job="before", slots=6)
    assert changing.add("third") == ["the switch third is added"]
    [after] = changing.job(1, job="after", slots=6)
    assert [one.udp_port for one in after.assigned.aggregators] == [31314, 31315, 40100]
    assert {name: one.slots_used for name, one in changing.status().items()} == {FIRST: 5, SECOND: 5, "third": 2}
    assert changing.done(changing.made["third:1"]) == ["install", "reset"]
    leave(changing, before)
    wait_until(lambda: changing.status()[FIRST].slots_used == 2, "the first job to be taken off")
    assert changing.done(changing.made["third:1"]) == ["install", "reset"]


def test_a_switch_is_drained_and_then_removed(changing: Changing) -> None:
    [running] = changing.job(1, job="running")
    assert changing.drain(SECOND) == [f"the switch {SECOND} takes no new jobs; running run there"]
    changing.job(1, job="next")
    there = changing.status()
    assert (there[SECOND].draining, list(there[SECOND].jobs), there[SECOND].slots_used) == (True, ["running"], 2)
    assert (there[SECOND].state, there[SECOND].problem) == ("Draining", "it is being drained")
    changing.remove(SECOND)
    assert changing.status()[SECOND].leaving
    assert running.session.aborted is None
    leave(changing, running)
    wait_until(lambda: SECOND not in changing.status(), "it to be gone")
    wait_until(lambda: changing.done(changing.switches[1])[-1] == "close", "the connection to end")
    assert changing.done(changing.switches[1]) == ["install", "reset", "fence", "forget", "close"]
    job = changing.look().jobs[0]
    assert (job.name, len(job.pools), len(job.members[0].places)) == ("next", 1, 1)
    leave(changing, changing.ranks[1])
    wait_until(lambda: changing.used() == 0, "the slots to be freed")


def test_who_waits_goes_on_waiting_while_every_switch_is_drained(changing: Changing) -> None:
    [running] = changing.job(1, job="running", slots=32)
    waiting = [changing.rank(0, 2, job="waits", slots=8, queue=60.0)]
    wait_until(lambda: waits(changing), "it to wait")
    for name in (FIRST, SECOND):
        changing.drain(name)
    leave(changing, running)
    wait_until(lambda: waits(changing) == f"the switch {FIRST} cannot be used: it is being drained", "to know why")
    waiting.append(changing.rank(1, 2, job="waits", slots=8, queue=60.0))
    wait_until(lambda: len(changing.look().queue[0].ranks) == 2, "the other to wait, too")
    assert "it is being drained" in str(changing.rank(0, 1, job="does not wait").outcome())
    changing.drain(SECOND, undo=True)
    for assigned in ready(waiting):
        assert [at.udp_port for at in assigned.aggregators] == [31315]


def waits(changing: Changing) -> str:
    """Return the reasons for which jobs wait in the queue."""
    return "".join(one.why for one in changing.look().queue)


@pytest.mark.parametrize("dead", [False, True])
def test_a_switch_is_removed_at_once_and_its_jobs_are_told_which(changing: Changing, dead: bool) -> None:
    ranks = changing.job(2)
    if dead:
        changing.loop.call(changing.switches[1].disconnect)
    changing.remove(SECOND, now=True)
    wait_until(lambda: all(rank.session.aborted for rank in ranks), "the ranks to hear of it")
    error = ranks[0].session.aborted
    assert f"its switch {SECOND} was removed by an operator" in str(error)
    assert error.reason == "ENDED_BY_OPERATOR"
    changing.wait_for(FIRST)
    wait_until(lambda: changing.used() == 0, "the slots to be freed")
    assert ("fence" in changing.switches[1].log) is not dead
    changing.job(1, job="next")


def test_a_switch_is_replaced_while_its_jobs_run(changing: Changing) -> None:
    [running] = changing.job(1, job="running")
    changing.remove(SECOND)
    changing.add(SECOND, switch="elsewhere:1")
    [after] = changing.job(1, job="next")
    assert [one.udp_port for one in after.assigned.aggregators] == [31314, 40100]
    assert len(changing.look().switches) == 3
    leave(changing, running)
    changing.wait_for(FIRST, SECOND)
    assert changing.status()[SECOND].address == "elsewhere:1"


def test_a_switch_is_replaced_at_its_address_when_its_jobs_are_over(changing: Changing) -> None:
    [running] = changing.job(1, job="running")
    changing.remove(SECOND)
    same = {"switch": "fake 1", "address": [SECOND]}
    assert changing.add(SECOND, **same) == [f"the switch {SECOND} will be added when {SECOND} has left its address"]
    leave(changing, running)
    wait_until(lambda: "fake 1" in changing.made, "the new one to come")
    changing.wait_for(FIRST, SECOND)
    wait_until(lambda: changing.made["fake 1"].listener is not None, "it to be started")
    assert len(ready([changing.rank(0, 1, job="next")])[0].aggregators) == 2


def test_a_leaf_comes_and_finds_its_parent(changing: Changing) -> None:
    original = changing._make

    def make(spec: SwitchConfig) -> FakeSwitch:
        switch = original(spec)
        switch.cables[UP] = [(changing.switches[0], 7)]
        return switch

    changing._make = make  # type: ignore[method-assign]
    beginning = Changes().begin_with(specs_of(changing.settings))
    changing.loop.call(changing.controller.open, changing.settings, make, beginning)
    changing.add("leaf", uplink={"port": UP, "to": FIRST})
    wait_until(lambda: not changing.status()["leaf"].problem, "it to be heard")
    assert changing.status()["leaf"].parent == FIRST
    assert f"the switch {FIRST} has leaf below it; remove those first" in changing.refused(
        lambda: changing.remove(FIRST)
    )


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"name": FIRST}, f"the switch {FIRST} exists already"),
        ({"switch": "fake"}, f"has an address in common with {FIRST}"),
        ({"switch": "fake 9", "address": ["10.0.0.9"], "device_id": -1}, "accepted are 1 to 18446744073709551615"),
        ({"switch": "fake 9", "address": ["10.0.0.9"], "name": "\ud800"}, "accepted are 1 to 200 printable characters"),
        ({"switch": "fake 9", "address": ["10.0.0.9"], "name": 3}, "accepted are 1 to 200 printable characters"),
        ({"address": [SECOND]}, f"has an address in common with {SECOND}"),
        ({"uplink": {"port": 3, "to": "nowhere"}}, "the switch third: its parent nowhere is not a switch"),
        ({"uplink": {"port": 3}}, "accepted is as { port = 3, to = 'spine' }"),
        ({"uplink": {"port": 3, "to": "third"}}, "cycle"),
        ({"colour": "red"}, "unknown colour"),
        ({"address": ["x"]}, "must be an IP address"),
        (
            {"address": ["fd00::3"], "uplink": {"port": 3, "to": FIRST}},
            f"the switch third has --address [fd00::3]:31314, and its parent {FIRST} has {FIRST}: give both IPv4",
        ),
        ({"ports": [1000]}, "must be from 1 to 509"),
    ],
)
def test_what_cannot_be_added_is_refused(changing: Changing, more: dict[str, Any], said: str) -> None:
    assert said in changing.refused(lambda: changing.add("third", **more))
    assert list(changing.status()) == [FIRST, SECOND]
    assert not changing.made


def test_a_switch_of_another_controller_is_not_taken(changing: Changing, monkeypatch: pytest.MonkeyPatch) -> None:
    async def look(*_: object) -> None:
        raise Superseded("another controller is its primary")

    monkeypatch.setattr(FakeSwitch, "look", look)
    with pytest.raises(grpc.RpcError, match="another controller is its primary"):
        changing.add("third")
    assert list(changing.status()) == [FIRST, SECOND]


def test_the_last_root_stays(changing: Changing) -> None:
    changing.remove(SECOND)
    assert "the last one without a parent" in changing.refused(lambda: changing.remove(FIRST))
    for method, request in (("DrainSwitch", pb.DrainSwitchRequest), ("RemoveSwitch", pb.RemoveSwitchRequest)):
        assert "there is no switch 'x'; the switches are" in changing.refused(
            lambda m=method, r=request: changing.ask(m, r(name="x"))
        )


def test_ranks_that_gather_at_a_switch_that_goes_hear_of_it(changing: Changing) -> None:
    changing.mute.add(0)
    waiting = changing.rank(0, 1)
    wait_until(lambda: waiting.assigned, "it to be assigned")
    changing.remove(SECOND, now=True)
    assert f"its switch {SECOND} was removed by an operator" in str(waiting.outcome())


# --- a file ----------------------------------------------------------------------------------------------------------


def test_a_file_that_is_read_again(changing: Changing) -> None:
    """New switches are added whatever their order, missing ones are removed, and changed ones are replaced."""
    leaf = filed("leaf", "10.0.0.2", uplink={"port": 3, "to": "spine"})
    said = changing.reload(settings(FIRST_FILED, leaf, filed("spine", "10.0.0.1"), slots=7))
    assert said[0] == "slots has changed: restart the controller to apply it"
    assert "the switch spine is added" in said
    changing.wait_for(FIRST, "leaf", "spine")
    assert changing.status()["leaf"].parent == "spine"
    changed = settings(FIRST_FILED, filed("spine", "10.0.0.3", switch="new:1"), leaf, slots=7)
    changing.reload(changed)
    wait_until(lambda: changing.status()["spine"].address == "new:1", "the spine to be replaced")
    changing.wait_for(FIRST, "leaf", "spine")
    assert changing.status()["leaf"].parent == "spine"
    assert changing.reload(changed) == ["slots has changed: restart the controller to apply it"]


def test_a_tree_gets_addresses_of_another_family(changing: Changing) -> None:
    """Its switches go when no job uses them, in any order. No new leaf is below an old parent."""

    def tree(leaf: str, spine: str, targets: str = "") -> Settings:
        below = filed("leaf", leaf, switch=f"leaf{targets}:1", uplink={"port": 3, "to": "spine"})
        return settings(FIRST_FILED, below, filed("spine", spine, switch=f"spine{targets}:1"))

    changing.reload(tree("10.0.0.2", "10.0.0.1"))
    for targets, leaf, spine in (("", "fd00::2", "fd00::1"), ("-new", "10.0.0.2", "10.0.0.1"), ("", "::1", "fd00::3")):
        changing.reload(tree(leaf, spine, targets))
        wait_until(lambda ip=leaf: changing.status()["leaf"].ip == ip, "the leaf to be replaced")  # type: ignore[misc]
        changing.wait_for(FIRST, "leaf", "spine")
        assert (changing.status()["spine"].ip, changing.status()["leaf"].parent) == (spine, "spine")
    with pytest.raises(SettingsError, match=r"the switch leaf has --address .*, and its parent spine has"):
        changing.reload(tree("10.0.0.2", "fd00::1"))
    assert changing.status()["leaf"].ip == "::1"


def renamed(parent: str, *more: dict[str, Any]) -> Settings:
    """Return settings with a leaf below a switch that is called `parent` and has the same address each time."""
    leaf = filed("leaf", "10.0.0.2", uplink={"port": 3, "to": parent})
    root = filed(parent, "10.0.0.1", switch="spine:1")
    return settings(leaf, root, FIRST_FILED, *more)


def test_a_parent_is_renamed_with_who_is_below_it(changing: Changing) -> None:
    """Either of the old switches may go first. A new switch below the parent is added with it."""
    below = filed("below", "10.0.0.4", uplink={"port": 4, "to": "leaf"})
    new = filed("new", "10.0.0.5", uplink={"port": 5, "to": "top"})
    changing.reload(renamed("spine", below))
    changing.wait_for(FIRST, "below", "leaf", "spine")
    said = changing.reload(renamed("top", below, new))
    assert "the switch top will be added when spine has left its address" in said
    assert "the switch new will be added when its parent top is added" in said
    changing.wait_for(FIRST, "below", "leaf", "new", "top")
    parents = {name: one.parent for name, one in changing.status().items()}
    assert parents == {FIRST: "", "below": "leaf", "leaf": "top", "new": "top", "top": ""}
    wait_until(lambda: all(changing.made[f"{name}:1"].listener for name in ("spine", "leaf", "new")), "their start")
    assert changing.reload(renamed("top", below, new)) == []


def test_who_waits_below_one_that_does_not_come_is_said(changing: Changing) -> None:
    """Nor does the parent: first an address is in use, then a switch; and then it comes with an address of its own."""
    new = filed("new", "10.0.0.5", uplink={"port": 5, "to": "top"})
    changing.job(1, job="running")
    said = changing.reload(settings(FIRST_FILED, filed("top", SECOND), new))
    assert f"the switch top will be added when {SECOND} has left its address" in said
    said = changing.reload(settings(FIRST_FILED, filed("top", SECOND, switch="fake"), new))
    assert f"the switch top is not added: the switch top has an address in common with {FIRST}" in said
    assert "the switch new is not added: its parent top is not a switch" in said
    changing.reload(settings(FIRST_FILED, filed("top", "10.0.0.6"), new))
    changing.wait_for(FIRST, SECOND, "new", "top")
    wait_until(lambda: changing.made["new:1"].listener is not None, "it to be started")
    assert changing.status()["new"].parent == "top"


def test_who_waits_for_its_parent_comes_where_that_comes_another_way(changing: Changing) -> None:
    """The parent waits for an address, and is then to have another, which is free."""
    changing.job(1, job="running")
    new = filed("new", "10.0.0.5", uplink={"port": 5, "to": "top"})
    for address in (SECOND, "10.0.0.6"):
        changing.reload(settings(FIRST_FILED, filed("top", address), new))
    changing.wait_for(FIRST, SECOND, "new", "top")


def test_the_only_switch_is_replaced_at_its_address(changing: Changing) -> None:
    """The file has other ports for it. The controller never is without a switch."""
    [running] = changing.job(1, job="running")
    changing.reload(settings({**FIRST_FILED, "ports": [1, 2]}))
    refused = changing.rank(0, 1, job="next")
    assert f"the switch {FIRST} cannot be used: it is being removed" in str(refused.outcome())
    leave(changing, running)
    wait_until(lambda: list(changing.status()) == [FIRST] and not changing.status()[FIRST].leaving, "the new one")
    wait_until(lambda: changing.made["fake"].listener is not None, "it to be started")
    changing.job(1, job="later")
    assert changing.done(changing.made["fake"]) == ["install", "reset"]


def test_the_last_stays_where_nothing_else_comes(changing: Changing, monkeypatch: pytest.MonkeyPatch) -> None:
    async def look(*_: object) -> None:
        raise Superseded("another controller is its primary")

    monkeypatch.setattr(FakeSwitch, "look", look)
    after = settings(filed("other", "10.0.0.1"))
    said = changing.reload(after)
    assert "the switch other is not added: another controller is its primary" in said
    wait_until(lambda: len(changing.status()) == 1, "one to go")
    refused = changing.rank(0, 1)
    assert "cannot be used: it is being removed" in str(refused.outcome())
    monkeypatch.undo()
    changing.reload(after)
    changing.wait_for("other")


def test_who_has_others_below_it_stays_until_they_go(changing: Changing) -> None:
    changing.add("leaf", uplink={"port": UP, "to": SECOND})
    changing.reload(settings(FIRST_FILED))
    ready([changing.rank(0, 1)])  # ticks have gone by
    assert changing.status()[SECOND].leaving
    changing.remove("leaf")
    changing.wait_for(FIRST)


def test_what_people_added_stays_when_the_file_is_read_again(changing: Changing) -> None:
    changing.add("third")
    assert changing.reload(changing.settings) == []
    assert "third" in changing.status()


def test_a_file_that_is_wrong_changes_nothing(changing: Changing, caplog: pytest.LogCaptureFixture) -> None:
    def wrong() -> Any:
        raise SettingsError("--config x: it is not")

    changing.loop.call(changing.controller.operations.read_again, wrong)
    wait_until(lambda: "the settings are unchanged: --config x: it is not" in caplog.text, "the log")
    assert list(changing.status()) == [FIRST, SECOND]


def test_settings_of_one_switch_are_those_of_a_file() -> None:
    common = load(None, {"switch": ["a:1", "b:1"], "address": ["10.0.0.1", "10.0.0.2"], "switch_insecure": True})
    text = json.dumps(filed("third", "10.0.0.3", ports=[1, 2], uplink={"port": 2, "to": "a:1"}))
    spec = spec_of(text, common)
    assert (spec.name, spec.uplinks, spec.ports) == ("third", ((2, "a:1"),), [1, 2])
    with pytest.raises(SettingsError, match="third:1 is on another host"):
        spec_of(text, load(None, {}))
    for bad in ("[]", "{", "3"):
        with pytest.raises(SettingsError, match="the switch's settings"):
            spec_of(bad, common)
    assert other_changes(common, common) == []


# --- the state -------------------------------------------------------------------------------------------------------


def test_jobs_are_taken_up_by_a_controller_with_more_switches_in_another_order(start: Starter, tmp_path: Path) -> None:
    running = start(Running, switches=2, state=tmp_path / "state")
    running.job(2, slots=6)
    running.crash()
    running.switches.insert(0, running.loop.call(FakeSwitch, 16, 7))
    running.switches.reverse()
    running.start_again()
    [job] = running.jobs
    assert [job.site.number(at) for at in sorted(job.ranges)] == [1, 0]
    assert [pool.used for pool in running.jobs.pools] == [3, 3, 0]
    wait_until(lambda: not job.away, "the ranks to come back")
    assert [rank.session.aborted for rank in running.ranks] == [None, None]
