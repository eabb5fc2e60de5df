# SPDX-License-Identifier: Apache-2.0
"""What gradients look like and how fast they are reduced: as tables, as JSON and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from p4reduce_bench import outputs
from p4reduce_bench.allreduce import report
from p4reduce_bench.allreduce.limit import Memory
from p4reduce_bench.gradients.layers import ALL, BLOCK_SIZES, Group
from p4reduce_bench.gradients.replay import Recorded

VERSION = 1


@dataclass(frozen=True)
class Training:
    """One training, or recordings that are replayed, which have no losses."""

    recorded: Recorded
    groups: list[Group]
    losses: list[float]
    """Of each step, the mean over the ranks."""


@dataclass(frozen=True)
class Replayed:
    """One system on the gradients of one iteration."""

    training: Training
    iteration: int
    row: report.Row
    to_gloo: float | None
    """How many times as fast as Gloo's dense allreduce of the same gradients. None: one of the two has no time."""


def replayed(training: Training, iteration: int, rows: Sequence[report.Row]) -> list[Replayed]:
    """Return the systems' rows of one iteration, beside Gloo's."""
    gloo = next((row.median_s for row in rows if row.system == "gloo"), None)
    return [Replayed(training, iteration, row, gloo / row.median_s if gloo and row.median_s else None) for row in rows]


def layers_table(trainings: Sequence[Training]) -> Table:
    """Return a line for each model, sparsifier and group of layers."""
    made = Table(
        title="gradients",
        caption="density: share that is not zero, by element and by block; overlap, densification and skew "
        "of elements, as Zen measures them (docs/pytorch.md)",
    )
    for name in ("model", "sent", "layers"):
        made.add_column(name, no_wrap=True)
    for name in ("elements", "density %", *(f"blocks of {size} %" for size in BLOCK_SIZES), "of sum %", "overlap",
                 "densification", "skew"):  # fmt: skip
        made.add_column(name, justify="right", no_wrap=True)
    for training in trainings:
        made.add_section()
        for group in training.groups:
            elements = group.by_size[1]
            made.add_row(
                training.recorded.model, training.recorded.sparsifier, escape(group.name), str(group.numel),
                *(_number(100 * group.by_size[size].density) for size in (1, *BLOCK_SIZES)),
                _number(100 * elements.union), _number(elements.overlap), _number(elements.densification),
                _number(elements.skew),
            )  # fmt: skip
    return made


def replay_table(rows: Sequence[Replayed]) -> Table:
    """Return a line for each iteration and system."""
    made = Table(
        title="allreduce of the recorded gradients, sum: medians",
        caption="MB: 1e6 bytes; tx: on the wire, a worker; to gloo: times as fast; limit: the least time for p4reduce",
    )
    for name in ("model", "sent", "step", "system"):
        made.add_column(name, no_wrap=True)
    for name in ("size MB", "density %", "time ms", "min", "max", "to gloo", "tx MB", "limit ms", "#wrong"):
        made.add_column(name, justify="right", no_wrap=True)
    previous = None
    for one in rows:
        row, recorded = one.row, one.training.recorded
        place = (recorded.model, recorded.sparsifier, one.iteration)
        if previous not in (None, place):
            made.add_section()
        previous = place
        system = f"{row.system} ({row.target})" if row.target else row.system
        cells = [recorded.model, recorded.sparsifier, str(one.iteration), system, _number(4e-6 * row.numel),
                 _number(100 * row.density)]  # fmt: skip
        if row.error is not None:
            made.add_row(*cells, f"[red]{escape(row.error.splitlines()[0][:60])}[/]")
            continue
        right = "0" if row.wrong == 0 else f"[red]{row.wrong}[/]"
        made.add_row(*cells, *(_number(value, 1e3) for value in (row.median_s, row.min_s, row.max_s)),
                     _number(one.to_gloo), _number(row.tx_bytes, 1e-6), _number(row.limit_s, 1e3), right)  # fmt: skip
    return made


def _number(value: float | None, factor: float = 1.0) -> str:
    return "-" if value is None else f"{value * factor:.3g}" if value * factor < 1000 else f"{value * factor:.0f}"


def write_json(
    path: Path,
    trainings: Sequence[Training],
    rows: Sequence[Replayed],
    settings: dict[str, Any],
    memory: Memory | None,
) -> None:
    """Settings, trainings, gradients' measures and rows, as of `outputs.write_json`."""
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
    """Densities by model, and, where something was replayed, each system's time to Gloo's."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = [str(one.recorded) for one in trainings]
    height = 1.5 + 0.4 * len(names)
    figure, axes = plt.subplots(1, 2 if rows else 1, figsize=(12 if rows else 7, height), squeeze=False, sharey=True,
                                layout="constrained")  # fmt: skip
    whole = [next(group for group in one.groups if group.name == ALL) for one in trainings]
    density = {f"blocks of {size}" if size > 1 else "elements": [group.by_size[size].density for group in whole]
               for size in (1, *BLOCK_SIZES)}  # fmt: skip
    _bars(axes[0, 0], names, density)
    axes[0, 0].set(xlabel="density", xscale="log")
    if rows:
        faster: dict[str, list[float]] = {}
        for system in dict.fromkeys(one.row.system for one in rows):
            of_system = [one for one in rows if one.row.system == system]
            last = {id(one.training): one.to_gloo or 0.0 for one in of_system}
            faster[system] = [last.get(id(one), 0.0) for one in trainings]
        _bars(axes[0, 1], names, faster)
        axes[0, 1].set(xlabel="times as fast as Gloo, last iteration", xscale="log")
        axes[0, 1].axvline(1, color="black", linewidth=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _bars(axis: Any, names: Sequence[str], series: dict[str, list[float]]) -> None:
    """Horizontal bars, those of a name side by side."""
    width = 0.8 / len(series)
    for number, (label, values) in enumerate(series.items()):
        axis.barh([place + number * width for place in range(len(names))], values, width, label=label)
    axis.set_yticks([place + 0.4 - width / 2 for place in range(len(names))], names)
    axis.legend(fontsize="small")
