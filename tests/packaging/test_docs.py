# SPDX-License-Identifier: Apache-2.0
"""Links between the project's documents lead somewhere, and tables of files name them all."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md")])
_LINK = re.compile(r"\]\(<?([^()\s>]+)>?(?:\s+\"[^\"]*\")?\)|(?:href|src|srcset)=\"([^\"]+)\"")


@cache
def text_of(path: Path) -> str:
    """Return a page's text without blocks of code."""
    return re.sub(r"^( *)(```+|~~~+).*?^\1\2", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


@cache
def anchors(path: Path) -> frozenset[str]:
    """Return the anchors of a page: those that GitHub makes of its headings, and those that it has as HTML."""
    found: dict[str, int] = {}
    made = set(re.findall(r"(?:id|name)=\"([^\"]+)\"", text_of(path)))
    for heading in re.findall(r"^#{1,6} +(.*?)[ #]*$", text_of(path), re.MULTILINE):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        count = found[slug] = found.get(slug, -1) + 1
        made.add(f"{slug}-{count}" if count else slug)
    return frozenset(made)


def links(path: Path) -> list[str]:
    """Return a page's links to files and anchors."""
    text = re.sub(r"(`+).+?\1", "", text_of(path))
    every = [one or other for one, other in _LINK.findall(text)]
    return [link for link in every if not re.match(r"[a-z]+:", link)]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    wrong = []
    for link in links(path):
        name, _, anchor = unquote(link).partition("#")
        there = (path.parent / name).resolve() if name else path
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in anchors(there)):
            wrong.append(link)
    assert not wrong


def test_documents_have_links() -> None:
    """Else nothing was looked at."""
    assert {"README.md", "protocol.md", "c-api.md"} <= {path.name for path in DOCUMENTS}
    assert sum(len(links(path)) for path in DOCUMENTS) > 100
    assert "over-several-switches" in anchors(ROOT / "docs" / "running.md")


@pytest.mark.parametrize(("document", "folder"), [("c-api.md", "hostlib/csrc"), ("native.md", "targets/csrc")])
def test_every_c_file_is_in_the_table(document: str, folder: str) -> None:
    """The table has each file by its name or by a pattern, and no other file."""
    rows = re.findall(r"^\| ([^|]*\.[ch]`[^|]*) \|", (ROOT / "docs" / document).read_text(), re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([\w*/]+\.c)`", row)]
    root = ROOT / folder
    others = {"bench", "examples", "fuzz", "tests"}  # programs of their own
    paths = [path.relative_to(root) for path in sorted([*root.glob("*.c"), *root.glob("*/*.c")])]
    files = [str(path) for path in paths if path.parts[0] not in others]
    assert [file for file in files if not any(fnmatch(file, name) for name in named)] == []
    assert [name for name in named if not any(fnmatch(file, name) for file in files)] == []
