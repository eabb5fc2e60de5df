# SPDX-License-Identifier: Apache-2.0
"""The reference page of the Python packages: the names that each exports. mkdocstrings fills in their docstrings."""

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
    "p4reduce_simulator": "simulator/p4reduce_simulator/__init__.py",
    "p4reduce_topos": "bmv2_topos/p4reduce_topos/__init__.py",
}
FOREIGN = {"bf16_wrapper", "fp16_wrapper", "noop_hook"}  # PyTorch's own

_PARAMETER = re.compile(r"([a-z_]+(?:, [a-z_]+)*):(?= |$)")


def page() -> str:
    parts = ["# Python\n", "These are the names that the packages export. Everything else is private.\n"]
    for package, path in PACKAGES.items():
        parts.append(f"## {package}\n")
        parts.append((ast.get_docstring(ast.parse((ROOT / path).read_text())) or "").partition("\n\n")[0] + "\n")
        names = exported(path)
        if foreign := [f"`{name}`" for name in names if name in FOREIGN]:
            parts.append(f"{', '.join(foreign)}: reexported from PyTorch.\n")
        parts += [f"::: {package}.{name}\n" for name in names if name not in FOREIGN | {"__version__"}]
    return "\n".join(parts)


def exported(path: str) -> list[str]:
    """Return `__all__` of the module at `path`, without importing it."""
    for statement in ast.parse((ROOT / path).read_text()).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(statement.value)
            return names
    raise ValueError(f"{path} has no __all__")


class Docstrings(griffe.Extension):
    """A griffe extension that turns docstrings into Markdown.

    A line that begins with `name: ` becomes an item of a list, together with the lines indented below it.
    """

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    lines: list[str] = []
    listing = False
    for line in text.splitlines():
        parameter = _PARAMETER.match(line)
        if listing != bool(parameter) and not line.startswith(" "):
            listing = not listing
            lines.append("")
        if parameter:
            names = ", ".join(f"`{name}`" for name in parameter[1].split(", "))
            lines.append(f"- {names}:{line[parameter.end() :]}")
        else:
            lines += ["", line] if line.startswith(("Raises ", "Returns ")) else [line]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))
