# SPDX-License-Identifier: Apache-2.0
"""How the files of the package hang together."""

from __future__ import annotations

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import p4reduce_controller

PACKAGE = "p4reduce_controller"


def test_no_file_imports_itself_by_way_of_others() -> None:
    graph = {}
    for file in Path(p4reduce_controller.__file__).parent.glob("*.py"):
        nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.ImportFrom)]
        graph[file.stem] = {(node.module or "").removeprefix(f"{PACKAGE}.") for node in nodes} - {"__future__"}
    graph = {name: imported & graph.keys() for name, imported in graph.items()}
    assert graph["service"] >= {"jobs", "supervisor"}
    assert list(TopologicalSorter(graph).static_order())  # raises CycleError, which names the files
