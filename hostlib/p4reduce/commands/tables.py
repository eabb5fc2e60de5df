# SPDX-License-Identifier: Apache-2.0
"""Tables for people."""

from __future__ import annotations

from rich.console import Console, RenderableType

_UNBOUNDED = 100_000  # columns


def show(table: RenderableType, console: Console) -> None:
    """Print it as wide as it is, whatever the console's width.

    Lines that a narrow terminal breaks can still be read, and found by `grep`; cells that are folded or cut cannot.
    """
    wide = console.measure(table, options=console.options.update(width=_UNBOUNDED)).maximum
    before = console.width
    console.width = max(wide, before)
    try:
        console.print(table)
    finally:
        console.width = before
