# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.reports import Traffic
from p4reduce_controller.observability import metrics as module
from p4reduce_controller.observability import watch as watch_module
from p4reduce_controller.observability.metrics import Metrics
from p4reduce_controller.observability.watch import HISTORY_S, POINT_S, Watch
from p4reduce_controller.webpage.page_data import history_of, view_of
from tests.support.controller.running import Running
from tests.support.waiting import wait_until


async def _nothing() -> pb.StatusReply:
    return pb.StatusReply()


def scraped(status: pb.StatusReply, ports: dict[tuple[int, int], Traffic] | None = None) -> set[str]:
    watch = Watch(_nothing, ports or {})
    watch.look(status, 1000.0)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Metrics(lambda: watch.last_view))
    return set(generate_latest(registry).decode().splitlines())


def job(name: str, ranks: int, state: str = "ready") -> pb.Job:
    report = pb.Report(bytes_sent=5, packets_sent=4, retransmissions=3, rounds=2, operations=1, busy_s=0.5)
    members = [pb.Member(rank=rank, report=report, heard_s=1.5, awaiting_s=0.25) for rank in range(ranks)]
    return pb.Job(name=name, state=state, members=members, slots=8, age_s=9, stragglers=[pb.Straggler(rank=0)])


def test_a_scrape_tells_jobs_slots_and_outcomes(running: Running) -> None:
    running.job(2)
    lines = scraped(running.look())
    assert lines >= {
        'p4reduce_switch_connected{switch="fake"} 1.0',
        'p4reduce_switch_state{state="Ready",switch="fake"} 1.0',
        'p4reduce_switch_state{state="NotReady",switch="fake"} 0.0',
        'p4reduce_slots{switch="fake"} 16.0',
        'p4reduce_slots_used{switch="fake"} 4.0',
        'p4reduce_jobs{state="ready"} 1.0',
        'p4reduce_queue_length{queue="ranks"} 0.0',
        "p4reduce_ranks 2.0",
        "p4reduce_joins_total 2.0",
        "p4reduce_jobs_aborted_total 0.0",
        'p4reduce_packets_total{outcome="hello",switch="fake"} 7.0',
    }


def test_jobs_ranks_and_ports_have_series() -> None:
    switch = pb.Switch(address="s", rpc_errors={"UNAVAILABLE": 2}, cpu_drops={"malformed": 3})
    lines = scraped(
        pb.StatusReply(switches=[switch], jobs=[job("a", 2)]), {(0, 7): Traffic(bytes_in=11, packets_out=2)}
    )
    assert lines >= {
        'p4reduce_job_ranks{job_name="a",tenant=""} 2.0',
        'p4reduce_job_stragglers{job_name="a",tenant=""} 1.0',
        'p4reduce_rank_bytes_total{direction="sent",job_name="a",rank="1",tenant=""} 5.0',
        'p4reduce_rank_packets_total{direction="sent",job_name="a",rank="1",tenant=""} 4.0',
        'p4reduce_rank_retransmissions_total{job_name="a",rank="0",tenant=""} 3.0',
        'p4reduce_rank_rounds_total{job_name="a",rank="0",tenant=""} 2.0',
        'p4reduce_rank_awaiting_seconds_total{job_name="a",rank="0",tenant=""} 0.25',
        'p4reduce_lease_age_seconds{job_name="a",rank="0",tenant=""} 1.5',
        'p4reduce_port_bytes_total{direction="in",port="7",switch="s"} 11.0',
        'p4reduce_port_packets_total{direction="out",port="7",switch="s"} 2.0',
        'p4reduce_switch_rpc_errors_total{code="UNAVAILABLE",switch="s"} 2.0',
        'p4reduce_cpu_drops_total{reason="malformed",switch="s"} 3.0',
    }


def test_what_has_ended_is_dropped_and_no_series_is_there_twice() -> None:
    """A job that is being taken off its switches may have a successor of its name."""
    lines = scraped(pb.StatusReply(jobs=[job("a", 2, "aborted"), job("b", 1, "finished"), job("a", 1)]))
    mine = [line for line in lines if "p4reduce_job_ranks{" in line or 'rank="1"' in line]
    assert mine == ['p4reduce_job_ranks{job_name="a",tenant=""} 1.0']


def test_ranks_beyond_a_number_have_no_series(monkeypatch: pytest.MonkeyPatch) -> None:
    assert module.MOST_RANKS * 12 < 30_000
    monkeypatch.setattr(module, "MOST_RANKS", 50)
    lines = scraped(pb.StatusReply(jobs=[job(str(number), 20) for number in range(4)]))
    assert sum("p4reduce_rank_rounds_total{" in line for line in lines) == 50
    assert "p4reduce_ranks_left_out 30.0" in lines


def test_install_and_join_times_and_calls_are_told(running: Running) -> None:
    running.job(2)
    times = {"p4reduce_install_seconds_count 1.0", "p4reduce_join_seconds_count 1.0"}
    wait_until(lambda: times <= texts(running), "both times")
    for rank in running.ranks:
        rank.session.close()
    ended = 'p4reduce_rpcs_total{code="CANCELLED",method="Session"} '
    wait_until(lambda: any(line.startswith(ended) for line in texts(running)), "a call's end")


def texts(running: Running) -> set[str]:
    return set(generate_latest(running.controller.telemetry.registry).decode().splitlines())


# --- the watch -------------------------------------------------------------------------------------------------------


def status_with(**outcomes: int) -> pb.StatusReply:
    return pb.StatusReply(switches=[pb.Switch(name="leaf", address="leaf", outcomes=outcomes)])


def test_a_status_that_fails_once_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "POLL", 0.01)
    asked = 0

    async def status() -> pb.StatusReply:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise ZeroDivisionError("a bug")
        return pb.StatusReply(joins=asked)

    async def work() -> None:
        watch = Watch(status, {})
        watch.start()
        while asked < 4:
            await asyncio.sleep(0.01)
        await watch.close()
        assert watch.last_view.status.joins > 2

    asyncio.run(asyncio.wait_for(work(), 10))


def test_rates_are_of_two_looks_and_count_each_packet_once() -> None:
    ports = {(0, 3): Traffic(bytes_in=100)}
    watch = Watch(_nothing, ports)
    watch.look(status_with(started=10, added=10, completed=10, sent_up=5), 100.0)
    ports[0, 3].bytes_out += 80
    watch.look(status_with(started=20, added=30, completed=20, sent_up=15), 102.0)
    rates = watch.last_view.rates["leaf"]
    assert (rates.packets, rates.rounds, rates.sent_up) == (15, 5, 5)
    assert watch.last_view.port_rates == {(0, 3): 40}
    told = view_of(watch.last_view, None)
    assert told["switches"][0]["ports"] == {"3": 40}


def test_the_history_is_of_an_hour_and_has_gaps_where_nothing_is_known() -> None:
    watch = Watch(_nothing, {})
    for second in range(0, 2 * int(HISTORY_S), 2):
        watch.look(status_with(started=second), 1000.0 + second)
    assert len(watch.history) == HISTORY_S / POINT_S
    assert watch.history[-1].at - watch.history[0].at == HISTORY_S - POINT_S
    watch.look(pb.StatusReply(), 1000.0 + 2 * HISTORY_S + POINT_S)
    assert history_of(watch.history, lambda _: True)["switches"]["leaf"][-2:] == [1, None]
