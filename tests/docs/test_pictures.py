# SPDX-License-Identifier: Apache-2.0
"""The README's pictures are those of the stored figures: `make pictures` draws them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from p4reduce.errors import P4ReduceError
from website.pictures import speed_up
from website.pictures.__main__ import draw_all

DOCS = Path(__file__).parents[2] / "docs"
FIGURES = DOCS / "figures" / "allreduce-50mbit.json"
NAMES = ("round.svg", "speed-up.svg")


def difference(stored: str, drawn: str) -> str:
    """Return how `stored` differs from the picture `drawn`, or "".

    Another version of matplotlib may write the same picture in other bytes.
    """

    def parts(svg: str, pattern: str) -> list[str]:
        found = re.findall(pattern, svg)
        assert found, pattern
        return found

    for what, pattern in (("data", r"<dc:source>(.*?)<"), ("words", r"<!-- (.*?) -->")):
        if parts(stored, pattern) != parts(drawn, pattern):
            return what
    program = r"<dc:title>(Matplotlib.*?)<"
    return "bytes" if parts(stored, program) == parts(drawn, program) and stored != drawn else ""


@pytest.fixture(scope="module")
def drawn() -> dict[str, str]:
    return {path.name: text for path, text in draw_all(DOCS).items()}


def test_all_pictures_are_stored(drawn: dict[str, str]) -> None:
    assert set(drawn) == set(NAMES) == {path.name for path in (DOCS / "pictures").iterdir()}


@pytest.mark.parametrize("name", NAMES)
def test_stored_pictures_are_those_of_the_figures(drawn: dict[str, str], name: str) -> None:
    stored = (DOCS / "pictures" / name).read_text()
    assert difference(stored, drawn[name]) == "", "draw them again: make pictures"
    assert len(stored.encode()) <= 100_000


@pytest.mark.parametrize(("name", "page"), [("round.svg", "docs/protocol.md"), ("speed-up.svg", "README.md")])
def test_a_page_shows_the_picture_and_describes_it(name: str, page: str) -> None:
    shown = re.search(rf"!\[([^\]]*)\]\((?:docs/)?pictures/{name}\)", (DOCS.parent / page).read_text())
    assert shown is not None
    assert len(shown[1]) > 40


def test_the_page_for_newcomers_has_the_stored_speed_ups() -> None:
    found = speed_up.speed_ups(speed_up.read(FIGURES))
    rows = re.findall(r"^\| (\d) \| 50 Mbit/s \| 8 MiB \| (.+?) \|$", (DOCS / "fit.md").read_text(), re.MULTILINE)
    assert len(rows) == 3
    for workers, cells in rows:
        for density, shown in zip((1, 0.1, 0.01), cells.split(" | "), strict=True):
            assert float(shown) == pytest.approx(dict(found[int(workers)])[density], rel=0.05)


def test_other_figures_give_another_picture(tmp_path: Path, drawn: dict[str, str]) -> None:
    figures = json.loads(FIGURES.read_text())
    figures["rows"][0]["median_s"] *= 1.01
    changed = tmp_path / FIGURES.name
    changed.write_text(json.dumps(figures))
    assert difference(drawn["speed-up.svg"], speed_up.draw(changed)) == "data"


def test_another_drawing_is_noticed(drawn: dict[str, str]) -> None:
    picture = drawn["round.svg"]
    assert difference(picture, picture.replace("<!-- switch -->", "<!-- Switch -->")) == "words"
    assert difference(picture, picture.replace("stroke-width: 3", "stroke-width: 4", 1)) == "bytes"


def test_speed_ups_are_ratios_of_medians() -> None:
    rows = speed_up.read(FIGURES)
    times = {(row.system, row.workers, row.density): row.median_s for row in rows}
    found = speed_up.speed_ups(rows)
    assert list(found) == [2, 4, 8]
    for workers, points in found.items():
        assert [density for density, _ in points] == [1, 0.3, 0.1, 0.03, 0.01]
        for density, factor in points:
            ours, theirs = times["p4reduce", workers, density], times["gloo", workers, density]
            assert ours is not None
            assert theirs is not None
            assert factor == pytest.approx(theirs / ours)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"system": "mpi"}, "no time of gloo for 2 workers"),
        ({"wrong": 3}, "3 wrong"),
        ({"median_s": None, "error": "it broke"}, "it broke"),
        ({"overlap": "random"}, "accepted is one"),
    ],
)
def test_figures_that_make_no_picture(tmp_path: Path, change: dict[str, object], error: str) -> None:
    figures = json.loads(FIGURES.read_text())
    gloo = next(row for row in figures["rows"] if row["system"] == "gloo")
    gloo.update(change)
    path = tmp_path / "figures.json"
    path.write_text(json.dumps(figures))
    with pytest.raises(P4ReduceError, match=error):
        speed_up.draw(path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"version": 0, "rows": []}', '{"version": 1, "rows": [{"a": 1}]}'])
def test_files_that_are_no_figures(tmp_path: Path, text: str) -> None:
    path = tmp_path / "figures.json"
    path.write_text(text)
    with pytest.raises(P4ReduceError, match=str(path)):
        speed_up.read(path)
