# SPDX-License-Identifier: Apache-2.0
"""Files that commands write when all is measured: whether they can is known before."""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

from p4reduce.errors import P4ReduceError


def check(*, json_file: Path | None = None, plot: Path | None = None) -> None:
    """Make their folders. Raises P4ReduceError for a file that cannot be written, or a plot of a kind that there is
    not."""
    for option, path in (("--json", json_file), ("--plot", plot)):
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
    """Where it is measured, and how busy that is."""
    return {"cpus": os.cpu_count(), "system": platform.platform(), "load": os.getloadavg()[2]}


def write_json(path: Path, version: int, found: dict[str, Any], rates: dict[str, float | None] | None = None) -> None:
    """One object: the version of what is found, the command, the machine, with `rates` of it, and what was found."""
    made = {"version": version, "command": sys.argv[1:], "machine": {**machine(), **(rates or {})}, **found}
    path.write_text(json.dumps(made, indent=1) + "\n")
