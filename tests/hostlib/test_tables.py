# SPDX-License-Identifier: Apache-2.0
"""Tables that are wider than the terminal are printed whole, and no command prints one otherwise."""

from __future__ import annotations

import ast
import io
from pathlib import Path

import pytest
from rich.console import Console, Group
from rich.table import Table

from p4reduce.commands.tables import show

ROOT = Path(__file__).parents[2]
SOURCES = [
    path
    for folder in ("hostlib/p4reduce", "controller/p4reduce_controller", "bench/p4reduce_bench",
                   "bmv2_topos/p4reduce_topos", "targets/p4reduce_targets")
    for path in sorted((ROOT / folder).rglob("*.py"))
]  # fmt: skip


LONG = "words that go on for longer than all of the terminal is wide"


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("width", [40, 120, 400])
def test_no_cell_is_folded_or_cut(width: int, terminal: bool) -> None:
    table = Table(*(f"a column of figures {number}" for number in range(12)), title="twelve")
    table.add_column("what it is")
    table.add_row(*(f"{number:,}" for number in range(12)), LONG)
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=terminal, color_system=None)
    show(Group("a line above", table), console)
    lines = [line for line in out.getvalue().splitlines() if "words that go on" in line or "figures" in line]
    assert [line.count("│") + line.count("┃") for line in lines] == [14, 14]
    assert LONG in lines[1]
    assert console.width == width


def printed(source: str) -> list[str]:
    """Return the arguments of console.print that are not literal text: names, and calls of functions."""
    if "console.print" not in source:
        return []
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and node.args]
    return [
        ast.unparse(node.args[0])
        for node in calls
        if isinstance(node.args[0], ast.Name | ast.Call) and ast.unparse(node.func).endswith("console.print")
    ]


def test_every_command_prints_its_tables_so() -> None:
    """Names are of texts. `doctor` alone folds: its table is sentences, for which it is as wide as a page."""
    found = {(path.relative_to(ROOT).as_posix(), what) for path in SOURCES for what in printed(path.read_text())}
    tables = {one for one in found if one[1] not in ("line", "said", "stopped")}
    alone = {"controller/p4reduce_controller/doctor/cli.py", "hostlib/p4reduce/commands/tables.py"}
    assert tables == {(path, "table") for path in alone}
