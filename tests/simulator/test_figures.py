# SPDX-License-Identifier: Apache-2.0
"""Published figures: their cases can be simulated, and what was published holds of the algorithms where it must."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from p4reduce_simulator import Workload
from p4reduce_simulator.figures import FIGURES, GRID_DENSITIES, GRID_ELEMENTS, Case, main, run
from p4reduce_simulator.peers.algorithms import SYSTEMS
from p4reduce_simulator.peers.comparison import KNOWN
from p4reduce_simulator.peers.support import Support


def smaller(case: Case, elements: int = 1 << 16) -> Case:
    return replace(case, workload=replace(case.workload, numel=elements))


@pytest.mark.parametrize("name", FIGURES)
def test_each_figure_has_cases_and_sources(name: str) -> None:
    figure = FIGURES[name]
    cases = list(figure.cases())
    assert len({case.label for case in cases}) == len(cases)
    assert all(set(case.systems) | {case.base} <= set(KNOWN) for case in cases)
    assert all(case.systems == cases[0].systems for case in cases)
    assert all(statement and source for statement, source in figure.published)
    row = run(smaller(cases[0]))
    assert set(row.times) == {cases[0].base, *cases[0].systems}
    assert all(time > 0 for time in row.times.values())


def test_the_grid_is_the_artifacts() -> None:
    cases = list(FIGURES["omnireduce-grid"].cases())
    assert len(cases) == 2 * 3 * len(GRID_DENSITIES)
    assert {case.workload.numel for case in cases} == {GRID_ELEMENTS}
    assert {len(case.network.ranks) for case in cases} == {2, 4, 8}
    assert {case.network.edge.rate for case in cases} == {10**10, 10**11}


def test_omnireduce_is_as_fast_as_its_volume_allows() -> None:
    """A worker receives the blocks of the sum, which limits the speed-up over ring to 2(P - 1)/P for each of these."""
    case = next(
        case for case in FIGURES["omnireduce-grid"].cases() if "10 Gbit/s, 8 workers, density 0.1" in case.label
    )
    row = run(replace(smaller(case, 1 << 22), systems=("omnireduce",)))
    support = Support(replace(case.workload, numel=1 << 22), 8)
    bound = 2 * 7 / 8 / (support.union(8) / support.numel)
    assert 0.9 * bound < row.speed_up("omnireduce") < 1.05 * bound


def test_switchml_takes_as_long_with_any_number_of_workers() -> None:
    cases = [smaller(case, 1 << 18) for case in FIGURES["switchml"].cases() if case.label.startswith("100")]
    rows = [run(replace(case, systems=("switchml",))) for case in cases]
    times = [row.times["switchml"] for row in rows]
    assert max(times) < 1.02 * min(times)
    speed_ups = [row.speed_up("switchml") for row in rows]
    assert speed_ups == sorted(speed_ups)


def test_oktopk_sends_less_than_6k_words_at_any_size() -> None:
    for ranks in (32, 64, 128, 256):
        support = Support(Workload(1 << 16, 0.01, "elements"), ranks)
        sent = SYSTEMS["oktopk-k"](support).sent(0)
        assert sent < 6 * 4 * support.nonzero + ranks


def test_zen_is_faster_than_the_sparse_systems_that_it_was_compared_with() -> None:
    case = next(case for case in FIGURES["zen"].cases() if "16 workers, density 0.05" in case.label)
    row = run(replace(smaller(case, 1 << 18), systems=("agsparse", "sparcml", "omnireduce", "zen")))
    assert row.times["zen"] < min(row.times[system] for system in ("agsparse", "sparcml", "omnireduce", "ring"))


def test_the_command_ends_with_a_line_that_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments, message in (
        (["zen", "--only", "nothing"], "--only nothing: accepted are parts of names such as '25 Gbit/s, 4 workers"),
        (["zen", "--json", str(tmp_path)], f"--json {tmp_path}: nothing can be written there"),
    ):
        with pytest.raises(SystemExit, match="2"):
            main(arguments)
        assert message in capsys.readouterr().err

    def interrupted(_: Case) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("p4reduce_simulator.figures.run", interrupted)
    with pytest.raises(SystemExit, match="130"):
        main(["zen"])
    assert "stopped: nothing is left running" in capsys.readouterr().err


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out.json"
    main(["switchml", "--only", "100 Gbit/s, 2 workers", "--json", str(out)])
    assert "published: more than 2 times NCCL with RDMA" in capsys.readouterr().out
    assert json.loads(out.read_text())["rows"][0]["times"].keys() == {"ring", "switchml", "p4reduce"}
    main(["switchml", "--only", "100 Gbit/s, 2 workers", "--markdown"])
    assert "| case | ring ms | switchml | p4reduce |" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["switchml", "--only", "3 workers"])


def test_published_values_are_beside_the_cases_that_they_are_of() -> None:
    found = {name: [case for case in FIGURES[name].cases() if case.published] for name in FIGURES}
    assert {name: len(cases) for name, cases in found.items() if cases} == {
        "omnireduce-grid": 17,
        "omnireduce-training": 5,
        "switchml": 3,
    }
    assert all("100 Gbit/s" in case.label for cases in found.values() for case in cases)
    free = [case for case in found["omnireduce-grid"] if "8 workers" in case.label][::4]
    for row in (run(replace(smaller(case, 1 << 22), systems=("omnireduce",))) for case in free):
        assert row.published is not None
        assert row.speed_up("omnireduce") > row.published  # its hosts need time that the simulated ones do not
