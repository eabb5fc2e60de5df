# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from urllib.request import urlopen

import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller import metrics as module
from p4reduce_controller.metrics import Metrics

from .conftest import Loop, Running
from .ranks import ready, wait_until


def test_a_scrape_tells_jobs_slots_and_outcomes(running: Running) -> None:
    ready([running.rank(rank, 2) for rank in range(2)])
    metrics = Metrics(running.service.status)
    port = running.loop.run(metrics.start("127.0.0.1", 0))
    try:
        with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
    finally:
        running.loop.run(metrics.close())
    for line in (
        'p4reduce_switch_connected{switch="fake"} 1.0',
        'p4reduce_slots{switch="fake"} 16.0',
        'p4reduce_slots_used{switch="fake"} 4.0',
        'p4reduce_jobs{state="ready"} 1.0',
        "p4reduce_ranks 2.0",
        "p4reduce_joins_total 2.0",
        "p4reduce_jobs_aborted_total 0.0",
        'p4reduce_packets_total{outcome="hello",switch="fake"} 7.0',
    ):
        assert line in lines


def test_a_status_that_fails_once_is_asked_for_again(loop: Loop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL", 0.02)
    asked = 0

    async def status() -> pb.StatusReply:
        nonlocal asked
        asked += 1
        if asked == 2:
            raise ZeroDivisionError("a bug")
        return pb.StatusReply(joins=asked)

    metrics = Metrics(status)
    loop.run(metrics.start("127.0.0.1", 0))
    wait_until(lambda: asked > 3, "the next status")
    loop.run(metrics.close())
    assert next(one.samples[0].value for one in metrics.collect() if one.name == "p4reduce_joins") > 2
