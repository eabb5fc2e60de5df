# SPDX-License-Identifier: Apache-2.0
"""The page of decisions: those that docs/architecture.md lists, each with a heading to link to."""

from __future__ import annotations

import re
import textwrap

from website.repository import ROOT

_DECISION = re.compile(r"^- \*\*(.+?)\*\*(.*?)(?=^- |\Z)", re.MULTILINE | re.DOTALL)


def page() -> str:
    _, _, section = (ROOT / "docs" / "architecture.md").read_text().partition("\n## Decisions\n")
    section = re.split(r"^## ", section, maxsplit=1, flags=re.MULTILINE)[0]
    found = _DECISION.findall(section)
    if not found:
        raise ValueError("docs/architecture.md has no section Decisions with items that begin with **What.**")
    parts = [f"## {_head(what)}\n\n{_why(what, why)}\n" for what, why in found]
    head = "# Decisions\n\nWhat was decided, and why, as [architecture.md](architecture.md#decisions) has it.\n"
    return "\n".join([head, *parts])


def _head(what: str) -> str:
    return " ".join(what.rstrip(".").split())


def _why(what: str, why: str) -> str:
    """The rest of the item; all of it where the first sentence goes on behind what is bold."""
    return textwrap.dedent("  " + (why if what.endswith(".") else what + why).lstrip()).strip()
