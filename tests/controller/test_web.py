# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.base.limits import BURST_S, Rates
from p4reduce_controller.base.listening import ListenError
from p4reduce_controller.switches.availability import SwitchState
from p4reduce_controller.tenants.audit import Audit
from p4reduce_controller.tenants.gate import Peers
from p4reduce_controller.tenants.pace import FREE_REFUSALS, REFUSAL_DELAY, Pace
from tests.support.controller.running import Running
from tests.support.controller.web import BEARER, TOKEN, Site
from tests.support.loopbacks import bound


@pytest.fixture
def site(running: Running, tmp_path: Path) -> Iterator[Site]:
    """Yield a page for which no time passes, or else a slow machine would make refusals free again."""
    door = Peers(Rates(), Pace(lambda: 0.0), TOKEN, Audit(tmp_path / "audit.jsonl"))
    with Site(running, door, page="127.0.0.1:0", metrics="127.0.0.1:0") as site:
        yield site


def test_the_page_blames_no_switch_for_an_operator_or_for_another_switch() -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not on PATH")
    words = (resources.files("p4reduce_controller.webpage") / "static" / "words.js").read_text()
    states = json.dumps([state.value for state in SwitchState])
    script = f"{words}\nconsole.log(JSON.stringify({states}.filter((state) => isBroken({{ state }}))));"
    command = [node, "--input-type=module", "--eval", script]
    assert json.loads(subprocess.check_output(command, timeout=60)) == ["NotReady", "UplinkDown"]


def test_the_page_is_whole_and_may_load_nothing_from_elsewhere(site: Site) -> None:
    for path, kind in (
        ("/", "text/html"),
        ("/page.js", "text/javascript"),
        ("/fabric.js", "text/javascript"),
        ("/charts.js", "text/javascript"),
        ("/words.js", "text/javascript"),
        ("/page.css", "text/css"),
        ("/icon.svg", "image/svg+xml"),
    ):
        code, headers, body = site.get(path)
        assert (code, headers["content-type"]) == (200, f"{kind}; charset=utf-8")
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        text = body.decode().replace("http://www.w3.org/2000/svg", "")
        assert "http" not in text.replace("https", "http")
        assert "innerHTML" not in text


@pytest.mark.parametrize("path", ["/api/status", "/api/history", "/metrics"])
def test_what_is_known_is_told_with_the_token_alone(site: Site, path: str) -> None:
    site.look()
    code, headers, body = site.get(path)
    assert (code, headers["www-authenticate"]) == (401, "Bearer")
    assert json.loads(body) == {"error": "a token is needed"}
    assert site.get(path, {"Authorization": "Bearer wrong"})[0] == 401
    assert site.get(f"{path}?token={TOKEN}")[0] == 401
    assert site.get(path, BEARER)[0] == 200


def test_wrong_tokens_are_written_down_and_soon_told_late(site: Site, tmp_path: Path) -> None:
    wrong = {"Authorization": "Bearer a secret"}
    took = []
    for _ in range(int(FREE_REFUSALS * BURST_S) + 4):
        began = time.monotonic()
        assert site.get("/api/status", wrong)[0] == 401
        took.append(time.monotonic() - began)
    assert min(took) < REFUSAL_DELAY <= max(took)
    text = (tmp_path / "audit.jsonl").read_text()
    assert "secret" not in text
    last = json.loads(text.splitlines()[-1])
    assert (last["who"], last["what"], last["outcome"]) == ("", "page /api/status", "the token is wrong")
    assert last["peer"].startswith("ipv4:127.0.0.1:")
    took = []
    for _ in range(5):
        began = time.monotonic()
        assert site.get("/metrics", BEARER)[0] == 200
        took.append(time.monotonic() - began)
    assert min(took) < REFUSAL_DELAY


def test_the_status_tells_jobs_ranks_and_switches(site: Site) -> None:
    assert site.get("/api/status", BEARER)[0] == 503
    site.running.job(2, job="<b>")
    site.running.loop.call(report, site.running)
    site.look()
    told = json.loads(site.get("/api/status", BEARER)[2])
    [job], [switch] = told["jobs"], told["switches"]
    assert (job["name"], job["state"], job["world_size"]) == ("<b>", "ready", 2)
    assert [rank["operations"] for rank in job["ranks"]] == [7, 7]
    assert job["ranks"][0]["at"] == [[0, 1]]
    assert (switch["slots_used"], switch["connected"]) == (4, True)
    assert len(json.loads(site.get("/api/history", BEARER)[2])["at"]) == 1


def report(running: Running) -> None:
    [job] = running.jobs
    for member in job.members.values():
        running.controller.reports.record(job, member, pb.Report(operations=7), 1.0)


def test_health_and_readiness_need_no_token_and_tell_why_not(site: Site) -> None:
    for at in (site.web.page, site.web.metrics):
        assert site.get("/healthz", at=at)[0] == 200
        assert site.get("/readyz", at=at)[0] == 200
    site.running.switch.problem = "unplugged"
    code, _, body = site.get("/readyz")
    assert (code, json.loads(body)["problem"]) == (503, "the switch at fake: unreachable for 7 s")
    site.running.switch.problem = ""
    site.running.controller.failure = ZeroDivisionError("a bug")
    code, _, body = site.get("/healthz")
    assert (code, json.loads(body)["problem"]) == (503, "the service has failed: ZeroDivisionError")


def test_metrics_have_a_place_without_a_token_that_tells_nothing_else(site: Site) -> None:
    site.look()
    code, headers, body = site.get("/metrics", at=site.web.metrics)
    assert code == 200
    assert headers["content-type"].startswith("text/plain")
    assert b"p4reduce_slots{" in body
    assert site.get("/api/status", BEARER, at=site.web.metrics)[0] == 404


def test_nothing_can_be_changed(site: Site) -> None:
    connection = http.client.HTTPConnection(site.web.page, timeout=10)
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        connection.request(method, "/api/status", headers=BEARER)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 405
    connection.close()


@pytest.mark.parametrize("host", ["[::]", "[0:0::0]"])
def test_all_ipv6_addresses_include_ipv4(running: Running, host: str) -> None:
    bound("::1").close()  # or the test is skipped
    with Site(running, page=f"{host}:0", insecure=True) as site:
        here, _, port = site.web.page.rpartition(":")
        assert here == "[::]"
        for address in ("::1", "127.0.0.1"):
            connection = http.client.HTTPConnection(address, int(port), timeout=10)
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
            connection.close()


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"page": "0.0.0.0:0"}, "--page 0.0.0.0:0 is open to other hosts without TLS"),
        ({"page": "here"}, "--page here: must be HOST:PORT"),
        ({"page": "unix:/run/page"}, "--page unix:/run/page: must be HOST:PORT"),
        ({"page": "::1:0"}, "--page ::1:0: must be HOST:PORT, .*; write an IPv6 address in brackets"),
        ({"metrics": "[::1"}, r"--metrics \[::1: must be HOST:PORT"),
        ({"metrics": "127.0.0.1:99999"}, "--metrics 127.0.0.1:99999: must be HOST:PORT"),
    ],
)
def test_addresses_that_are_not_accepted(running: Running, config: dict[str, str], said: str) -> None:
    web = Site(running, **config).web
    with pytest.raises(ListenError, match=said):
        running.loop.run(web.start())
