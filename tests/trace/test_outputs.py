# SPDX-License-Identifier: Apache-2.0
"""The file for Perfetto keeps to its format, the page is whole, and both have the same content."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from p4reduce.protocol.packet import Codec
from p4reduce.trace import page, perfetto
from p4reduce.trace.cli import trace as command
from p4reduce.trace.model import Trace, save
from p4reduce.trace.rounds import trace_of
from tests.support.trace_packets import address, data, key, result, trace

END = 0xFFFFFFFF


@pytest.fixture
def made() -> Trace:
    """Return a trace in which worker 2 is 30 ms late, a packet of worker 0 is lost, and blocks are skipped."""
    return trace(
        data(0, 0), data(0.1, 1), data(30, 2), *(result(30.1, to, 2, keys=(key(4), END, END, END)) for to in range(3)),
        data(30.2, 0, seq=3, active=1, present=1), data(30.2, 1, seq=3, active=1), data(30.2, 2, seq=3, active=1),
        data(34, 0, seq=3, active=1, present=1), *(result(34.1, to, 0, seq=3, active=1) for to in range(3)),
        data(0, 1, slot=1), data(0.1, 0, slot=1), data(30, 2, slot=1),
        *(result(30.1, to, 2, slot=1) for to in range(3)),
    )  # fmt: skip


def phases(made: Trace, phase: str) -> list[dict[str, Any]]:
    return [event for event in perfetto.events(made) if event["ph"] == phase]


def test_perfetto_gets_what_its_format_asks_for(made: Trace) -> None:
    """Trace Event Format: which fields events of each phase must have, and of which types."""
    text = json.dumps(perfetto.document(made))
    events = json.loads(text)["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "i", "b", "e"}
    for event in events:
        assert isinstance(event["name"], str)
        assert type(event["pid"]) is type(event["tid"]) is int
        assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
        if event["ph"] == "i":
            assert event["s"] in ("g", "p", "t")
        if event["ph"] in "be":
            assert event["cat"]
            assert isinstance(event["id"], int)
        if event["ph"] == "M":
            kind = {"process_name": "name", "thread_name": "name"}.get(event["name"], "sort_index")
            assert set(event["args"]) == {kind}


def test_events_of_a_thread_are_nested(made: Trace) -> None:
    """Perfetto drops complete events that overlap another of their thread without being within it."""
    threads = defaultdict(list)
    for event in phases(made, "X"):
        threads[event["pid"], event["tid"]].append((event["ts"], -event["ts"] - event["dur"]))
    for spans in threads.values():
        open_until: list[float] = []
        for begin, end in sorted(spans):
            while open_until and open_until[-1] <= begin + 1e-6:
                open_until.pop()
            assert not open_until or -end <= open_until[-1] + 1e-6
            open_until.append(-end)


def test_perfetto_shows_the_straggler_and_the_losses(made: Trace) -> None:
    names = [event["args"]["name"] for event in phases(made, "M") if event["name"] == "thread_name"]
    assert "worker 2 (straggler)" in names
    waits = [event for event in phases(made, "X") if event["pid"] == perfetto.WORKERS]
    assert [(event["tid"], event["name"], event["dur"]) for event in waits] == [(2, "awaited", 29900.0)]
    assert [event["name"] for event in phases(made, "i") if event["pid"] == perfetto.WORKERS] == ["lost: worker 0"]
    assert "waits for worker 2" in [event["name"] for event in phases(made, "X")]
    assert [event["args"]["blocks skipped before"] for event in phases(made, "X") if event["name"] == "round 3"] == [4]


def test_the_page_is_one_file_that_loads_nothing(made: Trace) -> None:
    text = page.html(made)
    assert not re.search(r"""(src|href)\s*=|url\(|@import|fetch\(|XMLHttp|WebSocket""", text)
    assert "default-src 'none'" in text
    assert "$" not in re.sub(r"\$\{", "", text)  # nothing is left to be filled in
    held = json.loads(re.search(r'id="trace">(.*?)</script>', text)[1])  # type: ignore[index]
    assert held["summary"]["stragglers"] == ["worker 2"]
    assert held["summary"]["lost"] == 1
    assert len(held["trace"]["rounds"]) == 3


def test_a_name_cannot_end_the_script(made: Trace) -> None:
    made.name = "</script><script>alert(1)"
    made.notes.append("</script>")
    assert page.html(made).count("</script>") == 2


def run(*arguments: object) -> str:
    done = CliRunner().invoke(command, [str(one) for one in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_command_draws_a_trace(made: Trace, tmp_path: Path) -> None:
    save(made, tmp_path / "one.trace.json")
    said = run("view", tmp_path / "one.trace.json", "--perfetto", tmp_path / "perfetto.json")
    assert "worker 2 is a straggler: the others waited for it during" in said
    assert (tmp_path / "one.html").read_text() == page.html(made)
    assert json.loads((tmp_path / "perfetto.json").read_text()) == json.loads(json.dumps(perfetto.document(made)))
    told = json.loads(run("view", tmp_path / "one.trace.json", "--json"))
    assert (told["stragglers"], told["lost"], told["files"]) == (["worker 2"], 1, [str(tmp_path / "one.html")])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["view", "none.trace.json"], "none.trace.json: No such file or directory"),
        (["view", "a.pcap", "b.json"], "b.json: a trace must be the only file; several captures can be given together"),
        (["view", "none.trace.json", "--lanes", "3"], "--lanes 3: accepted are 1, 2, 4, 8"),
        (["record", "--pcap", "a", "--interface", "b"], "--pcap and --interface: give only one of them"),
        (["record", "mine", "--pcap", "a"], "captures hold job numbers and no names"),
        (["record", "7", "--wait", "5"], "--wait 5: give the job's name as well"),
        (["record", "7", "--interface", "none0"], "none0"),
    ],
)
def test_mistakes_are_explained(
    arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(command, arguments)
    assert done.exit_code == 1
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Yield a browser. Skips the test if there is none."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if path is None:
        pytest.skip("needs Chromium")
    sync_playwright = pytest.importorskip("playwright.sync_api").sync_playwright
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=path, args=["--no-sandbox"]) as started,
    ):
        yield started


def opened(started: Any, made: Trace, file: Path, wrong: list[object], width: int = 1280, height: int = 900) -> Any:
    """Write the trace's page, and open it in the browser. wrong: a list that gets the browser's errors and logs."""
    page.write(made, file)
    shown = started.new_page(viewport={"width": width, "height": height})
    shown.on("pageerror", lambda one: wrong.append(one))
    shown.on("console", lambda one: wrong.append(one.text))
    shown.goto(file.as_uri())
    return shown


@pytest.mark.parametrize(("width", "height"), [(1280, 900), (390, 844)])
def test_a_browser_draws_it(made: Trace, tmp_path: Path, width: int, height: int) -> None:
    """On a desktop and on a phone, nothing is wider than the screen, and the straggler and the losses are named."""
    wrong: list[object] = []
    with browser() as started:
        shown = opened(started, made, tmp_path / "page.html", wrong, width, height)
        assert shown.evaluate("document.documentElement.scrollWidth") <= width
        verdicts = shown.inner_text("#verdicts")
        assert "worker 2" in verdicts
        assert "1 packet," in verdicts
        lost = shown.locator("#workers th", has_text="lost").bounding_box()
        assert lost["x"] + lost["width"] <= width  # seen without moving the table
        box = shown.locator("#chart").bounding_box()
        assert box is not None
        where = shown.evaluate("({x: x(10000), y: shape.slots + 5})")
        shown.mouse.click(box["x"] + where["x"], box["y"] + where["y"])
        assert "worker 2 was waited for" in shown.inner_text("#round")
        assert wrong == []


def test_a_browser_says_of_nobody_what_is_not_known(tmp_path: Path) -> None:
    """A job that stands still, a worker that was not heard, and packets that were missed: no green box says "none"."""
    done = [data(0, 0), data(900, 1), result(900.1, 0, 1), result(900.1, 1, 1)]
    stalled = [*done, data(901, 0, seq=3), data(950, 0, seq=3)]
    alone = [data(0, 0), data(9, 0)]
    wrong: list[object] = []
    with browser() as started:

        def boxes(made: Trace) -> list[tuple[str, str]]:
            shown = opened(started, made, tmp_path / "page.html", wrong)
            shown.evaluate("words(rounds[rounds.length - 1])")
            return [(one.get_attribute("class"), one.inner_text()) for one in shown.locator("#verdicts > div").all()][
                :2
            ]

        kind, text = boxes(trace(*stalled))[0]
        assert (kind, "worker 1" in text) == ("awaited", True)
        kind, text = boxes(trace_of(alone, Codec(), names={address(0): "rank 0", address(1): "rank 1"}))[0]
        assert (kind, "not known" in text, "rank 1" in text) == ("plain", True, True)
        missed = boxes(trace_of(stalled, Codec(), missed=12))
        assert [(kind, "not known" in text) for kind, text in missed] == [("plain", True)] * 2
        cut = boxes(trace_of(stalled, Codec(), {None: 7}))
        assert [(kind, "not known" in text) for kind, text in cut] == [("plain", True)] * 2
        assert "7 packets cut" in cut[0][1]
    assert wrong == []


def test_perfetto_shows_who_has_not_come_in_the_end() -> None:
    made = trace(data(0, 0), data(0, 1), result(1, 0, 1), data(2, 0, seq=3), data(90, 0, seq=3))
    assert "waits for worker 1" in [event["name"] for event in phases(made, "X")]
    waits = [event for event in phases(made, "X") if event["pid"] == perfetto.WORKERS]
    assert [(event["tid"], event["dur"]) for event in waits] == [(1, 88000.0)]
