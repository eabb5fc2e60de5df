# SPDX-License-Identifier: Apache-2.0
"""Reports of all sessions of a process, which one thread makes."""

from __future__ import annotations

import queue
import threading

import pytest

from p4reduce.control import report_schedule
from p4reduce.control.report_schedule import ReportSchedule
from tests.support.forking import said_by_child


def threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "p4reduce-report"}


def test_one_thread_calls_all_when_they_are_due(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_schedule, "_IDLE_S", 0.01)
    before = threads()
    schedule, called = ReportSchedule(), queue.Queue[str]()
    left = {"often": 5, "once": 1}

    def report(name: str) -> float | None:
        called.put(name)
        left[name] -= 1
        return 0.001 if left[name] else None

    schedule.add(lambda: report("often"), 0.0)
    schedule.add(lambda: report("once"), 0.0)
    never = lambda: report("never")  # noqa: E731
    schedule.add(never, 60.0)
    assert sorted(called.get(timeout=10) for _ in range(6)) == ["often"] * 5 + ["once"]
    [thread] = threads() - before
    schedule.remove(never)
    thread.join(10)
    assert not thread.is_alive()
    schedule.add(lambda: called.put("again"), 0.0)
    assert called.get(timeout=10) == "again"


def test_an_error_ends_only_the_report_that_it_is_of(caplog: pytest.LogCaptureFixture) -> None:
    schedule, called = ReportSchedule(), threading.Event()

    def fail() -> None:
        raise ValueError("mine")

    schedule.add(fail, 0.0)
    schedule.add(called.set, 0.001)
    assert called.wait(10)
    assert "ValueError: mine" in caplog.text


def test_a_forked_process_has_a_thread_of_its_own() -> None:
    report_schedule.schedule.add(lambda: None, 0.0)

    def is_called() -> bool:
        called = threading.Event()
        report_schedule.schedule.add(called.set, 0.0)
        return called.wait(10)

    assert said_by_child(is_called) == "True"
