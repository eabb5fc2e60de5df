# SPDX-License-Identifier: Apache-2.0
"""The reference page of the C library: its public headers, with a heading and the comment for each declaration."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from website.repository import ROOT

INCLUDE = "hostlib/csrc/include"
HEADERS = ("p4reduce.h", "p4reduce_local.h", "p4reduce_worker.h", "p4reduce_numbers.h", "p4reduce_indices.h")

_NAMES = re.compile(
    r"\*?\b(\w+)\((?=[^()]*\)\s*;|[^()]*\([^()]*\)[^()]*\)\s*;)"  # a function
    r"|^\} (\w+);|^typedef \w+ \w+ (\w+);"  # a type
    r"|^#define (\w+)",
    re.MULTILINE,
)


def page() -> str:
    parts = [
        "# C\n",
        f"These are the public headers, in `{INCLUDE}/`. [The C fast path](../c-api.md#in-c) contains an example, and"
        " shows how to build with them.\n",
    ]
    for header in HEADERS:
        text = (ROOT / INCLUDE / header).read_text()
        parts.append(f"## {header}\n")
        parts += [_part(chunk) for chunk in chunks(text)]
    return "\n".join(parts)


def headers() -> list[str]:
    return sorted(path.name for path in Path(ROOT / INCLUDE).glob("*.h"))


def chunks(text: str) -> Iterator[str]:
    """Yield the parts of a header between empty lines, without include guards and other lines for the compiler.

    A comment that stands alone is a part, too.
    """
    text = re.sub(r"^#ifdef __cplusplus\n.*?^#endif\n", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(//|/\*) SPDX.*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"^#(ifndef|include|endif|define P4REDUCE_(\w+_)?H$).*\n?", "", text, flags=re.MULTILINE)
    for chunk in re.split(r"\n{2,}", text):
        if chunk.strip():
            yield chunk.strip("\n")


def names(code: str) -> list[str]:
    """Return the names of the functions, types and constants that `code` declares."""
    return [next(filter(None, found)) for found in _NAMES.findall(re.sub(r"/\*.*?\*/", "", code, flags=re.DOTALL))]


def _part(chunk: str) -> str:
    comment, code = "", chunk
    if chunk.startswith("/*"):
        comment, _, code = chunk.partition("*/")
        lines = [re.sub(r"^ ?\*? ?", "", line) for line in comment.removeprefix("/*").strip().splitlines()]
        comment = "\n".join(lines) + "\n"
    heads = names(code)
    title = f"### {', '.join(heads)}\n\n" if heads else ""
    block = f"\n```c\n{code.strip()}\n```\n" if code.strip() else ""
    return f"{title}{comment}{block}"
