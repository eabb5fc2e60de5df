# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import asyncio

import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.reports import Traffic
from p4reduce_controller.observability import watch as module
from p4reduce_controller.observability.watch import HISTORY_S, POINT_S, Watch
from p4reduce_controller.webpage.page_data import history_of, view_of


def status_with(joins: int = 0, **outcomes: int) -> pb.StatusReply:
    return pb.StatusReply(joins=joins, switches=[pb.Switch(name="leaf", address="leaf", outcomes=outcomes)])


async def _nothing() -> pb.StatusReply:
    return pb.StatusReply()


def test_a_status_that_fails_once_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL", 0.01)
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
        assert watch.latest is not None
        assert watch.latest.status.joins > 2

    asyncio.run(asyncio.wait_for(work(), 10))


def test_rates_are_of_two_looks_and_count_each_packet_once() -> None:
    ports = {(0, 3): Traffic(bytes_in=100)}
    watch = Watch(_nothing, ports)
    watch.look(status_with(started=10, added=10, completed=10, sent_up=5), 100.0)
    ports[0, 3].bytes_out += 80
    watch.look(status_with(started=20, added=30, completed=20, sent_up=15), 102.0)
    assert watch.latest is not None
    rates = watch.latest.rates["leaf"]
    assert (rates.packets, rates.rounds, rates.sent_up) == (15, 5, 5)
    assert watch.latest.port_rates == {(0, 3): 40}
    told = view_of(watch.latest, None)
    assert told["switches"][0]["ports"] == {"3": 40}


def test_the_history_is_of_an_hour_and_has_gaps_where_nothing_is_known() -> None:
    watch = Watch(_nothing, {})
    for second in range(0, 2 * int(HISTORY_S), 2):
        watch.look(status_with(started=second), 1000.0 + second)
    assert len(watch.history) == HISTORY_S / POINT_S
    assert watch.history[-1].at - watch.history[0].at == HISTORY_S - POINT_S
    watch.look(pb.StatusReply(), 1000.0 + 2 * HISTORY_S + POINT_S)
    assert history_of(watch.history, lambda _: True)["switches"]["leaf"][-2:] == [1, None]
