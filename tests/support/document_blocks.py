# SPDX-License-Identifier: Apache-2.0
"""The blocks of code in the project's documents."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in (*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "bench").glob("*.md"))
)
_BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of code in a document.

    line: the number of its opening fence, from 1.
    language: the language after the fence; "" if there is none.
    """

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@cache
def blocks(page: str) -> list[Block]:
    text = (ROOT / page).read_text()
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found[2], textwrap.dedent(found[3]))
        for found in _BLOCK.finditer(text)
    ]


def every(*languages: str) -> list[Block]:
    return [block for page in PAGES for block in blocks(page) if block.language in languages]


def only(page: str, containing: str) -> Block:
    """Return the only block of the page that contains a text. Raises AssertionError if there is not exactly one."""
    found = [block for block in blocks(page) if containing in block.text]
    assert len(found) == 1, f"{page} has {len(found)} blocks with {containing!r}: {', '.join(map(str, found))}"
    return found[0]


def commands(block: Block) -> list[str]:
    """Return the commands of a shell block, each on one line, without comments."""
    joined = re.sub(r"\\\n\s*", "", block.text)
    lines = (re.sub(r"(^|\s)#.*$", "", line).strip() for line in joined.splitlines())
    return [line for line in lines if line]
