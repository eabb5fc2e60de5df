# SPDX-License-Identifier: Apache-2.0
"""Hooks of MkDocs that add pages generated from the sources, and let links out of docs/ lead to pages of the site.

They write nothing outside the site.
"""

from __future__ import annotations

import re
from importlib.metadata import version

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from website import c_headers, commands, grpc_service, metrics, p4_tables, python_api
from website.repository import ROOT, Links, source_page

DOCUMENTS = {  # documents outside docs/, each with its page
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
# Weights of pages in the search. The first pattern that matches counts; all other pages have weight 1.
SEARCH_BOOST = (
    (r"troubleshooting\.md|running\.md", 8.0),  # operators in trouble find their page first
    (r"sources/|project/changelog\.md|decisions/\d", 0.1),  # long, or about the past
)
LINKS = Links(DOCUMENTS)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Show the version of the installed package in the footer."""
    config.copyright = f"p4reduce {version('p4reduce')}"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents outside docs/, the generated pages, and a page for each source file that any page links to."""
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
    """Rewrite links out of docs/ to pages of the site, and set the weight of the page in the search."""
    del config, files
    for pattern, boost in SEARCH_BOOST:
        if re.match(pattern, page.file.src_uri):
            page.meta["search"] = {**page.meta.get("search", {}), "boost": boost}
            break
    if page.file.src_uri in DOCUMENTS.values():
        return markdown
    return LINKS.rewritten(markdown, f"docs/{page.file.src_uri}", page.file.src_uri)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mark options in inline code for site.css, since browsers would break lines after their dashes."""
    del page, config, files

    def marked(code: re.Match[str]) -> str:
        return re.sub(r"(?<![\w-])--?\w[\w-]*", r'<span class="option">\g<0></span>', code[0])

    return re.sub(r"<code>[^<]*</code>", marked, html)
