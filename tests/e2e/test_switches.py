# SPDX-License-Identifier: Apache-2.0
"""Switches that come and go beside a controller that runs, while ranks add up; and the commands that show it."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from p4reduce import Communicator
from p4reduce.errors import P4ReduceError
from tests.support.cluster.site import DEADLINE, Site
from tests.support.cluster.stack import status_of
from tests.support.waiting import wait_until

PAUSE_S = 0.005  # between two sums of a rank, for which other tests have the processor


class Job:
    """Two ranks that add up until they are told to leave. `sums`: how many of each."""

    def __init__(self, site: Site, name: str, slots: int = 8) -> None:
        self.sums = [0, 0]
        self.errors: list[P4ReduceError] = []
        self._leave = threading.Event()
        self._name, self._site, self._slots = name, site, slots
        self._rounds = 0
        self._threads = [threading.Thread(target=self._rank, args=(rank,), daemon=True) for rank in range(2)]
        for thread in self._threads:
            thread.start()

    def _rank(self, rank: int) -> None:
        try:
            with Communicator(
                self._site.address,
                job=self._name,
                rank=rank,
                world_size=2,
                slots=self._slots,
                local="off",
                timeout=DEADLINE,
            ) as communicator:
                goes_on = 1
                while goes_on:
                    tensor = np.full(1000, rank + 1, np.int32)
                    communicator.allreduce(tensor)
                    assert (tensor == 3).all()
                    vote = np.array([0 if self._leave.is_set() else 1], np.int32)
                    communicator.allreduce(vote)
                    goes_on = vote[0]  # the same at both
                    self.sums[rank] += 1
                    time.sleep(PAUSE_S)
        except P4ReduceError as error:
            self.errors.append(error)

    def goes_on(self) -> None:
        """Adds up now."""
        then = min(self.sums)
        wait_until(lambda: min(self.sums) > then or self.errors, f"the job {self._name} to go on")
        assert self.errors == []

    def leave(self) -> None:
        self._leave.set()
        for thread in self._threads:
            thread.join(DEADLINE)
            assert not thread.is_alive()


@pytest.fixture(params=[pytest.param("sim", marks=pytest.mark.slow), "native"])
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path, request.param) as site:
        yield site


def test_switches_come_and_go_while_jobs_add_up(site: Site) -> None:
    site.start("one")
    first = Job(site, "first")
    first.goes_on()
    site.switch("two")
    site.read_again()
    wait_until(lambda: site.names() == ["one", "two"], "the second switch")
    second = Job(site, "second")
    second.goes_on()
    first.goes_on()
    listed = {one["name"]: one for one in site.json("switches", "list")}
    assert {name: one["slots_used"] for name, one in listed.items()} == {"one": 8 + 4, "two": 4}
    assert listed["two"]["jobs"] == ["second"]

    # Who is dead is left out.
    site.processes["two"].kill()
    wait_until(lambda: "unreachable" in str(status_of(site.address)["switches"]), "the switch to be away")
    assert "unreachable" in site.run("switches", "list")
    wait_until(
        lambda: re.search(r"unreachable for ([3-9]|\d\d)", str(status_of(site.address)["switches"])),
        "the break to be none of a moment",
    )
    third = Job(site, "third")
    third.goes_on()
    shown = site.run("jobs", "show", "third")
    assert "started without the switch two cannot be used: unreachable" in " ".join(shown.split())
    assert "two is unreachable" in " ".join(site.run("jobs", "show", "second").split())

    # Nobody waits for what is taken away, and who had it is told.
    site.run("switches", "remove", "two", "--now")
    wait_until(lambda: len(second.errors) == 2, "the ranks to hear of it")
    assert "its switch two was removed by an operator" in str(second.errors[0])
    wait_until(lambda: site.names() == ["one"], "the switch to be gone")
    first.goes_on()
    first.leave()
    third.leave()


def test_a_switch_is_drained_and_replaced(site: Site) -> None:
    site.start("one")
    before = Job(site, "before")
    before.goes_on()
    replacement = site.switch("new")
    said = site.run(
        *("switches", "add", "new", "--switch", replacement["switch"], "--address", replacement["address"][0])
    )
    assert said == "the switch new is added\n"
    assert site.run("switches", "drain", "one") == "the switch one takes no new jobs; before run there\n"
    after = Job(site, "after")
    after.goes_on()
    before.goes_on()
    assert {one["name"]: one["jobs"] for one in site.json("switches", "list")} == {"one": ["before"], "new": ["after"]}
    site.run("switches", "remove", "one")
    before.goes_on()
    before.leave()
    wait_until(lambda: site.names() == ["new"], "the old one to be gone")
    site.processes["one"].kill()
    after.goes_on()
    after.leave()


def test_jobs_are_looked_at_and_ended(site: Site) -> None:
    site.start("one")
    job = Job(site, "it", slots=4)
    job.goes_on()
    [listed] = site.json("jobs", "list")
    assert (listed["name"], listed["state"], listed["slots"]) == ("it", "ready", 4)
    assert "it" in site.run("jobs", "list")
    halves = site.json("slots", "it")["halves"]
    assert [(half["slot"], half["half"], half["switch"]) for half in halves] == [
        (slot, half, "one") for slot in range(4) for half in (0, 1)
    ]
    assert max(half["round"] for half in halves) > 0
    assert all(sorted([*half["ranks"], *half["missing"]]) == [0, 1] for half in halves)
    assert len(site.json("slots", "it", "--first", "3", "--count", "5")["halves"]) == 2
    assert "first=4: accepted are 0 to 3" in site.run("slots", "it", "--first", "4", code=1)
    rates = json.loads(site.run("top", "--once", "--json", "--interval", "1"))
    assert rates["packets_per_s"]["one"]["completed"] > 0
    assert "one" in site.run("top", "--once")
    findings = {one["subject"]: one for one in site.json("doctor")}
    for subject in ("controller", "switch one", "P4Runtime of one", "program of one", "HELLO path", "sum"):
        assert findings[subject]["verdict"] == "ok", findings[subject]
    assert "there is no job 'nothing'; the jobs are 'it'" in site.run("jobs", "abort", "nothing", code=1)
    site.run("jobs", "abort", "it", "--reason", "the rack is moved")
    wait_until(lambda: len(job.errors) == 2, "the ranks to hear of it")
    for error in job.errors:  # the stream's words, or an ABORT's where its packet comes first
        assert re.search(r"was ended: the rack is moved|a user has ended it", str(error))


def test_the_doctor_says_what_is_wrong(site: Site) -> None:
    site.start("one")
    site.processes["one"].kill()
    wait_until(lambda: "unreachable" in str(status_of(site.address)["switches"]), "the switch to be away")
    assert "unreachable" in site.run("switches", "list")
    findings = {one["subject"]: one for one in json.loads(site.run("doctor", "--json", "--no-join", code=1))}
    assert findings["controller"]["verdict"] == "ok"
    assert findings["switch one"]["verdict"] == "problem"
    assert findings["P4Runtime of one"]["advice"]
    assert "HELLO path" not in findings
