# SPDX-License-Identifier: Apache-2.0
"""The documents and the code follow the rules in words.toml."""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.support.document_blocks import PAGES, ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RULES = tomllib.loads((ROOT / "tests/docs/words.toml").read_text())
OPENING = re.compile(rf"(?:{'|'.join(RULES['openings'])})\b")
FOLDERS = (
    "bench",
    "bmv2_topos",
    "controller",
    "examples",
    "hostlib",
    "p4src",
    "simulator",
    "targets",
    "tests",
    "website",
)
GENERATED = re.compile(r"/(?:generated|compiled|build)/|_pb2(?:_grpc)?\.py$")
MARKDOWN = MarkdownIt("commonmark").enable("table")
_C_TOKEN = re.compile(r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|[A-Za-z_]\w*", re.DOTALL)


def as_words(inline: Token) -> str:
    """Return the text of a paragraph, list item or table cell, with each piece of inline code as one word."""
    kinds = {"softbreak": " ", "hardbreak": " ", "code_inline": "code"}
    return "".join(part.content if part.type == "text" else kinds.get(part.type, "") for part in inline.children or [])


def paragraphs(page: str) -> Iterator[tuple[int, str]]:
    """Yield the first line and the text of each paragraph, list item and table cell of a page."""
    for token in MARKDOWN.parse((ROOT / page).read_text()):
        if token.type == "inline":
            yield (token.map or [0])[0] + 1, as_words(token)


def sentences(text: str) -> list[str]:
    return re.split(r"(?<=[.!?])[\")”*]*\s+", re.sub(r"\b(e\.g|i\.e|vs|cf)\.", r"\1", text))


def too_long(text: str) -> list[str]:
    without_tables = re.sub(r"(?m)^\|.*\|$", "", text)
    return [one for one in sentences(without_tables) if len(one.split()) > RULES["longest_sentence"]]


def of_python(source: str) -> tuple[list[str], Counter[str]]:
    """Return docstrings and comments, and how often each identifier occurs. Comment lines in a row are one comment."""
    tree = ast.parse(source)
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    texts = [text for node in ast.walk(tree) if isinstance(node, holders) and (text := ast.get_docstring(node))]
    names: Counter[str] = Counter()
    lines: list[str] = []
    last = (0, 0)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NAME:
            names[token.string] += 1
        if token.type == tokenize.COMMENT:
            if lines and (token.start[0] - 1, token.start[1]) == last:
                lines[-1] += " " + token.string.lstrip("# ")
            else:
                lines.append(token.string.lstrip("# "))
            last = token.start
    return texts + lines, names


def of_c(source: str) -> tuple[list[str], Counter[str]]:
    """Return the comments of C or P4, and how often each identifier occurs. Comment lines in a row are one comment."""
    texts: list[str] = []
    names: Counter[str] = Counter()
    end: int | None = None
    for found in _C_TOKEN.finditer(source):
        text = found[0]
        if text.startswith(("//", "/*")):
            text = re.sub(r"\s*\n\s*\*?\s*", " ", text.strip("/* \n"))
            is_line = found[0].startswith("//")
            if is_line and end is not None and re.fullmatch(r"\n[ \t]*", source[end : found.start()]):
                texts[-1] += " " + text
            else:
                texts.append(text)
            end = found.end() if is_line else None
        elif text[0] not in "\"'":
            names[text] += 1
    return texts, names


def sources() -> Iterator[Path]:
    """Yield the Python, C and P4 files that people write."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in {".py", ".c", ".h", ".p4"} and not GENERATED.search(str(path)):
                yield path


@cache
def faults() -> dict[str, list[str]]:
    """Return where the code breaks each rule: openings, long sentences, and identifiers of the list."""
    found: dict[str, list[str]] = {"openings": [], "long_sentences": [], "identifiers": []}
    for path in sources():
        texts, names = (of_python if path.suffix == ".py" else of_c)(path.read_text())
        name = path.relative_to(ROOT)
        found["openings"] += [f"{name}: {text[:80]!r}" for text in texts if OPENING.match(text)]
        found["long_sentences"] += [f"{name}: {sentence}" for text in texts for sentence in too_long(text)]
        found["identifiers"] += [
            f"{name}: {one}; write: {RULES['identifiers'][one]}" for one in names.keys() & RULES["identifiers"].keys()
        ]
    return found


@pytest.mark.parametrize("page", PAGES)
def test_no_sentence_of_a_page_is_too_long(page: str) -> None:
    found = [f"{page}:{line}: {sentence}" for line, text in paragraphs(page) for sentence in too_long(text)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("page", PAGES)
def test_pages_have_the_fields_words(page: str) -> None:
    found = [
        f"{page}:{line}: {phrase!r}; write: {instead}"
        for line, text in paragraphs(page)
        for phrase, instead in RULES["phrases"].items()
        if re.search(rf"\b{phrase}\b", text, re.IGNORECASE)
    ]
    assert not found, "\n".join(found)


def test_terms_have_a_line_in_the_glossary() -> None:
    terms = set(re.findall(r"^\| \*\*(.+?)\*\*", (ROOT / "docs/glossary.md").read_text(), re.MULTILINE))
    assert not set(RULES["glossary"]["terms"]) - terms


@pytest.mark.parametrize("rule", ["openings", "long_sentences", "identifiers"])
def test_the_code_follows_the_rules(rule: str) -> None:
    assert not faults()[rule], "\n".join(faults()[rule])


def test_the_readers_of_sources_see_what_a_reader_sees() -> None:
    texts, names = of_python(
        '"""Of it."""\n# As one\n# sentence.\nx = 1  # Where\ndef Door() -> "Door":\n    """A."""\n'
    )
    assert texts == ["Of it.", "A.", "As one sentence.", "Where"]
    assert names["Door"] == 1
    texts, names = of_c('/* Of\n * it. */\n// As one\n// sentence.\nint Door = f("Door // no"); // Where\n')
    assert texts == ["Of it.", "As one sentence.", "Where"]
    assert names["Door"] == 1
    assert too_long(" ".join(["word"] * 41))
    assert not too_long(" ".join(["word"] * 40) + ". More.")
    assert not too_long("A table:\n\n" + "| two words | here |\n" * 20)
