# SPDX-License-Identifier: Apache-2.0
"""Loss curves: against seconds above, against bytes below, a column for each model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from p4reduce_bench.training.curves import Along, points, seconds, sent
from p4reduce_bench.training.report import Row, by_system


def plot(path: Path, rows: Sequence[Row]) -> None:
    """Losses on held-out samples: a thick line is the median over the seeds, a thin one a seed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    models = list(dict.fromkeys(one.model for one in rows))
    systems = list(dict.fromkeys(one.system for one in rows if one.held_out))
    size = (0.6 + 3.4 * len(models), 6.6)
    figure, axes = plt.subplots(2, len(models), figsize=size, squeeze=False, layout="constrained")
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
    handles = {label: handle for panel in axes[0] for handle, label in zip(*panel.get_legend_handles_labels())}  # noqa: B905
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=2 * len(models), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _draw(panel: Any, rows: Sequence[Row], along: Along, unit: float, colour: str, label: str) -> None:
    """From the first evaluation after a step on: an axis of logarithms has no zero."""
    curves = [points(row, along) for row in rows]
    for passed, losses in curves if len(curves) > 1 else []:
        panel.plot([value / unit for value in passed[1:]], losses[1:], color=colour, linewidth=0.6, alpha=0.4)
    middle = [[median(turn) for turn in zip(*some, strict=True)] for some in zip(*curves, strict=True)]
    panel.plot([value / unit for value in middle[0][1:]], middle[1][1:], color=colour, linewidth=1.8, label=label)
