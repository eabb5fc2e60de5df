# SPDX-License-Identifier: Apache-2.0
"""Losses of trainings beside each other: by seed, at equal time and bytes, as a table and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from p4reduce_bench.training import curves
from p4reduce_bench.training.curves import plot
from p4reduce_bench.training.report import Row, row
from p4reduce_bench.training.trainings import Run, Training, evaluated_after

STEPS = 8
TRAINING = Training(
    workers=2, steps=STEPS, warm_up=2, ratio=0.01, start_iteration=0, evaluations=3, folder=Path("nowhere")
)


def made(
    system: str, seed: int = 1, *, last: float = 2.0, seconds: float = 1.0, sent: int = 1000, link: int | None = None
) -> Row:
    """Return a training of 8 steps that take `seconds` and send `sent` bytes each, at the slower of two ranks."""

    def rank(slower: int) -> dict[str, Any]:
        ends = [seconds * step - 0.25 * (not slower) for step in range(1, STEPS + 1)]
        traffic = {"tx_bytes": [sent * step - (not slower) for step in range(1, STEPS + 1)]}
        losses = [5.0 - slower] * STEPS
        return {"losses": losses, "ends": ends, "traffic": traffic, "batch": 16, "backend": "c", "parameters": 100,
                "held_out": None}  # fmt: skip

    figures = {0: {**rank(0), "held_out": [10.0, 6.0, 4.0, last]}, 1: rank(1)}
    return row(Run("bert", system, seed), figures, TRAINING, "native", link)


def lines(rows: Sequence[Row]) -> list[list[str]]:
    """Return the table's cells."""
    console = Console(width=200)
    with console.capture() as shown:
        console.print(curves.table(rows))
    return [
        [cell.strip() for cell in line.strip("│").split("│")] for line in shown.get().splitlines() if "bert" in line
    ]


def test_evaluations_are_halves_of_halves() -> None:
    assert evaluated_after(200, 5) == [0, 12, 25, 50, 100, 200]
    assert evaluated_after(50, 1) == [0, 50]
    assert evaluated_after(3, 9) == [0, 1, 3]


def test_a_row_is_that_of_the_slowest_rank_and_of_the_one_that_sends_most() -> None:
    one = made("p4reduce", seconds=0.5)
    assert one.ends == [0.5 * step for step in range(1, STEPS + 1)]
    assert one.sent == [1000 * step for step in range(1, STEPS + 1)]
    assert (one.steps_per_s, one.samples_per_s, one.tx_bytes) == (2, 64, 1000)
    assert one.losses == [4.5] * STEPS
    assert one.evaluated == [0, 2, 4, 8]
    assert (one.final_loss, one.held_out) == (2.0, [10.0, 6.0, 4.0, 2.0])
    assert made("noop").held_out == []
    assert made("noop").final_loss is None


@pytest.mark.parametrize(
    ("system", "link", "counted"),
    [
        ("p4reduce-int8", None, "packets"),
        ("oktopk", None, "payload"),
        ("gloo", None, "payload"),
        ("gloo", 10**9, "interface"),
        ("p4reduce", 10**9, "interface"),
    ],
)
def test_whose_bytes_are_counted(system: str, link: int | None, counted: str) -> None:
    assert made(system, link=link).counted == counted


def test_losses_between_evaluations_lie_on_lines() -> None:
    one = made("p4reduce", seconds=2.0)
    for seconds, loss in ((0, 10), (2, 8), (4, 6), (6, 5), (12, 3), (16, 2), (99, 2)):
        assert curves.loss_at(one, seconds, curves.seconds) == pytest.approx(loss)
    assert curves.loss_at(one, 3000, curves.sent) == pytest.approx(5)


def test_what_is_in_common_is_the_least_of_those_that_train() -> None:
    rows = [made("p4reduce", seconds=2.0), made("gloo", seconds=3.0, sent=10), made("noop", seconds=0.1, sent=0)]
    assert curves.in_common(rows, curves.seconds) == {("bert", 1): 16.0}
    assert curves.in_common(rows, curves.sent) == {("bert", 1): 80}


def test_differences_are_to_the_same_seed() -> None:
    base = [made("p4reduce", 1, last=2.0), made("p4reduce", 2, last=4.0)]
    others = [made("oktopk", 2, last=5.0), made("oktopk", 1, last=1.0), made("oktopk", 3, last=1.0)]
    assert curves.differences(others, base) == pytest.approx([25.0, -50.0])


def test_the_table() -> None:
    rows = [made("p4reduce", 1), made("p4reduce", 2, last=4.0), made("noop"),
            made("p4reduce-int8", 1, seconds=2.0), made("p4reduce-int8", 2, seconds=2.0, last=5.0)]  # fmt: skip
    assert lines(rows) == [
        ["bert", "p4reduce", "2", "8", "10.0000", "3.0000", "1.4142", "+0.000", "0.000", "3.0000", "3.0000"],
        ["bert", "p4reduce-int8", "2", "8", "10.0000", "3.5000", "2.1213", "+12.500", "17.678", "4.0000", "3.5000"],
    ]


def test_one_seed_has_no_spread_and_no_base_no_difference() -> None:
    assert [line[6:9] for line in lines([made("oktopk")])] == [["-", "-", "-"]]


def test_the_plot_has_a_column_a_model_and_a_line_a_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    drawn: list[Figure] = []
    real = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (drawn.append(self), real(self, *a, **k))[1])
    rows = [made("p4reduce", 1), made("p4reduce", 2, last=4.0), made("p4reduce", 3, last=5.0), made("noop")]
    plot(tmp_path / "made" / "plot.png", [*rows, made("oktopk", sent=50)])
    assert (tmp_path / "made" / "plot.png").read_bytes().startswith(b"\x89PNG")
    above, below = drawn[0].axes
    assert (above.get_xlabel(), below.get_xlabel(), above.get_title()) == ("seconds", "MB sent by a worker", "bert")
    assert len(above.lines) == len(below.lines) == 3 + 1 + 1
    assert list(above.lines[3].get_ydata()) == [6, 4, 4]  # the median of 2, 4 and 5
    assert list(above.lines[3].get_xdata()) == [2, 4, 8]
    assert list(below.lines[3].get_xdata()) == pytest.approx([0.002, 0.004, 0.008])
