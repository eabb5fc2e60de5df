# SPDX-License-Identifier: Apache-2.0
"""How many times as fast as Gloo: over density, a line for each number of workers."""

from __future__ import annotations

import json
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from p4reduce.errors import P4ReduceError
from p4reduce_bench.allreduce.grid import DTYPES
from p4reduce_bench.allreduce.report import VERSION, Row
from website.pictures.drawing import BLUE, FAINT, GREEN, INK, ORANGE, style, svg

TITLE = "Allreduce: p4reduce's speed-up over Gloo, by density and workers"

_LOOKS = ((BLUE, "o"), (GREEN, "s"), (ORANGE, "^"))
_OVERLAPS = {
    "all": "the same at all workers",
    "random": "others at each worker",
    "none": "as few as possible in common",
}
_LEVELS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

SpeedUps = dict[int, list[tuple[float, float]]]


def read(path: Path) -> list[Row]:
    """Return the rows of a file that `p4reduce bench allreduce --json` wrote. Raises P4ReduceError, OSError."""
    try:
        stored = json.loads(path.read_text())
        if stored["version"] != VERSION:
            raise P4ReduceError(f"{path}: version {stored['version']}: accepted is {VERSION}")
        return [Row(**row) for row in stored["rows"]]
    except (ValueError, KeyError, TypeError) as error:
        raise P4ReduceError(f"{path}: is not what `p4reduce bench allreduce --json` writes: {error}") from None


def speed_ups(rows: list[Row]) -> SpeedUps:
    """For each number of workers, (density, Gloo's median time / p4reduce's), the densest first; few workers first.

    Raises P4ReduceError where a time is missing or a sum was wrong, or where rows differ in more than these two.
    """
    kinds = {(row.numel, row.dtype, row.link_gbps, row.sparsity, row.overlap) for row in rows}
    if len(kinds) != 1:
        raise P4ReduceError(f"figures of {len(kinds)} sizes, dtypes, links, sparsities or overlaps: accepted is one")
    times: dict[tuple[str, int, float], float] = {}
    for row in rows:
        if row.median_s is None or row.wrong:
            raise P4ReduceError(
                f"{row.system}, {row.workers} workers, density {row.density:g}: {row.error or f'{row.wrong} wrong'}"
            )
        times[row.system, row.workers, row.density] = row.median_s
    made: SpeedUps = {}
    for (system, workers, density), ours in sorted(times.items(), key=lambda item: (item[0][1], -item[0][2])):
        if system == "p4reduce":
            theirs = times.get(("gloo", workers, density))
            if theirs is None:
                raise P4ReduceError(f"no time of gloo for {workers} workers, density {density:g}")
            made.setdefault(workers, []).append((density, theirs / ours))
    return made


def draw(path: Path) -> str:
    """Return the picture of the figures in `path`, as SVG. Raises P4ReduceError, OSError."""
    rows = read(path)
    lines = speed_ups(rows)
    densities = sorted({density for points in lines.values() for density, _ in points})
    most = max(factor for points in lines.values() for _, factor in points)
    with style():
        figure = Figure(figsize=(6.4, 6.0), layout=ConstrainedLayoutEngine(h_pad=0.12, w_pad=0.12))
        axes = figure.add_subplot(xscale="log", yscale="log")
        axes.set_title("times as fast as Gloo", loc="left", fontsize=18, fontweight="bold", pad=14)
        for (workers, points), (colour, marker) in zip(lines.items(), _LOOKS, strict=False):
            axes.plot(*zip(*points, strict=True), color=colour, marker=marker, markersize=8, linewidth=2.5,
                      label=f"{workers} workers")  # fmt: skip
        axes.legend(loc="upper left", frameon=False)
        axes.axhline(1, color=INK, linewidth=1)
        axes.set_xlim(densities[-1] * 1.15, densities[0] / 1.15)  # the sparsest to the right
        axes.xaxis.set(major_locator=FixedLocator(densities), minor_locator=NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
        levels = [level for level in _LEVELS if level < most * 1.5]
        axes.yaxis.set(major_locator=FixedLocator(levels), minor_locator=NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}×"))
        axes.grid(color=FAINT)
        axes.spines[["top", "right"]].set_visible(False)
        one = rows[0]
        axes.set_xlabel(f"blocks that are not zero,\n{_OVERLAPS[one.overlap]}")
        size = one.numel * DTYPES[one.dtype] / 2**20
        link = f", links of {one.link_gbps * 1e3:g} Mbit/s" if one.link_gbps else ""
        figure.supxlabel(f"{size:g} MiB of {one.dtype}{link}", fontsize=13, x=0.02, ha="left")
    return svg(figure, title=TITLE, data=path.read_text())
