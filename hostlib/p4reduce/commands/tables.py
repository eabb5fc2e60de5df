# SPDX-License-Identifier: Apache-2.0
"""Tables on the terminal."""

from __future__ import annotations

from rich.console import Console, RenderableType

_UNBOUNDED = 100_000  # columns


def show(table: RenderableType, console: Console) -> None:
    """Print the table in its full width, however narrow the console is.

    Lines that a narrow terminal breaks can still be read, and found by `grep`; folded or cut cells cannot.
    """
    wide = console.measure(table, options=console.options.update(width=_UNBOUNDED)).maximum
    before = console.width
    console.width = max(wide, before)
    try:
        console.print(table)
    finally:
        console.width = before
