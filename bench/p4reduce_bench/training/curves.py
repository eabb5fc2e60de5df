# SPDX-License-Identifier: Apache-2.0
"""Comparisons of losses: at the end, with the same seed, at equal time and bytes, and as curves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import numpy as np
from rich.table import Table

from p4reduce_bench import outputs
from p4reduce_bench.training.report import Row, by_system, mean

BASE = "p4reduce"
"""The system that the losses of others are compared with: sums of int32."""

Along = Callable[[Row], Sequence[float]]
"""The progress by the end of each step: `seconds` or `sent`."""


def seconds(row: Row) -> Sequence[float]:
    return row.ends


def sent(row: Row) -> Sequence[float]:
    return row.sent


def points(row: Row, along: Along) -> tuple[list[float], list[float]]:
    """Return the progress at each evaluation, and the held-out losses there."""
    passed = [0.0, *along(row)]
    return [passed[step] for step in row.evaluated], row.held_out


def loss_at(row: Row, passed: float, along: Along) -> float:
    """Return the held-out loss at some progress, on straight lines between evaluations."""
    return float(np.interp(passed, *points(row, along)))


def in_common(rows: Iterable[Row], along: Along) -> dict[tuple[str, int], float]:
    """Return by model and seed the least of the systems' progress at their end."""
    least: dict[tuple[str, int], float] = {}
    for row in rows:
        if row.held_out:
            key, end = (row.model, row.seed), along(row)[-1]
            least[key] = min(end, least.get(key, end))
    return least


def differences(rows: Sequence[Row], base: Sequence[Row]) -> list[float]:
    """Return by how many per cent final losses are above those of the same seed in `base`."""
    others = {row.seed: row.final_loss for row in base}
    return [
        100 * (row.final_loss / other - 1)
        for row in rows
        if row.final_loss is not None and (other := others.get(row.seed))
    ]


def table(rows: Sequence[Row]) -> Table:
    """Return a line for each model and system that trains."""
    made = outputs.table(
        "loss on held-out samples", ("model", "system"),
        ("seeds", "steps", "at start", "final", "±", f"to {BASE} %", "±", "equal time", "equal bytes"),
        "±: standard deviation over seeds; to p4reduce: of the same seed; equal time: loss when the fastest system was"
        " done; equal bytes: loss after as many bytes as the system sent that sent least",
    )  # fmt: skip
    least = {along: in_common(rows, along) for along in (seconds, sent)}
    for model in dict.fromkeys(one.model for one in rows):
        made.add_section()
        systems = by_system(rows, model)
        for system, some in systems.items():
            if not some[0].held_out:
                continue
            paired = differences(some, systems.get(BASE, []))
            equal = [
                fmean(loss_at(one, limits[one.model, one.seed], along) for one in some)
                for along, limits in least.items()
            ]
            made.add_row(
                model, system, str(len(some)), str(some[0].steps),
                _loss(mean(some, lambda one: one.held_out[0])), _loss(mean(some, lambda one: one.final_loss)),
                _spread([one.final_loss for one in some if one.final_loss is not None], "{:.4f}"),
                f"{fmean(paired):+.3f}" if paired else "-", _spread(paired, "{:.3f}"), *map(_loss, equal),
            )  # fmt: skip
    return made


def _loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _spread(values: Sequence[float], form: str) -> str:
    return form.format(stdev(values)) if len(values) > 1 else "-"


def plot(path: Path, rows: Sequence[Row]) -> None:
    """Draw losses on held-out samples against seconds and against bytes, with a column for each model.

    A thick line is the median over the seeds, a thin line is one seed.
    """
    models = list(dict.fromkeys(one.model for one in rows))
    systems = list(dict.fromkeys(one.system for one in rows if one.held_out))
    with outputs.figure(path, 2, len(models), (0.6 + 3.4 * len(models), 6.6)) as (figure, axes):
        for column, model in enumerate(models):
            for panel, along, unit in ((axes[0][column], seconds, 1.0), (axes[1][column], sent, 1e6)):
                for system, some in by_system(rows, model).items():
                    if system in systems:
                        _draw(panel, some, along, unit, f"C{systems.index(system)}", system)
                panel.set(xscale="log")
                panel.grid(alpha=0.3)
            axes[0][column].set(title=model, xlabel="seconds")
            axes[1][column].set(xlabel="MB sent by a worker")
        for line in axes:
            line[0].set(ylabel="loss on held-out samples")
        outputs.legend(figure, 2 * len(models))


def _draw(panel: Any, rows: Sequence[Row], along: Along, unit: float, colour: str, label: str) -> None:
    """Draw the lines of a system, from the first evaluation after a step: a logarithmic axis has no zero."""
    curves = [points(row, along) for row in rows]
    for passed, losses in curves if len(curves) > 1 else []:
        panel.plot([value / unit for value in passed[1:]], losses[1:], color=colour, linewidth=0.6, alpha=0.4)
    middle = [[median(turn) for turn in zip(*some, strict=True)] for some in zip(*curves, strict=True)]
    panel.plot([value / unit for value in middle[0][1:]], middle[1][1:], color=colour, linewidth=1.8, label=label)
