# SPDX-License-Identifier: Apache-2.0
"""Switches that come and go beside a controller that runs, while ranks add up; and the commands that show it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.cluster.rank import Call
from tests.support.cluster.site import Site
from tests.support.cluster.stack import Ranks, go_on
from tests.support.waiting import wait_until

LONG_S = 300.0  # much longer than it takes to see that a switch is away
STEPS = [Call((2000,), seed=seed, pause=0.02) for seed in range(5)]


@pytest.fixture(params=[pytest.param("sim", marks=pytest.mark.slow), "native"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path, request.param) as site:
        yield site


def working(site: Site, name: str, slots: int = 8) -> Ranks:
    return site.ranks(STEPS, job=name, world_size=2, repeat=True, slots=slots, timeout=LONG_S)


def test_switches_come_and_go_while_jobs_add_up(site: Site) -> None:
    site.begin("one")
    with working(site, "first") as first:
        go_on(first)
        site.switch("two")
        site.read_again()
        wait_until(lambda: site.names() == ["one", "two"], "the second switch")
        with working(site, "second") as second:
            go_on(first, second)
            listed = {one["name"]: one for one in site.json("switches", "list")}
            assert {name: one["slots_used"] for name, one in listed.items()} == {"one": 8 + 4, "two": 4}
            assert listed["two"]["jobs"] == ["second"]
            # New jobs exclude a dead switch once it has been unreachable for more than a moment.
            site.processes["two"].process.kill()
            wait_until(lambda: re.search(r"unreachable for ([3-9]|\d\d)", str(site.status()["switches"])), "the break")
            assert "unreachable" in site.run("switches", "list")
            with working(site, "third") as third:
                go_on(third)
                shown = site.run("jobs", "show", "third")
                assert "at its start, the switch two cannot be used: unreachable" in shown
                assert "two is unreachable" in site.run("jobs", "show", "second")
                # The removal waits for no job, and jobs that had slots there get an error.
                site.run("switches", "remove", "two", "--now")
                for last in second.wait_for_ends().values():
                    assert "its switch two was removed by an operator" in last["message"]
                wait_until(lambda: site.names() == ["one"], "the switch to be gone")
                go_on(first, third)


def test_jobs_are_looked_at_and_ended(site: Site) -> None:
    site.begin("one")
    with working(site, "it", slots=4) as ranks:
        go_on(ranks)
        [listed] = site.json("jobs", "list")
        assert (listed["name"], listed["state"], listed["slots"]) == ("it", "ready", 4)
        halves = site.json("slots", "it")["halves"]
        assert [(half["slot"], half["half"], half["switch"]) for half in halves] == [
            (slot, half, "one") for slot in range(4) for half in (0, 1)
        ]
        assert max(half["round"] for half in halves) > 0
        assert all(sorted([*half["ranks"], *half["missing"]]) == [0, 1] for half in halves)
        assert len(site.json("slots", "it", "--first", "3", "--count", "5")["halves"]) == 2
        go_on(ranks)
        rates = json.loads(site.run("top", "--once", "--json", "--interval", "1"))
        assert rates["packets_per_s"]["one"]["completed"] > 0
        assert "one" in site.run("top", "--once")
        findings = {one["subject"]: one for one in site.json("doctor")}
        for subject in ("controller", "switch one", "P4Runtime of one", "program of one", "HELLO path", "sum"):
            assert findings[subject]["verdict"] == "ok", findings[subject]
        site.run("jobs", "abort", "it", "--reason", "the rack is moved")
        for last in ranks.wait_for_ends().values():  # the stream's words, or an ABORT's where its packet comes first
            assert re.search(r"was ended: the rack is moved|a user has ended it", last["message"])
