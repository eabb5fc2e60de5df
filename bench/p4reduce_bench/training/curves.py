# SPDX-License-Identifier: Apache-2.0
"""Losses of trainings beside each other: in the end, against those of the same seed, and at equal time and bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, stdev

import numpy as np
from rich.table import Table

from p4reduce_bench.training.report import Row, by_system, mean

BASE = "p4reduce"
"""The system with whose losses others are compared: sums of int32."""

Along = Callable[[Row], Sequence[float]]
"""What has passed by the end of each step: `seconds` or `sent`."""


def seconds(row: Row) -> Sequence[float]:
    return row.ends


def sent(row: Row) -> Sequence[float]:
    return row.sent


def points(row: Row, along: Along) -> tuple[list[float], list[float]]:
    """What had passed at each evaluation, and the held-out losses there."""
    passed = [0.0, *along(row)]
    return [passed[step] for step in row.evaluated], row.held_out


def loss_at(row: Row, passed: float, along: Along) -> float:
    """Return the held-out loss when so much had passed, by straight lines between evaluations."""
    return float(np.interp(passed, *points(row, along)))


def in_common(rows: Iterable[Row], along: Along) -> dict[tuple[str, int], float]:
    """By model and seed, how much had passed in the end of the system for which it is the least."""
    least: dict[tuple[str, int], float] = {}
    for row in rows:
        if row.held_out:
            key, end = (row.model, row.seed), along(row)[-1]
            least[key] = min(end, least.get(key, end))
    return least


def differences(rows: Sequence[Row], base: Sequence[Row]) -> list[float]:
    """How much higher final losses are than those of the same seed in `base`, in per cent."""
    others = {row.seed: row.final_loss for row in base}
    return [
        100 * (row.final_loss / other - 1)
        for row in rows
        if row.final_loss is not None and (other := others.get(row.seed))
    ]


def table(rows: Sequence[Row]) -> Table:
    """Return a line for each model and system that trains."""
    made = Table(
        title="loss on held-out samples",
        caption="±: standard deviation over seeds; to p4reduce: of the same seed; at equal time and bytes: what the"
        " first to be done took, and what was sent by who sent least",
    )
    made.add_column("model")
    made.add_column("system")
    for name in ("seeds", "steps", "at start", "final", "±", f"to {BASE} %", "±", "equal time", "equal bytes"):
        made.add_column(name, justify="right", no_wrap=True)
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
