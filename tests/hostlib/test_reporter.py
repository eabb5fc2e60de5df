# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from p4reduce.control.messages import MOST_AWAITED
from p4reduce.engine.engine import Engine
from p4reduce.join.reporter import Reporter
from p4reduce.protocol import Stats


def engine(**figures: Any) -> Any:
    of = {"seconds": 0.0, "busy": False, "awaited": lambda: (3, 5), "take_most_slots": lambda: 0, **figures}
    return SimpleNamespace(stats=Stats(), **of)


def test_a_report_has_what_was_done() -> None:
    one = engine()
    one.stats = Stats(operations=1, rounds=2, retransmissions=3, packets_sent=4, bytes_received=5, slowdowns=6)
    one.seconds = 7.5
    one.take_most_slots = iter((40, 0)).__next__
    report = Reporter(cast(Engine, one)).report(0.0)
    assert (report.operations, report.rounds, report.retransmissions) == (1, 2, 3)
    assert (report.packets_sent, report.bytes_received, report.slowdowns, report.busy_s) == (4, 5, 6, 7.5)
    assert report.most_slots == 40


def test_who_is_awaited_is_told_once_nothing_has_ended_between_two_reports() -> None:
    one = engine()
    reporter = Reporter(cast(Engine, one))
    one.busy = True
    assert reporter.report(10.0).stuck_s == 0
    report = reporter.report(12.0)
    assert (report.stuck_s, list(report.awaited)) == (2.0, [3, 5])
    one.awaited = lambda: tuple(range(200))
    report = reporter.report(14.0)
    assert (report.stuck_s, len(report.awaited)) == (4.0, MOST_AWAITED)
    one.stats = Stats(operations=1)
    assert reporter.report(16.0).stuck_s == 0
    one.busy = False
    assert reporter.report(18.0).stuck_s == 0
    one.busy = True
    assert reporter.report(20.0).stuck_s == 0  # as far as is known, it has just begun
