# SPDX-License-Identifier: Apache-2.0
"""The status page, in Chromium, while jobs run on native switches: two leaves and a spine."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster.rank import Call
from tests.support.cluster.stack import Stack, over_udp

TOKEN = "swordfish"
DEADLINE_MS = 90_000
DESKTOP = {"viewport": {"width": 1280, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "device_scale_factor": 2, "is_mobile": True, "has_touch": True}

playwright = pytest.importorskip("playwright.sync_api")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not on PATH")
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    token = tmp_path_factory.mktemp("page") / "token"
    token.write_text(TOKEN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("P4REDUCE_TOKEN", TOKEN)
        with over_udp("--page", "127.0.0.1:0", "--token-file", str(token), target="native", leaves=2) as stack:
            yield stack


@pytest.fixture
def page_of(chromium: Any, stack: Stack) -> Iterator[Callable[..., Any]]:
    """Yield a function that opens the page in such a window, logged in. Errors in the browser fail the test."""
    contexts, complaints = [], []

    def opened(**window: Any) -> Any:
        contexts.append(chromium.new_context(**window))
        page = contexts[-1].new_page()
        page.set_default_timeout(DEADLINE_MS)
        page.on("pageerror", lambda told: complaints.append(str(told)))
        page.on("console", lambda told: complaints.append(told.text) if told.type == "error" else None)
        page.goto(f"http://{stack.served['page']}/")
        page.fill("#token", TOKEN)
        page.press("#token", "Enter")
        page.wait_for_selector("#main:not([hidden])")
        return page

    yield opened
    for context in contexts:
        context.close()
    # Chromium itself reports that the page was refused before it was logged in.
    assert [one for one in complaints if "401" not in str(one)] == []


@pytest.mark.parametrize("window", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_jobs_are_seen_while_they_run(
    stack: Stack, page_of: Callable[..., Any], window: dict[str, Any], tmp_path: Path
) -> None:
    late = {3: [Call(pause=0.5)]}
    jobs = stack.ranks(
        [Call(pause=0.02)], job="<i>seen</i>", at=stack.names[1:], repeat=True, local="off", calls_of=late
    )
    with jobs as ranks, stack.ranks([Call()], job="alone", world_size=2, present=[0], local="off"):
        ranks.wait_for("done")
        page = page_of(**window)
        job = page.locator("details", has_text="<i>seen</i>")
        job.locator("summary").click()
        page.locator("details[open] tbody tr").nth(3).wait_for()
        # Numbers come with the second report, and who is late is named with others that wait.
        job.locator("td", has_text=re.compile(r"[1-9].*B/s")).first.wait_for()
        page.locator("#troubles li", has_text="<i>seen</i>, rank 3: comes late").wait_for()
        with stack.losing(0.02):  # told once a switch, below what nobody asked for
            page.locator("#troubles li", has_text="drops 2.0% of packets on purpose, at port 1 (in)").nth(2).wait_for()
            told = ["on purpose" in one for one in page.locator("#troubles li").all_inner_texts()]
            assert told.count(True) == 3
            assert told == sorted(told)
        assert page.locator("#fabric .switch").count() == 3
        assert page.locator("#fabric .port").count() == 2
        page.locator("#fabric .link.busy").nth(1).wait_for(state="attached")
        assert "gathering" in page.locator("details", has_text="alone").inner_text()
        assert page.locator("#history figure").count() == 4
        page.screenshot(path=tmp_path / "page.png", full_page=True)
        fits = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert fits[0] <= fits[1], "the page is wider than the window"
    page.locator("#jobs", has_text="No jobs.").wait_for()


def test_the_token_stays_in_the_tab_and_out_of_addresses(stack: Stack, page_of: Callable[..., Any]) -> None:
    page = page_of(**DESKTOP)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    assert page.evaluate("sessionStorage.getItem('p4reduce-token')") == TOKEN
    assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]
    page.reload()
    page.wait_for_selector("#main:not([hidden])")
    host = f"http://{stack.served['page']}/"
    assert asked
    assert all(url.startswith(host) and TOKEN not in url for url in asked)
    page.click("#logout")
    page.wait_for_selector("#login:not([hidden])")
    assert page.evaluate("sessionStorage.length") == 0


def test_a_wrong_token_is_told(chromium: Any, stack: Stack) -> None:
    page = chromium.new_page()
    page.set_default_timeout(DEADLINE_MS)
    page.goto(f"http://{stack.served['page']}/")
    page.fill("#token", "wrong")
    page.press("#token", "Enter")
    page.locator("#login-error", has_text="the token is wrong").wait_for()
    page.close()


def test_a_controller_that_is_gone_is_said_to_be(chromium: Any) -> None:
    with over_udp("--page", "127.0.0.1:0", target="native") as stack:
        page = chromium.new_page()
        page.set_default_timeout(DEADLINE_MS)
        page.goto(f"http://{stack.served['page']}/")
        page.wait_for_selector("#main:not([hidden])")  # there is no token to be asked for
        stack.stop_controller()
        page.locator("#health.bad", has_text="the page shows old data").wait_for()
        page.wait_for_selector("#main.old")
        page.close()
