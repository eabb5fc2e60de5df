# SPDX-License-Identifier: Apache-2.0
"""The page of decisions: those that docs/architecture.md lists, each with a heading to link to."""

from __future__ import annotations

import re
import textwrap

from website.repository import ROOT

_DECISION = re.compile(r"^- \*\*(.+?)\*\* (.*?)(?=^- \*\*|^#|\Z)", re.MULTILINE | re.DOTALL)


def page() -> str:
    _, _, section = (ROOT / "docs" / "architecture.md").read_text().partition("\n## Decisions\n")
    section = re.split(r"^## ", section, maxsplit=1, flags=re.MULTILINE)[0]
    found = _DECISION.findall(section)
    if not found:
        raise ValueError("docs/architecture.md has no section Decisions with items that begin with **What.**")
    parts = [
        f"## {number}. {what.rstrip('.').replace(chr(10), ' ')}\n\n{textwrap.dedent(' ' * 2 + why).strip()}\n"
        for number, (what, why) in enumerate(found, 1)
    ]
    head = "# Decisions\n\nWhat was decided, and why, as [architecture.md](architecture.md#decisions) has it.\n"
    return "\n".join([head, *parts])
