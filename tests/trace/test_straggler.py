# SPDX-License-Identifier: Apache-2.0
"""A job with one straggler and 1 % loss: a trace shows both at a glance, in the page and in Perfetto's format."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("mininet", reason="needs Mininet")

from p4reduce.trace import page, perfetto
from p4reduce.trace.live import Recorder, listening
from p4reduce.trace.merging import merge
from p4reduce.trace.model import Trace
from p4reduce.trace.rounds import trace_of
from p4reduce.trace.summary import summarise
from p4reduce_bench.allreduce.grid import Case
from p4reduce_bench.allreduce.systems import Setup
from p4reduce_topos.emulation.network import Network
from p4reduce_topos.experiments.measurement import measure
from p4reduce_topos.model import LinkProperties
from p4reduce_topos.topologies import star
from tests.support.mininet import Start, mininet, start

__all__ = ["mininet", "start"]  # fixtures

pytestmark = [pytest.mark.mininet, pytest.mark.root, pytest.mark.slow]

WORKERS, LATE_S = 4, 0.15
LAST = f"worker {WORKERS - 1}"


def traced(network: Network) -> Trace:
    """Return a trace of six reductions, for each of which the last worker is late."""
    case = Case(WORKERS, 1 << 16, "float32", 0.2, "random", "block")
    setup = Setup(target="native", slots=16, threads=1, repeat=6, warm_up=1, timeout=60)
    with Recorder() as recorder:
        with listening(recorder):
            assert measure(network, "p4reduce", case, setup, late=LATE_S).row.wrong == 0
        return trace_of(*merge(recorder.captures()))


@pytest.fixture
def lossy(start: Start) -> Iterator[Network]:
    with start(
        star.build(WORKERS, LinkProperties(rate=100_000_000)), controller_options=["--drop-rate", "0.01"]
    ) as network:
        yield network


def test_both_are_seen_at_a_glance(lossy: Network, tmp_path: Path) -> None:
    made = traced(lossy)
    summary = summarise(made)
    assert LAST in summary.stragglers  # where the host is busy there may be others
    assert max(summary.workers, key=lambda one: one.awaited_s).name == LAST
    assert summary.workers[-1].awaited_s > 5 * LATE_S
    assert 0.005 < summary.loss < 0.05  # on the way there and back
    (switch,) = lossy.status()["switches"]
    lost = sum(one["lost"] for one in switch["losses"])
    assert 0.5 * lost < summary.lost < 2 * lost  # HELLOs and STATUS are lost, too, and a busy host drops some
    assert summary.skipped > 0

    page.write(made, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    held = json.loads(re.search(r'id="trace">(.*?)</script>', text)[1])  # type: ignore[index]
    assert LAST in held["summary"]["stragglers"]
    assert held["summary"]["lost"] == summary.lost

    events = perfetto.document(made)["traceEvents"]
    assert f"{LAST} (straggler)" in [event["args"].get("name") for event in events if event["ph"] == "M"]
    marks = [event for event in events if event["ph"] == "i" and event["pid"] == perfetto.WORKERS]
    assert sum("lost: " in event["name"] for event in marks) == summary.lost
    (waits,) = [{event["tid"] for event in events if event["ph"] == "X" and event["pid"] == perfetto.WORKERS}]
    assert WORKERS - 1 in waits
