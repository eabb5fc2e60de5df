# SPDX-License-Identifier: Apache-2.0
"""Messages that docs/troubleshooting.md quotes are in the code."""

from __future__ import annotations

import ast
import errno
import os
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "troubleshooting.md"
SOURCES = [
    ROOT / name
    for name in ("hostlib/p4reduce", "controller", "targets", "simulator", "bench/p4reduce_bench", "bmv2_topos")
]
OTHERS = ("CMakeLists.txt", "pyproject.toml")
# The code may put a message together from parts. These meet at placeholders, and between sentences.
ERROR = r"[A-Z]\w+(?:Error|Aborted|Exhausted|Timeout|Dtype)"
EXAMPLE = rf"\b(?:leaf1|spine|olga|allreduce|{ERROR}|[\d.:-]+)(?!\w)"
JOINT = re.compile(rf"\.\.\.|[:;,()`]|{EXAMPLE}|\bs\b|\bcannot\b")
NOT_OURS = {"No backend of type 0 found for Process Group"}
KERNEL = {os.strerror(number) for number in errno.errorcode}


@cache
def said() -> str:
    """Return all texts of the code, with a newline in place of each value that is put in."""
    texts: set[str] = set()
    for folder in SOURCES:
        for path in folder.rglob("*.py"):
            tree = ast.parse(path.read_text())
            notes = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in notes:
                    texts |= set(re.split(r"%[-\d.]*[a-z]", node.value))
        for path in [
            *folder.rglob("*.c"),
            *folder.parent.glob("csrc/*.c"),
            *folder.parent.glob("csrc/*/*.c"),
            *folder.rglob("*.js"),
        ]:
            joined = re.sub(r'"\s*\n\s*"', "", path.read_text())
            texts |= set(re.split(r"%[-\d.]*[a-z]+", "\n".join(re.findall(r'"([^"\n]*)"', joined))))
    texts |= {(ROOT / name).read_text() for name in OTHERS}
    return "\n".join(sorted(texts))


def messages() -> list[str]:
    """Return the texts in backquotes in the first column of the page's tables."""
    rows = re.findall(r"^\| (.*?) \| .*? \| .*? \|$", PAGE.read_text(), re.MULTILINE)
    return [message for row in rows for message in re.findall(r"`([^`]+)`", row) if message != "p4reduce status"]


def unsaid(message: str) -> list[str]:
    """Return the parts of a message that are in no text of the code."""
    parts = [part.strip() for part in JOINT.split(message)]
    return [part for part in parts if part and part not in KERNEL and part not in said()]


@pytest.mark.parametrize("message", messages())
def test_a_message_in_the_table_exists(message: str) -> None:
    assert message in NOT_OURS or unsaid(message) == []


def test_one_that_does_not_exist_is_found() -> None:
    assert len(messages()) > 40
    assert unsaid("JoinError: ... nobody listens") == ["nobody listens"]
    assert unsaid("CollectiveTimeout: ... the moon is in the way") == ["the moon is in the way"]
