# SPDX-License-Identifier: Apache-2.0
"""Ports that are down: what begins goes elsewhere, and what runs is told which."""

from __future__ import annotations

import io
import logging
from dataclasses import replace

import pytest
from rich.console import Console

from p4reduce_controller.commands import views
from p4reduce_controller.fabric.ports import all_down, troubles_of, uplink_down
from p4reduce_controller.observability.metrics import Metrics
from p4reduce_controller.observability.watch import Watch
from p4reduce_controller.switches.availability import SwitchState, Unavailable
from p4reduce_controller.switches.site import Site
from p4reduce_controller.webpage.page_data import view_of
from tests.support.controller.changing import FIRST, SECOND, Changing
from tests.support.controller.fake_switch import FakeSwitch
from tests.support.controller.jobs_harness import ADDRESSES, LEAF1, LEAF2, TWO_LEAVES, UP, TreeHarness
from tests.support.controller.ranks import ready
from tests.support.waiting import wait_until


def cut(changing: Changing, at: int, **states: str) -> None:
    changing.loop.call(lambda: changing.switches[at].set_ports(**states))


def switches(*ports: dict[int, str]) -> dict[int, FakeSwitch]:
    made = {}
    for number, states in enumerate(ports):
        made[number] = FakeSwitch(number=number)
        made[number].ports = states
    return made


@pytest.mark.parametrize(
    ("ports", "why"),
    [
        ({}, ""),
        ({1: "UP", 2: "DOWN"}, ""),
        ({1: "UNKNOWN", 2: "DOWN"}, ""),
        ({1: "LOWER_LAYER_DOWN", 2: "NOT_PRESENT"}, "all its 2 ports are down"),
    ],
)
def test_who_is_dead(ports: dict[int, str], why: str) -> None:
    assert str(all_down(switches(ports)[0]) or "") == why


def test_which_cable_is_out() -> None:
    harness = TreeHarness(TWO_LEAVES)
    site = Site(harness.switches.site.layout, tuple(ADDRESSES), TWO_LEAVES)

    def why(at: int, *ports: dict[int, str]) -> str:
        """Return why the leaf does not reach its parent. `own` and `lag`: its ports and those of its parent."""
        heard = harness.switches.children_at(site).get(at)
        return str(uplink_down(site, at, own, replace(heard, lag=lag) if heard else None, switches(*ports)) or "")

    own, lag = (UP,), ()
    assert why(LEAF1, {}, {UP: "UP"}, {}) == ""
    assert why(LEAF1, {}, {UP: "DOWN"}, {}) == f"port {UP} of leaf1 toward spine is down"
    assert why(LEAF2, {1: "DOWN", 2: "DOWN"}, {}, {}) == "port 2 of spine toward leaf2 is down"
    assert why(LEAF2, {1: "DOWN"}, {UP: "DOWN"}, {}) == ""
    own, lag = (UP, UP + 1), (2, 5)
    assert why(LEAF1, {}, {UP: "DOWN", UP + 1: "UP"}, {}) == ""
    assert why(LEAF1, {}, {UP: "DOWN", UP + 1: "DOWN"}, {}) == f"ports {UP}, {UP + 1} of leaf1 toward spine are down"
    assert why(LEAF2, {2: "DOWN", 5: "UP"}, {}, {}) == ""
    for rest in ({5: "NOT_PRESENT"}, {}):  # a port that is not reported does not help
        assert why(LEAF2, {2: "DOWN", **rest}, {}, {}) == "ports 2, 5 of spine toward leaf2 are down"


def test_a_dead_root_is_left_out_and_its_jobs_are_told(changing: Changing, caplog: pytest.LogCaptureFixture) -> None:
    running = changing.job(2, job="running")
    with caplog.at_level(logging.WARNING):
        cut(changing, 1, p1="DOWN", p2="DOWN")
        text = f"port 1 of {SECOND} is down, where ranks 0, 1 are"
        wait_until(lambda: sum(one.getMessage() == text for one in caplog.records) == 2, "both ranks to hear of it")
    job = changing.look().jobs[0]
    assert list(job.in_trouble) == [text]
    shown = io.StringIO()
    views.show(changing.look(), Console(file=shown))
    assert f"job running: {text}\n" in shown.getvalue()
    there = changing.status()[SECOND]
    assert (there.state, there.problem) == ("NotReady", "all its 2 ports are down")
    assert [port.state for port in there.ports] == ["DOWN", "DOWN"]
    assert len(ready([changing.rank(0, 1, job="next")])[0].aggregators) == 1
    running[1].session.close()
    wait_until(lambda: running[0].session.aborted, "the other to hear that it is lost")
    assert text in str(running[0].session.aborted)
    cut(changing, 1, p1="UP", p2="UP")
    assert len(ready([changing.rank(0, 1, job="later")])[0].aggregators) == 2


def test_a_port_that_comes_back_is_told_too(changing: Changing, caplog: pytest.LogCaptureFixture) -> None:
    changing.job(1)
    with caplog.at_level(logging.WARNING):
        cut(changing, 0, p1="DOWN", p2="UP")
        cut(changing, 0, p1="UP", p2="DOWN")
        text = f"port 1 of {FIRST} is down, where rank 0 is"
        wait_until(lambda: f"resolved: {text}" in [one.getMessage() for one in caplog.records], "it to be told")
    assert not changing.look().jobs[0].in_trouble


def test_they_are_shown(changing: Changing) -> None:
    changing.job(1)
    cut(changing, 0, p1="DOWN", p2="UP")
    status = changing.look()
    watch = Watch(changing.controller.status, {})
    watch.look(status, 1000.0)
    assert watch.last_view is not None
    found = {
        (sample.labels["switch"], sample.labels["port"]): sample.value
        for one in Metrics(lambda: watch.last_view).collect()
        for sample in one.samples
        if sample.name == "p4reduce_port_up"
    }
    assert found == {("fake", "1"): 0, ("fake", "2"): 1}
    told = view_of(watch.last_view, None)
    assert [one["ports_down"] for one in told["switches"]] == [[1], []]
    assert told["jobs"][0]["trouble"] == [f"port 1 of {FIRST} is down, where rank 0 is"]
    assert "1 of 2 up; down: 1" in shown(views.switches(status))
    assert "not known" in shown(views.switches(status))
    one = shown(views.switch(status, status.switches[0]))
    assert "rank 0 of job" in one
    assert "its ports are not known: it has none" in shown(views.switch(status, status.switches[1]))


def shown(what: object) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(what)
    return capture.get()


def test_a_rank_that_is_heard_at_another_port_of_its_group_needs_nothing_new() -> None:
    harness = TreeHarness(TWO_LEAVES)
    sessions = [harness.join(rank, 2) for rank in range(2)]
    heard = {"port": 1, "lag": (1, 2), "full": True}
    harness.hear(sessions[0], LEAF1, **heard)
    assert not harness.hear(sessions[0], LEAF1, **heard | {"port": 2})
    harness.hear(sessions[1], LEAF2)
    [job] = harness.installs
    harness.installed()
    placements, answers = dict(job.placements), len(harness.answers)
    assert harness.hear(sessions[0], LEAF1, **heard | {"port": 2})
    assert not harness.hear(sessions[0], LEAF1, **heard | {"port": 3, "lag": ()})
    assert [one.hello.port for one in harness.answers[answers:]] == [2]
    assert (harness.installs, job.placements) == ([], placements)


def test_a_job_only_needs_one_port_of_a_group() -> None:
    harness = TreeHarness(TWO_LEAVES)
    sessions = [harness.join(rank, 2) for rank in range(2)]
    for session, leaf in zip(sessions, (LEAF1, LEAF2), strict=True):
        harness.hear(session, leaf, lag=(1, 2))
    [job] = harness.installs

    def troubles(**leaf1: str) -> list[str]:
        ports = {int(name[1:]): state for name, state in leaf1.items()}
        return troubles_of(job, {}, switches({}, ports, {}), lambda *_: None)

    assert troubles(p1="DOWN", p2="UP") == troubles(p1="UP", p2="DOWN") == troubles() == []
    assert troubles(p1="DOWN", p2="DOWN") == ["ports 1, 2 of leaf1 are down, where rank 0 is"]


def test_jobs_are_told_of_uplinks_that_are_silent_or_moved() -> None:
    harness = TreeHarness(TWO_LEAVES)
    sessions = [harness.join(rank, 2) for rank in range(2)]
    for session, leaf in zip(sessions, (LEAF1, LEAF2), strict=True):
        harness.hear(session, leaf)
    [job] = harness.installs
    silent = Unavailable("spine no longer hears leaf1", SwitchState.UPLINK_DOWN)

    def troubles(*, is_silent: bool = False, **moved: int) -> list[str]:
        children = dict(job.children)
        children[LEAF2] = replace(children[LEAF2], **moved)
        return troubles_of(job, children, {}, lambda _, at: silent if is_silent and at == LEAF1 else None)

    assert troubles() == []
    assert troubles(is_silent=True) == [str(silent)]
    text = "spine hears leaf2 at {}, and the job needs it at port 2; put the cable back, or start the job again"
    assert troubles(port=7) == [text.format("port 7")]
    assert troubles(vlan=30) == [text.format("port 2 in VLAN 30")]
