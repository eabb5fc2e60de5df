# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import report_schedule
from p4reduce.control.messages import MOST_AWAITED
from p4reduce_controller.jobs import placement
from p4reduce_controller.jobs.job import Job, Member
from p4reduce_controller.jobs.reports import Reports, interval, stragglers
from p4reduce_controller.switches.aggregator import Heard
from p4reduce_controller.switches.frames import Endpoint
from tests.support.controller.running import Running, leave
from tests.support.controller.sites import site_of
from tests.support.waiting import wait_until


def job_of(ranks: int) -> Job:
    job = Job("job", 1, 1, ranks, 4, {}, 0, 10.0, 0.0, 60.0, 0, site_of(2))
    for rank in range(ranks):
        member = Member(rank, object(), rank)
        sender = Endpoint("02:00:00:00:00:01", "127.0.0.1", 40000 + rank)
        member.heard = {tree: Heard(7, sender, 1, 1, rank, rank) for tree in (0, 1)}
        job.members[rank] = member
    return job


def told(reports: Reports, job: Job, at: float, *reported: pb.Report) -> None:
    for member, report in zip(job.members.values(), reported, strict=True):
        reports.record(job, member, report, at)


def test_rates_are_of_the_time_between_two_reports() -> None:
    reports, job = Reports(), job_of(1)
    told(reports, job, 10.0, pb.Report(bytes_sent=1000, rounds=5, busy_s=1.0))
    assert job.members[0].rates is None
    told(reports, job, 14.0, pb.Report(bytes_sent=9000, rounds=25, busy_s=3.0))
    rates = job.members[0].rates
    assert (rates.bytes_sent, rates.rounds, rates.busy) == (2000, 5, 0.5)


def test_ports_count_what_ranks_behind_them_sent_dealt_over_their_switches_and_never_less() -> None:
    reports, job = Reports(), job_of(2)
    told(reports, job, 1.0, pb.Report(bytes_sent=100, packets_received=4), pb.Report(bytes_sent=300))
    told(reports, job, 3.0, pb.Report(bytes_sent=50), pb.Report(bytes_sent=400, retransmissions=6))
    for switch in (0, 1):
        traffic = reports.ports[switch, 7]
        assert (traffic.bytes_in, traffic.packets_out, traffic.retransmissions) == (250, 2, 3)
    assert len(reports.ports) == 2


def test_who_comes_last_is_who_is_busy_for_the_shortest_time() -> None:
    reports, job = Reports(), job_of(3)
    told(reports, job, 0.0 + 1, *[pb.Report()] * 3)
    told(reports, job, 3.0, pb.Report(busy_s=0.2), pb.Report(busy_s=1.8), pb.Report(busy_s=1.8))
    told(reports, job, 5.0, pb.Report(busy_s=0.4), pb.Report(busy_s=3.6), pb.Report(busy_s=3.6))
    [one] = stragglers(job, 5.5)
    assert (one.rank, one.why) == (0, "comes late to collectives: others wait for it 80% of the time")
    assert job.members[0].awaiting_s == 0
    assert job.members[1].awaiting_s == pytest.approx(3.2, abs=0.01)
    assert stragglers(job, 100.0) == []  # what they said is too old


def test_who_is_awaited_is_named_with_whom_waits_and_how_long() -> None:
    reports, job = Reports(), job_of(3)
    told(reports, job, 1.0, *[pb.Report(busy_s=1.0)] * 3)
    stuck = pb.Report(busy_s=3.0, stuck_s=4.0, awaited=[2, 1, 200])
    told(reports, job, 3.0, stuck, stuck, pb.Report(busy_s=3.0))
    # Rank 1 waits itself: rank 0, at another switch, cannot tell it from rank 2.
    assert [(one.rank, one.why) for one in stragglers(job, 3.0)] == [(2, "ranks 0, 1 wait for it, for 4 s")]
    told(reports, job, 5.0, stuck, stuck, pb.Report(busy_s=5.0, stuck_s=5.0, awaited=[0]))
    assert [one.rank for one in stragglers(job, 5.0)] == [0, 1, 2]


def test_a_report_is_bounded() -> None:
    reports, job = Reports(), job_of(1)
    told(reports, job, 1.0, pb.Report(awaited=range(5000)))
    report = job.members[0].report
    assert len(report.awaited) == MOST_AWAITED


def test_numbers_that_json_has_not_are_none() -> None:
    job, reports = job_of(1), Reports()
    told(reports, job, 1.0, pb.Report(stuck_s=math.nan, busy_s=math.inf))
    report = job.members[0].report
    assert (report.stuck_s, report.busy_s) == (0, 0)


def test_what_was_counted_by_an_earlier_controller_is_not_counted_again() -> None:
    job, reports = job_of(1), Reports()
    job.members[0].away_since = 0.5
    told(reports, job, 1.0, pb.Report(bytes_sent=10**12))
    told(reports, job, 2.0, pb.Report(bytes_sent=10**12 + 7))
    assert sum(port.bytes_in for port in reports.ports.values()) == 7


def test_many_ranks_report_less_often() -> None:
    assert interval(2) == 2.0
    assert 255 / interval(255) <= 50


def test_ranks_report_as_often_as_they_are_asked_to_and_when_they_leave(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "interval", lambda _: 0.05)
    ranks = running.job(2)
    [job] = running.jobs
    asked = [0, 0]

    def report_of(rank: int) -> Callable[[float], pb.Report]:
        def report(_: float) -> pb.Report:
            asked[rank] += 1
            return pb.Report(operations=asked[rank], packets_sent=2)

        return report

    for rank, one in enumerate(ranks):
        one.session.report(report_of(rank))
    wait_until(lambda: all((member.report or pb.Report()).operations > 2 for member in job.members.values()), "reports")
    assert job.members[0].rates is not None
    assert 0 < job.members[0].heard_at <= running.controller.clock()
    for one in ranks:  # or else a report that is due while the rank leaves may be made, and not sent
        report_schedule.schedule.remove(one.session._report)
    wait_until(lambda: [member.report.operations for member in job.members.values()] == asked, "the last of them")
    before = [*asked]
    leave(running, ranks)
    assert asked == [count + 1 for count in before]
    last = [member.report.operations for member in job.members.values() if member.report is not None]
    assert last == asked
    assert running.controller.reports.ports[0, 1].packets_in == 4


def test_a_controller_that_asks_for_none_gets_none(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller of an earlier release would end the job at a report."""
    monkeypatch.setattr(placement, "interval", lambda _: 0.0)
    ranks = running.job(2)

    def never(_: float) -> pb.Report:
        raise AssertionError

    for one in ranks:
        one.session.report(never)
    leave(running, ranks)
