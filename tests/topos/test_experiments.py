# SPDX-License-Identifier: Apache-2.0
"""Experiments measure each point once, and go on where they stopped."""

from __future__ import annotations

import contextlib
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from p4reduce.errors import P4ReduceError
from p4reduce_bench.allreduce.grid import Case
from p4reduce_bench.allreduce.report import Row, row
from p4reduce_bench.processes.children import ChildFailed
from p4reduce_topos.experiments import congestion, selection, series
from p4reduce_topos.experiments.measurement import SYSTEMS, Measurement
from p4reduce_topos.experiments.selection import find, with_options
from p4reduce_topos.experiments.series import EXPERIMENTS, Experiment, Point, busiest, plot, run
from p4reduce_topos.topologies import star

CASE = Case(2, 64, "float32", 1.0, "random", "block")
SMALL = Experiment("Two densities.", "density", (1.0, 0.0), ("p4reduce", "gloo"), {"numel": 4096, "workers": 2})


def row_of(system: str = "p4reduce", case: Case = CASE, target: str = "native") -> Row:
    """Return the row of three reductions."""
    taken = {"seconds": [1.0, 2.0, 4.0], "processor_s": 1.0, "wrong": 0, "traffic": {}}
    return row(system, target, case, {0: taken}, None, None)


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
    plot(tmp_path / "plot.png", "small", SMALL, measured, "native", 1)
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_a_system_that_fails_at_a_point_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []

    def fail(_network: Any, system: str, case: Any, setup: Any, *, late: float) -> Measurement:
        tried.append((system, case.density, late))
        if len(tried) in (2, 3):
            raise ChildFailed("[/no markup] it went away")
        return Measurement(row_of(system, case, setup.target), {"h1>s1": 1})

    monkeypatch.setattr(series, "_start", lambda *_: None)
    monkeypatch.setattr(series, "measure", fail)
    file = tmp_path / "small.json"
    measured = list(run(SMALL, file, "native", 1))
    assert [row["error"] is None for _, row in measured] == [True, False, False, True]
    assert "it went away" in measured[1][1]["error"]
    plot(tmp_path / "plot.png", "small", SMALL, measured, "native", 1)
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
    assert busiest({"carried": carried}, ("h1", "x1")) == 21


def of_a_point(point: Point) -> tuple[Point, dict[str, Any]]:
    case = Case(point.workers, point.numel, "float32", point.density, "random", "block")
    return point, {**asdict(row_of(point.system, case)), "carried": {"s1>h1": 50, "h1>s1": 60}}


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets each figure in place of its file."""
    from matplotlib.figure import Figure

    figures: list[Any] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_, **__: figures.append(self))
    return figures


def test_a_plot_says_what_it_shows_and_hides_nothing(tmp_path: Path, drawn: list[Any]) -> None:
    experiment = replace(SMALL, fixed={**SMALL.fixed, "topology": "two-racks", "rate": 50_000_000})
    plot(tmp_path / "plot.png", "small", experiment, [of_a_point(point) for point in experiment.points()], "sim", 3)
    (figure,) = drawn
    title = figure._suptitle.get_text()
    for said in ("small", "two-racks", "2 workers", "0.01562 MiB of float32", "64 slots", "50 Mbit/s", "target sim",
                 "3 reductions"):  # fmt: skip
        assert said in title
    assert "density" not in title
    assert all(axis.get_title() and axis.get_xlabel() and axis.get_ylabel() for axis in figure.axes)
    spread = figure.axes[0].collections
    assert [(one.get_datalim(figure.axes[0].transData).ymin, one.get_datalim(figure.axes[0].transData).ymax)
            for one in spread] == [(1000, 4000)] * 2  # fmt: skip
    assert [axis.get_legend() for axis in figure.axes] == [None, None]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["p4reduce", "gloo"]
    figure.draw_without_rendering()
    boxes = [axis.get_tightbbox() for axis in figure.axes]
    assert not any(box.overlaps(legend.get_window_extent()) for box in boxes)


def test_the_plot_of_congestion_does_so_too(tmp_path: Path, drawn: list[Any]) -> None:
    found = {"alone": congestion.Throughput(9e7, 0, 1e6), "both": congestion.Throughput(5e7, 4e7, 2e6, 3e6)}
    congestion.plot(tmp_path / "plot.png", found, "native", 5)
    (figure,) = drawn
    (axis,) = figure.axes
    assert "100 Mbit/s with a queue of 250 kB, 4 workers on native" in axis.get_title()
    assert "5 reductions of 4 MiB" in axis.get_title()
    assert axis.get_ylabel().endswith("(Mbit/s)")
    spread = [(top - bottom) / 2 for one in axis.collections for (_, bottom), (_, top) in one.get_segments()]
    assert spread == pytest.approx([1, 2, 3])
    (legend,) = figure.legends
    figure.draw_without_rendering()
    assert not figure.axes[0].get_tightbbox().overlaps(legend.get_window_extent())


@pytest.mark.parametrize(
    ("varied", "values", "label", "ends"),
    [
        ("rate", (20_000_000, 500_000_000), "rate of every link (Mbit/s)", (20, 500)),
        ("late", (0, 0.2), "delay of the last worker (ms)", (0, 200)),
        ("drop_rate", (0, 0.1), "lost packets, at every port and in each direction (%)", (0, 10)),
    ],
)
def test_the_axis_of_a_plot_has_a_unit(
    tmp_path: Path, drawn: list[Any], varied: str, values: Any, label: str, ends: Any
) -> None:
    experiment = Experiment("", varied, values, ("p4reduce",))
    plot(tmp_path / "plot.png", "own", experiment, [of_a_point(point) for point in experiment.points()], "native", 1)
    (figure,) = drawn
    for axis in figure.axes:
        assert axis.get_xlabel() == label
        assert axis.lines[0].get_xdata() == pytest.approx(ends)


def test_every_setting_that_can_vary_has_an_axis() -> None:
    assert set(series._AXES) == {*selection._NUMBERS}


def test_points_are_on_the_topology_that_is_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = with_options(SMALL, "", "", topology="leaf-spine", shape="leaves=2,spines=3", rate="20mbit")
    topology = made.points()[0].build()
    assert topology.name == "leaf-spine"
    assert len(topology.roots) == 3
    assert {link.properties.rate for link in topology.links} == {20_000_000}
    assert len(topology.hosts) == 3, "one adds up for the system server"
    built = []

    def network(topology: Any, *_: Any, **__: Any) -> contextlib.nullcontext[None]:
        built.append(topology.name)
        return contextlib.nullcontext()

    monkeypatch.setattr(series, "Network", network)
    monkeypatch.setattr(series, "measure", lambda *_, **__: Measurement(row_of(), {}))
    assert len(list(run(made, tmp_path / "made.json", "native", 1))) == 4
    assert built == ["leaf-spine"]


def test_points_of_a_file_that_has_changed_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.yaml").write_text(NET)
    monkeypatch.setattr(series, "Network", lambda *_, **__: contextlib.nullcontext())
    measured = []

    def measure(_: Any, system: str, *__: Any, **___: Any) -> Measurement:
        measured.append(system)
        return Measurement(row_of(), {})

    monkeypatch.setattr(series, "measure", measure)
    made = with_options(SMALL, "1", "p4reduce", topology=str(tmp_path / "net.yaml"))
    for _ in range(2):
        assert len(list(run(made, tmp_path / "made.json", "native", 1))) == 1
    assert len(measured) == 1
    (tmp_path / "net.yaml").write_text(NET.replace("1gbit", "2gbit"))
    assert len(list(run(made, tmp_path / "made.json", "native", 1))) == 1
    assert len(measured) == 2


NET = """
switches: [s1, s2]
hosts: {a: s1, b: s2, c: s2}
links: [[s1, s2, rate=1gbit]]
workers: [b, a]
"""
OWN = """
summary: Share of blocks that are non-zero.
varied: density
values: [1, 0.1]
systems: [p4reduce]
topology: net.yaml
workers: 2
numel: 1MiB
rate: 50mbit
"""


def test_an_experiment_of_ones_own_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "net.yaml").write_text(NET)
    (tmp_path / "own.yaml").write_text(OWN)
    name, made = find(str(tmp_path / "own.yaml"))
    assert name == "own"
    assert [(one.system, one.density, one.workers, one.numel, one.rate) for one in made.points()] == [
        ("p4reduce", 1, 2, 1 << 18, 50_000_000), ("p4reduce", 0.1, 2, 1 << 18, 50_000_000),
    ]  # fmt: skip
    assert made.points()[0].build().workers == ("b", "a")
    (tmp_path / "own.yaml").write_text(OWN.replace("workers: 2\n", ""))
    assert find(str(tmp_path / "own.yaml"))[1].points()[0].workers == 2, "those of the topology"
    (tmp_path / "own.py").write_text(
        "from p4reduce_topos.experiments.series import Experiment\n"
        "small = Experiment('Slots.', 'slots', (1, 2), ('p4reduce',))\n"
        "def made(): return small\n"
    )
    assert find(f"{tmp_path}/own.py:small")[1] == find(f"{tmp_path}/own.py:made")[1]
    assert find(f"{tmp_path}/own.py:made")[0] == "made"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("varied: density", "varied: luck"), "`varied`, one of workers, numel, .* it has 'luck'"),
        (("values: [1, 0.1]", "values: 1"), "`values`, a list"),
        (("values: [1, 0.1]", "values: [2]"), "accepted for density is 0 to 1"),
        (("systems: [p4reduce]", "systems: p4reduce"), "systems: 'p4reduce': accepted is a list"),
        (("systems: [p4reduce]", "systems: [mpi]"), "--systems mpi: accepted are p4reduce"),
        (("topology: net.yaml", "topology: nowhere"), "topology nowhere: accepted are star"),
        (("workers: 2", "workers: 3"), "has 2 workers"),
        (("workers: 2", "colour: red"), "the key 'colour': accepted are the keys summary"),
        (("workers: 2", "workers: ["), "own.yaml: .*expected"),
        (("workers: 2", "density: 1"), "the experiment varies it"),
    ],
)
def test_what_is_no_experiment_is_told(tmp_path: Path, change: tuple[str, str], says: str) -> None:
    (tmp_path / "net.yaml").write_text(NET)
    (tmp_path / "own.yaml").write_text(OWN.replace(*change))
    with pytest.raises((P4ReduceError, ValueError), match=says):
        find(str(tmp_path / "own.yaml"))
    for name, told in (("luck", "accepted are workers, .* FILE.yaml"), ("no.py:it", "there is no file no.py")):
        with pytest.raises(P4ReduceError, match=told):
            find(name)


@pytest.mark.mininet
@pytest.mark.root
@pytest.mark.serial
@pytest.mark.slow
def test_neither_aggregation_nor_tcp_starves(start: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each keeps at least a seventh of a link that either could fill, even if one could overflow it."""
    monkeypatch.setattr(congestion, "Network", start)
    found = congestion.run("native", 5)
    assert [one.wrong for one in found.values()] == [0] * len(found)
    for algorithm in congestion.algorithms():
        assert found[f"{algorithm} alone"].tcp > 0.8 * congestion.RATE
        for slots in (64, 512):
            both = found[f"{slots} slots and {algorithm}"]
            assert min(both.tcp, both.aggregation) > congestion.RATE / 7, found
            assert both.resent < 0.25, found
    congestion.plot(tmp_path / "plot.png", found, "native", 5)
    assert (tmp_path / "plot.png").stat().st_size > 1000


def test_the_files_in_the_documentation(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "topologies.md").read_text()
    rooms, own = (block.partition("```")[0] for block in page.split("```yaml\n")[1:])
    (tmp_path / "rooms.yaml").write_text(rooms)
    (tmp_path / "own.yaml").write_text(own)
    made = find(str(tmp_path / "own.yaml"))[1]
    assert [point.density for point in made.points()] == [1, 1, 0.1, 0.1, 0.01, 0.01]
    assert made.points()[0].build().workers == ("h1", "h2", "h3", "h4")
