# SPDX-License-Identifier: Apache-2.0
"""The outputs of all commands: progress bars, tables, JSON files and plots."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from p4reduce.errors import P4ReduceError


def check(*, json_file: Path | None = None, plot: Path | None = None, pcap: Path | None = None) -> None:
    """Make the folders of files that are written at the end.

    Raises P4ReduceError for a file that cannot be written, and for a plot of an unknown kind.
    """
    for option, path in (("--json", json_file), ("--plot", plot), ("--pcap", pcap)):
        if path is None:
            continue
        there = path.exists()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.open("ab").close()
            if not there:
                path.unlink()
        except OSError as error:
            raise P4ReduceError(f"{option} {path}: nothing can be written there: {error.strerror}") from None
    if plot is not None and plot.suffix:
        from matplotlib.figure import Figure

        kinds = sorted(Figure().canvas.get_supported_filetypes())
        if plot.suffix[1:].lower() not in kinds:
            raise P4ReduceError(f"--plot {plot}: accepted are files that end in .{', .'.join(kinds)}")


def machine() -> dict[str, float | str | None]:
    """Return the machine's number of processors, its system, and its load."""
    return {"cpus": os.cpu_count(), "system": platform.platform(), "load": os.getloadavg()[2]}


def write_json(path: Path, version: int, found: dict[str, Any], rates: dict[str, float | None] | None = None) -> None:
    """Write one object: the version of `found`, the command, the machine with its `rates`, and `found`."""
    made = {"version": version, "command": sys.argv[1:], "machine": {**machine(), **(rates or {})}, **found}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made, indent=1) + "\n")


def progress(console: Console, *, transient: bool = False) -> Progress:
    """Return a progress bar that shows a description, how many units are done, and the elapsed time."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=transient, disable=transient and not console.is_terminal)


def number(value: float | None, factor: float = 1.0) -> str:
    """Return a value times `factor` with three digits, "-" for None."""
    return "-" if value is None else f"{value * factor:.3g}" if value * factor < 100 else f"{value * factor:.0f}"


def table(title: str, texts: Sequence[str], numbers: Sequence[str], caption: str | None = None) -> Table:
    """Return a table without rows: columns of texts, then columns of numbers, which are on the right."""
    made = Table(title=title, caption=caption)
    for name in texts:
        made.add_column(name, overflow="fold")
    for name in numbers:
        made.add_column(name, justify="right", no_wrap=True)
    return made


@contextmanager
def figure(path: Path, rows: int, columns: int, size: tuple[float, float], **options: Any) -> Iterator[tuple[Any, Any]]:
    """Yield a matplotlib figure and its axes, shape (rows, columns), and write it to `path` afterwards."""
    from matplotlib.figure import Figure

    made = Figure(figsize=size, layout="constrained")
    yield made, made.subplots(rows, columns, squeeze=False, **options)
    path.parent.mkdir(parents=True, exist_ok=True)
    made.savefig(path, dpi=150)


def legend(made: Any, columns: int) -> None:
    """Draw one legend for all axes of a figure, below them."""
    pairs = [pair for axis in made.axes for pair in zip(*axis.get_legend_handles_labels(), strict=True)]
    labels = {label: handle for handle, label in pairs}
    made.legend(labels.values(), labels.keys(), loc="outside lower center", ncols=columns, frameon=False)
