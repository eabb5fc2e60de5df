# SPDX-License-Identifier: Apache-2.0
"""MkDocs calls these: pages that are made of the sources are added, and links to files outside docs/ lead to pages.

Nothing of it is written anywhere but into the site.
"""

from __future__ import annotations

import re
from importlib.metadata import version

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website import c_headers, commands, grpc_service, metrics, p4_tables, python_api
from website.repository import ROOT, Links, source_page

DOCUMENTS = {  # pages that stand elsewhere in the repository
    "README.md": "index.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
}
GENERATED = {
    "reference/python.md": python_api.page,
    "reference/c.md": c_headers.page,
    "reference/commands.md": commands.page,
    "reference/grpc.md": grpc_service.page,
    "reference/p4-tables.md": p4_tables.page,
    "reference/metrics.md": metrics.page,
}
# Weights of pages in the search; 1 is that of all others. The first pattern that matches counts.
SEARCH_BOOST = (
    (r"troubleshooting\.md|running\.md", 8.0),  # an operator in trouble comes first
    (r"sources/|project/changelog\.md|decisions/\d", 0.1),  # long, or about the past
)
LINKS = Links(DOCUMENTS)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Return the footer shows the version of the installed package."""
    config.copyright = f"p4reduce {version('p4reduce')}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/, and those of the sources that any page links to."""
    made = {name: (ROOT / path).read_text() for path, name in DOCUMENTS.items()}
    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
    for name, make in GENERATED.items():
        made[name] = texts[name] = make()
    linked = {source for name, text in texts.items() for source in LINKS.sources(text, f"docs/{name}")}
    for path, name in DOCUMENTS.items():
        linked |= LINKS.sources(made[name], path)
        made[name] = LINKS.rewritten(made[name], path, name)
    for source in sorted(linked):
        made |= source_page(source)
    for name, text in made.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links out of docs/ become links to the pages of what is there, and the page gets its weight in the search."""
    del config, files
    for pattern, boost in SEARCH_BOOST:
        if re.match(pattern, page.file.src_uri):
            page.meta["search"] = {**page.meta.get("search", {}), "boost": boost}
            break
    if page.file.src_uri in DOCUMENTS.values():
        return markdown
    return LINKS.rewritten(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Options within lines, which browsers would break after their dashes, are marked for site.css."""
    del page, config, files

    def marked(code: re.Match[str]) -> str:
        return re.sub(r"(?<![\w-])--?\w[\w-]*", r'<span class="option">\g<0></span>', code[0])

    return re.sub(r"<code>[^<]*</code>", marked, html)
