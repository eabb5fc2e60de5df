# SPDX-License-Identifier: Apache-2.0
"""Links from pages to other files of the repository, and the pages that show these files."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCES = "sources"  # the folder of the site with pages of source files

_FENCE = re.compile(r"^ *(```+|~~~+)")
_LINK = re.compile(r"(\]\(<?)([^()\s>#]+)((?:#[^()\s>]*)?>?(?:\s+\"[^\"]*\")?\))")
_LANGUAGES = {".h": "c", ".c": "c", ".py": "python", ".toml": "toml", ".json": "json", ".proto": "protobuf"}
_LANGUAGES |= {".sh": "sh", ".yml": "yaml", ".yaml": "yaml", ".md": "markdown", ".p4": "c"}


class Links:
    """Links of pages to files of the repository.

    documents: the page of each file that has one of its own, such as README.md.
    """

    def __init__(self, documents: Mapping[str, str]) -> None:
        self._documents = documents

    def sources(self, text: str, place: str) -> set[str]:
        """Return the files and folders that `text` links to and that need a generated page.

        place: the path of the file that contains the text.
        """
        paths = {_target(place, link) for line in _prose(text) for _, link, _ in _LINK.findall(line)}
        return {path for path in paths if path and self._is_source(path)}

    def rewritten(self, text: str, place: str, page: str) -> str:
        """Return `text`, in which links to files lead to their pages.

        place: the path of the file that contains the text.
        page: the path of its page in the site.
        """
        folder = posixpath.dirname(page) or "."

        def led(found: re.Match[str]) -> str:
            path = _target(place, found[2])
            to = self._page_of(path) if path else None
            return found[0] if to is None else f"{found[1]}{posixpath.relpath(to, folder)}{found[3]}"

        return "".join(line if code else _LINK.sub(led, line) for line, code in _lines(text))

    def _is_source(self, path: str) -> bool:
        return path not in self._documents and not path.startswith("docs/") and (ROOT / path).exists()

    def _page_of(self, path: str) -> str | None:
        if path in self._documents:
            return self._documents[path]
        if path.startswith("docs/"):
            return path.removeprefix("docs/")
        return f"{SOURCES}/{path}.md" if self._is_source(path) else None


def source_page(path: str) -> dict[str, str]:
    """Return the generated pages of a file or folder, by their path in the site.

    A folder gets a page that lists its files, and a page for each of them.
    """
    there = ROOT / path
    if there.is_dir():
        files = sorted(f"{path}/{file.name}" for file in there.iterdir() if file.is_file())
        rows = "\n".join(f"- [{posixpath.basename(file)}]({posixpath.basename(path)}/{_name(file)})" for file in files)
        pages = {f"{SOURCES}/{path}.md": f"# {path}\n\n{rows}\n"}
        for file in files:
            pages |= source_page(file)
        return pages
    fence = "````````"
    text = there.read_text()
    code = f"{fence}{_LANGUAGES.get(there.suffix, 'text')}\n{text}{'' if text.endswith(chr(10)) else chr(10)}{fence}\n"
    return {f"{SOURCES}/{path}.md": f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n{code}"}


def _name(file: str) -> str:
    return f"{posixpath.basename(file)}.md"


def _target(place: str, link: str) -> str:
    """Return the path in the repository that a link of the file `place` leads to; empty if it leads elsewhere."""
    if re.match(r"[a-z]+:|/", link):
        return ""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(place), link))
    return "" if path.startswith("..") else path


def _lines(text: str) -> Iterator[tuple[str, bool]]:
    """Yield each line of Markdown, and whether it belongs to a fenced block of code."""
    fence = ""
    for line in text.splitlines(keepends=True):
        found = _FENCE.match(line)
        if found and not fence:
            fence = found[1]
            yield line, True
        elif fence:
            yield line, True
            if found and found[1].startswith(fence):
                fence = ""
        else:
            yield line, False


def _prose(text: str) -> Iterator[str]:
    return (line for line, code in _lines(text) if not code)
