# SPDX-License-Identifier: Apache-2.0
"""The sparsity of gradients and the speed of their reduction, as tables, as JSON and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from p4reduce_bench import outputs
from p4reduce_bench.allreduce import report
from p4reduce_bench.allreduce.limit import Memory
from p4reduce_bench.gradients.layers import ALL, BLOCK_SIZES, Group
from p4reduce_bench.gradients.replay import Recorded
from p4reduce_bench.outputs import number

VERSION = 1


@dataclass(frozen=True)
class Training:
    """One training, or replayed recordings, which have no losses."""

    recorded: Recorded
    groups: list[Group]
    losses: list[float]
    """The loss of each step, as the mean over the ranks."""


@dataclass(frozen=True)
class Replayed:
    """The result of one system on the gradients of one iteration."""

    training: Training
    iteration: int
    row: report.Row
    to_gloo: float | None
    """Gloo's time for the dense allreduce of the same gradients / this time. None: one of the two has no time."""


def replayed(training: Training, iteration: int, rows: Sequence[report.Row]) -> list[Replayed]:
    """Return the systems' rows of one iteration, with the ratio to Gloo."""
    gloo = next((row.median_s for row in rows if row.system == "gloo"), None)
    return [Replayed(training, iteration, row, gloo / row.median_s if gloo and row.median_s else None) for row in rows]


def layers_table(trainings: Sequence[Training]) -> Table:
    """Return a line for each model, sparsifier and group of layers."""
    made = outputs.table(
        "gradients", ("model", "sent", "layers"),
        ("elements", "density %", *(f"blocks of {size} %" for size in BLOCK_SIZES), "of sum %", "overlap",
         "densification", "skew"),
        "density: share that is not zero, by element and by block; overlap, densification and skew of elements, as Zen"
        " measures them (docs/pytorch.md)",
    )  # fmt: skip
    for training in trainings:
        made.add_section()
        for group in training.groups:
            elements = group.by_size[1]
            made.add_row(
                training.recorded.model, training.recorded.sparsifier, escape(group.name), str(group.numel),
                *(number(100 * group.by_size[size].density) for size in (1, *BLOCK_SIZES)),
                number(100 * elements.union), number(elements.overlap), number(elements.densification),
                number(elements.skew),
            )  # fmt: skip
    return made


def replay_table(rows: Sequence[Replayed]) -> Table:
    """Return a line for each iteration and system."""
    made = outputs.table(
        "allreduce of the recorded gradients, sum: medians", ("model", "sent", "step", "system"),
        ("size MB", "density %", "time ms", "min", "max", "to gloo", "tx MB", "limit ms", "#wrong"),
        "MB: 1e6 bytes; tx: on the wire, a worker; to gloo: times as fast; limit: the least time for p4reduce",
    )  # fmt: skip
    for (training, iteration), some in groupby(rows, lambda one: (one.training.recorded, one.iteration)):
        made.add_section()
        for one in some:
            row = one.row
            system = f"{row.system} ({row.target})" if row.target else row.system
            times = (number(value, 1e3) for value in (row.median_s, row.min_s, row.max_s))
            made.add_row(
                training.model, training.sparsifier, str(iteration), system, number(4e-6 * row.numel),
                number(100 * row.density), *([report.failure(row)] if row.error else [
                    *times, number(one.to_gloo), number(row.tx_bytes, 1e-6), number(row.limit_s, 1e3),
                    report.wrong(row),
                ]),
            )  # fmt: skip
    return made


def write_json(
    path: Path,
    trainings: Sequence[Training],
    rows: Sequence[Replayed],
    settings: dict[str, Any],
    memory: Memory | None,
) -> None:
    """Write settings, trainings, gradients' measures and rows with `outputs.write_json`."""
    found = {
        "settings": settings,
        "trainings": [{**_whose(one), "workers": one.recorded.workers, "iterations": list(one.recorded.found),
                       "losses": one.losses} for one in trainings],
        "gradients": [
            {**_whose(one), "layers": group.name, "numel": group.numel, "block_size": size, **asdict(measures)}
            for one in trainings for group in one.groups for size, measures in group.by_size.items()
        ],
        "rows": [{**_whose(one.training), "iteration": one.iteration, "to_gloo": one.to_gloo, **asdict(one.row)}
                 for one in rows],
    }  # fmt: skip
    outputs.write_json(path, VERSION, found, report.rates(memory))


def _whose(training: Training) -> dict[str, str]:
    return {"model": training.recorded.model, "sparsifier": training.recorded.sparsifier}


def plot(path: Path, trainings: Sequence[Training], rows: Sequence[Replayed]) -> None:
    """Draw densities by model, and if gradients were replayed, each system's speed compared with Gloo's."""
    names = [str(one.recorded) for one in trainings]
    whole = [next(group for group in one.groups if group.name == ALL) for one in trainings]
    density = {f"blocks of {size}" if size > 1 else "elements": [group.by_size[size].density for group in whole]
               for size in (1, *BLOCK_SIZES)}  # fmt: skip
    size = (12.0 if rows else 7.0, 1.5 + 0.4 * len(names))
    with outputs.figure(path, 1, 2 if rows else 1, size, sharey=True) as (_, axes):
        _bars(axes[0, 0], names, density)
        axes[0, 0].set(xlabel="density", xscale="log")
        if rows:
            faster: dict[str, list[float]] = {}
            for system in dict.fromkeys(one.row.system for one in rows):
                last = {id(one.training): one.to_gloo or 0.0 for one in rows if one.row.system == system}
                faster[system] = [last.get(id(one), 0.0) for one in trainings]
            _bars(axes[0, 1], names, faster)
            axes[0, 1].set(xlabel="times as fast as Gloo, last iteration", xscale="log")
            axes[0, 1].axvline(1, color="black", linewidth=1)


def _bars(axis: Any, names: Sequence[str], series: dict[str, list[float]]) -> None:
    """Draw horizontal bars; those of a name are next to each other."""
    width = 0.8 / len(series)
    for index, (label, values) in enumerate(series.items()):
        axis.barh([at + index * width for at in range(len(names))], values, width, label=label)
    axis.set_yticks([at + 0.4 - width / 2 for at in range(len(names))], names)
    axis.legend(fontsize="small")
