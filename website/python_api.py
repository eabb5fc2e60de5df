# SPDX-License-Identifier: Apache-2.0
"""The page of the Python packages: what each exports, from its docstrings. mkdocstrings makes the rest."""

from __future__ import annotations

import ast
import re
from typing import Any

import griffe

from website.repository import ROOT

PACKAGES = {
    "p4reduce": "hostlib/p4reduce/__init__.py",
    "p4reduce.ddp": "hostlib/p4reduce/ddp/__init__.py",
    "p4reduce.distributed": "hostlib/p4reduce/distributed/__init__.py",
    "p4reduce_topos": "bmv2_topos/p4reduce_topos/__init__.py",
}
FOREIGN = {"bf16_wrapper", "fp16_wrapper", "noop_hook"}  # PyTorch's own

_PARAMETER = re.compile(r"^(?:[a-z_]+(?:, )?)+: |^Raises |^Returns ")


def page() -> str:
    parts = ["# Python\n", "What the packages export. All else is not for use from outside.\n"]
    for package, path in PACKAGES.items():
        parts.append(f"## {package}\n")
        parts.append((ast.get_docstring(ast.parse((ROOT / path).read_text())) or "").partition("\n\n")[0] + "\n")
        names = exported(path)
        if foreign := [f"`{name}`" for name in names if name in FOREIGN]:
            parts.append(f"{', '.join(foreign)}: PyTorch's own.\n")
        parts += [f"::: {package}.{name}\n" for name in names if name not in FOREIGN | {"__version__"}]
    return "\n".join(parts)


def exported(path: str) -> list[str]:
    """`__all__` of the module."""
    for statement in ast.parse((ROOT / path).read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(statement.value)
            return names
    raise ValueError(f"{path} has no __all__")


class Docstrings(griffe.Extension):
    """Our docstrings as Markdown: a line that begins with `name: `, and those indented below it, is an item."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    lines: list[str] = []
    for line in text.splitlines():
        if _PARAMETER.match(line):
            name, _, rest = line.partition(": ") if not line.startswith(("Raises", "Returns")) else ("", "", line)
            if not lines or not lines[-1].startswith(("- ", "    ")):
                lines.append("")
            marked = ", ".join(f"`{one}`" for one in name.split(", "))
            lines.append(f"- {marked}: {rest}" if name else f"\n{rest}")
        else:
            lines.append(line)
    return "\n".join(lines)
