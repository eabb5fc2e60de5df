# SPDX-License-Identifier: Apache-2.0
"""Draw the README's pictures again: docs/figures/ in, docs/pictures/ out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from p4reduce_bench.processes.termination import command
from website.pictures import round, speed_up


def draw_all(docs: Path) -> dict[Path, str]:
    """Return the text of each picture, by where it belongs. Raises P4ReduceError, OSError."""
    pictures = docs / "pictures"
    return {
        pictures / "round.svg": round.draw(),
        pictures / "speed-up.svg": speed_up.draw(docs / "figures" / "allreduce-50mbit.json"),
    }


def main(
    docs: Annotated[Path, typer.Argument(help="The folder with figures/, in which pictures/ is written.")] = Path(
        "docs"
    ),
) -> None:
    """Draw the README's pictures from the stored figures."""
    console = Console()
    with command():
        for path, text in draw_all(docs).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            console.print(f"{path}: {len(text.encode()) / 1000:.0f} kB")


if __name__ == "__main__":
    typer.run(main)
