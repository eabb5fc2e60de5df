# SPDX-License-Identifier: Apache-2.0
"""Experiments measure each point once, and go on where they stopped."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from p4reduce_bench.allreduce.report import row
from p4reduce_bench.processes.children import ChildFailed
from p4reduce_topos.experiments import congestion, series
from p4reduce_topos.experiments.measuring import SYSTEMS, Measured
from p4reduce_topos.experiments.series import EXPERIMENTS, Experiment, Point, busiest, plot, run
from p4reduce_topos.topologies import star

SMALL = Experiment("Two densities.", "density", (1.0, 0.0), ("p4reduce", "gloo"), {"numel": 4096, "workers": 2})


@pytest.mark.mininet
@pytest.mark.root
@pytest.mark.slow
def test_it_goes_on_where_it_stopped(start: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    networks = []

    def started(point: Point, target: str, stack: contextlib.ExitStack) -> Any:
        networks.append(point.network)
        return stack.enter_context(start(star.build(point.workers, others=1), target))

    monkeypatch.setattr(series, "_start", started)
    file = tmp_path / "made" / "small.json"
    with contextlib.closing(run(SMALL, file, "native", 1)) as points:
        assert [next(points)[0].system, next(points)[0].system] == ["p4reduce", "gloo"]
    written = json.loads(file.read_text())["rows"]
    assert len(written) == 2
    assert all(row["machine"]["cpus"] for row in written)

    measured = list(run(SMALL, file, "native", 1))
    assert [point for point, _ in measured] == SMALL.points()
    assert [row["wrong"] for _, row in measured] == [0] * 4
    assert json.loads(file.read_text())["rows"][:2] == written, "measured again"
    assert len(networks) == 2

    assert len(list(run(SMALL, file, "native", 1))) == 4
    assert len(networks) == 2, "nothing was left to measure"
    plot(tmp_path / "plot.png", "small", SMALL, measured)
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_a_system_that_fails_at_a_point_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def fail(_network: Any, system: str, case: Any, setup: Any, *, late: float) -> Measured:
        tried.append((system, case.density, late))
        if len(tried) in (2, 3):
            raise ChildFailed("[/no markup] it went away")
        seconds = {"seconds": [1.0], "wrong": 0, "traffic": {}}
        return Measured(row(system, setup.target, case, {0: seconds}, None, None), {"h1>s1": 1})

    monkeypatch.setattr(series, "_start", lambda *_: None)
    monkeypatch.setattr(series, "measure", fail)
    file = tmp_path / "small.json"
    measured = list(run(SMALL, file, "native", 1))
    assert [row["error"] is None for _, row in measured] == [True, False, False, True]
    assert "it went away" in measured[1][1]["error"]
    plot(tmp_path / "plot.png", "small", SMALL, measured)
    again = list(run(SMALL, file, "native", 1))
    assert [row["error"] for _, row in again] == [None] * 4
    assert tried[4:] == tried[1:3]
    assert len(json.loads(file.read_text())["rows"]) == 4


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_points(name: str) -> None:
    experiment = EXPERIMENTS[name]
    points = experiment.points()
    assert len(set(points)) == len(points) == len(experiment.values) * len(experiment.systems)
    assert set(experiment.systems) <= set(SYSTEMS)


def test_the_busiest_host() -> None:
    carried = {"h1>s1": 5, "s1>h1": 6, "s1>x1": 20, "x1>s1": 1, "s1>s2": 100, "s2>s1": 100}
    assert busiest({"carried": carried}) == 21


@pytest.mark.mininet
@pytest.mark.root
@pytest.mark.serial
@pytest.mark.slow
def test_neither_aggregation_nor_tcp_starves(start: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a link that either could fill, each keeps a seventh at least; also where one could overflow it."""
    monkeypatch.setattr(congestion, "Network", start)
    found = congestion.run("native", 5)
    assert [one.wrong for one in found.values()] == [0] * len(found)
    for algorithm in congestion.algorithms():
        assert found[f"{algorithm} alone"].tcp > 0.8 * congestion.RATE
        for slots in (64, 512):
            both = found[f"{slots} slots and {algorithm}"]
            assert min(both.tcp, both.aggregation) > congestion.RATE / 7, found
            assert both.resent < 0.25, found
    congestion.plot(tmp_path / "plot.png", found)
    assert (tmp_path / "plot.png").stat().st_size > 1000
