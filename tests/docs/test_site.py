# SPDX-License-Identifier: Apache-2.0
"""The site is built without a network and without a warning, and shows what the sources say."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections import Counter
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt

from p4reduce.commands.cli import COMMANDS
from tests.support.document_blocks import ROOT
from tests.support.made_once import made_once
from website import c_headers, grpc_service, p4_tables
from website.metrics import metrics
from website.python_api import as_markdown
from website.repository import Links

pytest.importorskip("mkdocs", reason="needs mkdocs, of the extra docs")

ELEMENTS = ("li", "pre", "table", "td", "h2", "h3")


def build(folder: Path, configuration: Path = ROOT / "mkdocs.yml") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(configuration)]
    command += ["--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # of the theme's, which is no warning of the site's
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, env=environment)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    def make(folder: Path) -> None:
        done = build(folder)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "WARNING" not in done.stdout + done.stderr

    return made_once(tmp_path_factory, "site", make)


def counted(html: str) -> Counter[str]:
    return Counter(found for found in re.findall(r"<(\w+)", html) if found in ELEMENTS)


def article(site: Path, page: str) -> str:
    html = (site / page).with_suffix(".html").read_text()
    found = re.search(r"<article.*?>(.*?)</article>", html, re.DOTALL)
    assert found, page
    return found[1]


@pytest.mark.slow
def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        tags = re.findall(r"<(?:script|link|img|iframe)\b[^>]*>", page.read_text())
        assert [tag for tag in tags if re.search(r"(?:src|href)=\"?(?:https?:)?//", tag)] == [], page


@pytest.mark.slow
def test_pages_have_the_structure_that_readers_of_the_files_see(site: Path) -> None:
    """The site has the lists, tables, blocks and headings that CommonMark, and so GitHub, makes of the files."""
    different = {}
    for path in sorted((ROOT / "docs").rglob("*.md")):
        expected = counted(MarkdownIt("commonmark").enable("table").render(path.read_text()))
        found = counted(article(site, str(path.relative_to(ROOT / "docs"))))
        if expected != found:
            different[path.name] = {tag: (expected[tag], found[tag]) for tag in ELEMENTS if expected[tag] != found[tag]}
    assert different == {}


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *arguments: object) -> None:
        pass


# Script that returns the faults of the page: a width beyond the window, missing pictures, links to missing anchors.
FAULTS = """() => [
    ...(document.documentElement.scrollWidth > 390 ? [`is ${document.documentElement.scrollWidth} wide`] : []),
    ...[...document.images].filter((one) => !one.complete || !one.naturalWidth).map((one) => `no ${one.src}`),
    ...[...document.querySelectorAll('a[href*="#"]')].filter((one) => one.pathname === location.pathname && one.hash
        && !document.getElementById(decodeURIComponent(one.hash.slice(1)))).map((one) => `no ${one.hash}`),
]"""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_phone_shows_every_page(site: Path) -> None:
    """No page scrolls sideways, a browser complains of none, and none asks another host for anything."""
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not on PATH")
    sync_playwright = pytest.importorskip("playwright.sync_api").sync_playwright
    faults: list[tuple[str, str]] = []
    with (
        ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server,
        sync_playwright() as play,
        play.chromium.launch(executable_path=path, args=["--no-sandbox"]) as browser,
    ):
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            host = f"http://127.0.0.1:{server.server_port}/"
            phone = browser.new_page(viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True)
            phone.set_default_timeout(120_000)
            phone.on("pageerror", lambda told: faults.append((phone.url, str(told))))
            phone.on("console", lambda told: told.type == "error" and faults.append((phone.url, told.text)))
            cut = "net::ERR_ABORTED"  # by the next page
            phone.on(
                "requestfailed", lambda one: one.failure == cut or faults.append((phone.url, f"failed: {one.url}"))
            )
            own = (host, "data:", "blob:")
            phone.on("request", lambda one: one.url.startswith(own) or faults.append((phone.url, f"asks {one.url}")))
            for page in sorted(site.rglob("*.html")):
                phone.goto(f"{host}{page.relative_to(site)}")
                faults += [(phone.url, fault) for fault in phone.evaluate(FAULTS)]
            phone.goto(host)
            phone.locator(".md-header__button[for=__search]").first.click()
            phone.fill("[name=query]", "densification")
            phone.locator(".md-search-result__item", has_text="Glossary").first.wait_for()
        finally:
            server.shutdown()
    assert faults == []


@pytest.mark.slow
def test_no_item_of_a_docstring_is_cut_in_two(site: Path) -> None:
    """Lines that continue an item are indented, or else a paragraph begins in the middle of a sentence."""
    html = (site / "reference" / "python.html").read_text()
    assert re.findall(r"</ul>\s*<p>((?:[a-z]|<code>).*)", html) == []


# Searches of operators, with the section that answers each.
SEARCHES = {
    "drain a switch": "running.html#drain-a-switch",
    "slow": "troubleshooting.html#the-job-is-slow",
    "hang": "troubleshooting.html#a-job-or-a-collective-hangs",
    "tcpdump": "troubleshooting.html#look-at-packets-with-tcpdump",
    "MTU": "troubleshooting.html#packets-and-the-mtu",
    "firewall": "troubleshooting.html#a-firewall-drops-packets",
    "out of slots": "troubleshooting.html#out-of-slots",
    "wrong rank": "troubleshooting.html#wrong-rank-or-job-name",
}


@pytest.mark.slow
def test_the_search_finds_the_right_page_among_its_first_five(site: Path) -> None:
    """The site's own search worker (lunr) runs in node, with the index that was built."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not on PATH")
    command = [node, str(Path(__file__).with_name("search.js")), str(site), *SEARCHES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for (query, section), pages in zip(SEARCHES.items(), json.loads(done.stdout), strict=True):
        first = [found[0] for found in pages[:5]]  # the best section of each page
        assert section in first, (query, first)


@pytest.mark.slow
def test_every_page_shows_the_version(site: Path) -> None:
    for page in ("index.html", "running.html", "reference/python.html"):
        assert f"p4reduce {version('p4reduce')}" in (site / page).read_text(), page


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("unlisted", "extra.md"),  # a page that the nav does not list
        ("[nowhere](missing.md)", "missing.md"),
        ("[no heading](running.md#missing)", "#missing"),
    ],
)
def test_what_is_wrong_ends_the_build(tmp_path: Path, change: str, named: str) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "index.md").write_text("# Index\n")
    (docs / "running.md").write_text(f"# Running\n\n{change}\n")
    if change == "unlisted":
        (docs / "extra.md").write_text("# Extra\n")
    settings = yaml.load((ROOT / "mkdocs.yml").read_text(), Loader=yaml.BaseLoader)
    kept = {name: settings[name] for name in ("site_name", "validation")}
    kept |= {"nav": ["index.md", "running.md"], "theme": {"name": "material", "font": False}}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(kept))
    done = build(tmp_path / "site", tmp_path / "mkdocs.yml")
    assert done.returncode != 0
    assert named in done.stderr


def test_every_function_of_c_has_a_heading() -> None:
    assert c_headers.headers() == sorted(c_headers.HEADERS)
    page = c_headers.page()
    for header in c_headers.HEADERS:
        text = (ROOT / c_headers.INCLUDE / header).read_text()
        declared = re.findall(r"^P4REDUCE_API .*?(\w+)\(", text, re.MULTILINE | re.DOTALL)
        for name in declared:
            assert re.search(rf"^### .*\b{name}\b", page, re.MULTILINE), name


def test_every_message_and_comment_of_the_service_is_there() -> None:
    page = grpc_service.page()
    text = grpc_service.PROTO.read_text()
    for name in re.findall(r"^(?:message|enum) (\w+)", text, re.MULTILINE):
        assert f"\n### {name}\n" in page
    assert set(re.findall(r"\(#(\w+)\)", page)) <= {
        one.lower().replace(".", "") for one in re.findall(r"^### (.*)", page, re.M)
    }
    assert "\\<" not in page  # which would be shown as it is
    assert "| 2 | `rank` | `uint32` | 0 to world_size - 1 |" in page
    assert "| `Session` | stream of [`ClientMessage`](#clientmessage) |" in page


def test_every_table_of_the_program_is_there() -> None:
    page = p4_tables.page()
    for table in p4_tables.read("p4info.txtpb").tables:
        assert f"### {table.preamble.name.removeprefix('SwitchIngress.')}\n" in page
    assert "| `ingress_port` | exact | 9 |" in page


def test_series_of_the_registry_are_there() -> None:
    found = {metric.name: labels for metric, labels in metrics()}
    assert found["p4reduce_packets"] == ("switch", "outcome")
    assert found["p4reduce_rpcs"] == ("method", "code")
    assert found["p4reduce_install_seconds"] == ()


def test_the_index_lists_every_decision_by_its_title() -> None:
    folder = ROOT / "docs" / "decisions"
    listed = re.findall(r"^- \[(.+)\]\((\d\d-.+\.md)\)$", (folder / "index.md").read_text(), re.MULTILINE)
    pages = sorted(folder.glob("[0-9]*.md"))
    assert sorted(name for _, name in listed) == [page.name for page in pages]
    for title, name in listed:
        text = (folder / name).read_text()
        assert text.startswith(f"# {title}\n")
        assert re.findall(r"^## (.*)", text, re.MULTILINE) == ["Context", "Decision", "Consequences"]


def test_every_command_has_a_heading() -> None:
    from website import commands

    page = commands.page()
    assert [name for name in COMMANDS if f"\n## p4reduce {name}\n" not in page] == []
    assert "`--drop-rate" in page
    assert "\\<" not in page  # which would be shown as it is
    assert "0<=x<=0.5" in page
    assert "\n### `p4reduce topo run`\n" in page


def test_links_to_files_lead_to_their_pages() -> None:
    links = Links({"README.md": "index.md"})
    text = "[a](../README.md#x) [b](wire.md) [c](../hostlib/csrc/protocol/packet.c) [d](https://p4.org)\n```\n[e](../README.md)\n```\n"
    assert links.sources(text, "docs/running.md") == {"hostlib/csrc/protocol/packet.c"}
    assert links.rewritten(text, "docs/running.md", "running.md") == (
        "[a](index.md#x) [b](wire.md) [c](sources/hostlib/csrc/protocol/packet.c.md) [d](https://p4.org)\n"
        "```\n[e](../README.md)\n```\n"
    )


def test_docstrings_become_lists() -> None:
    text = "Adds.\n\nnames, other: what\n    goes on\nop: the sum\nAnd so on.\nRaises ValueError."
    assert as_markdown(text) == (
        "Adds.\n\n- `names`, `other`: what\n    goes on\n- `op`: the sum\n\nAnd so on.\n\nRaises ValueError."
    )


def test_options_are_marked() -> None:
    from website import hooks

    html = "<code>--tls-cert</code> <code>x --rate 1-2</code> <pre><code><span>--x</span></code></pre> a--b"
    assert hooks.on_page_content(html, None, None, None) == (  # type: ignore[arg-type]
        '<code><span class="option">--tls-cert</span></code> <code>x <span class="option">--rate</span> 1-2</code>'
        " <pre><code><span>--x</span></code></pre> a--b"
    )
