# SPDX-License-Identifier: Apache-2.0
"""A controller with jobs, as a real Prometheus sees it."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode

import pytest

from tests.support.cluster.rank import Call
from tests.support.cluster.stack import Stack, over_udp
from tests.support.etcd import NO_PROXY
from tests.support.free_ports import free_ports
from tests.support.waiting import wait_until

MONITORING = Path(__file__).parents[2] / "controller" / "monitoring"
DEADLINE_S = 120.0
STEADY = [Call(pause=0.05)]


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not on PATH")
    return found


@contextmanager
def prometheus(folder: Path, metrics: str) -> Iterator[str]:
    """Run a Prometheus that scrapes `metrics` every second, with our rules, and yield its address."""
    command = tool("prometheus")
    shutil.copy(MONITORING / "alerts.yml", folder)
    text = (MONITORING / "prometheus.yml").read_text()
    assert "127.0.0.1:7701" in text
    text = text.replace("127.0.0.1:7701", metrics).replace("scrape_interval: 5s", "scrape_interval: 1s")
    (folder / "prometheus.yml").write_text("global: {evaluation_interval: 1s}\n" + text)
    address = f"127.0.0.1:{free_ports(1)[0]}"
    options = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([command, *options, f"--web.listen-address={address}"], stderr=log, stdout=log)
        try:
            yield address
        finally:
            process.terminate()
            process.wait(30)


def query(address: str, expression: str) -> list[Any]:
    """Return the samples that a query finds now, or [] while Prometheus is not reachable yet."""
    try:
        with NO_PROXY.open(f"http://{address}/api/v1/query?{urlencode({'query': expression})}", timeout=10) as answer:
            told = json.load(answer)
    except URLError as error:
        if hasattr(error, "read"):
            raise AssertionError(f"{expression}: {error.read()!r}") from None
        return []
    result: list[Any] = told["data"]["result"]
    return result


def expressions() -> Iterator[tuple[str, str]]:
    """Yield the title and each query of the dashboard's panels, with variables replaced as Grafana does it."""
    dashboard = json.loads((MONITORING / "dashboard.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"].replace("$__rate_interval", "30s").replace("$job", "seen")


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with over_udp("--metrics", "127.0.0.1:0", target="native", leaves=2) as stack:
        yield stack


def test_every_query_of_the_dashboard_finds_data(stack: Stack, tmp_path: Path) -> None:
    asked = list(expressions())
    assert len(asked) > 25
    with prometheus(tmp_path, stack.served["metrics"]) as address:
        log = tmp_path / "log"
        wait_until(lambda: query(address, "count_over_time(p4reduce_joins_total[1m]) > 1"), log.read_text, DEADLINE_S)
        # Only now, so that there are samples from before.
        with stack.losing(0.02), stack.ranks(STEADY, job="seen", at=stack.names[1:], repeat=True, local="off") as ranks:
            ranks.wait_for("done")

            def missing() -> list[str]:
                return [
                    f"{title}: {expression}"
                    for title, expression in asked
                    if not any(math.isfinite(float(one["value"][1])) for one in query(address, expression))
                ]

            wait_until(lambda: not missing(), missing, DEADLINE_S)
            for expression in (
                'count(p4reduce_rank_rounds_total{job_name="seen"} > 0) == 4',
                'sum(rate(p4reduce_rank_retransmissions_total{job_name="seen"}[1m])) > 0',
                "count(p4reduce_port_bytes_total > 0) >= 4",
            ):
                wait_until(lambda expression=expression: query(address, expression), expression, DEADLINE_S)
        # Samples of a job that has ended are dropped.
        wait_until(lambda: not query(address, 'p4reduce_job_ranks{job_name="seen"}'), "the job to be gone", DEADLINE_S)
        with NO_PROXY.open(f"http://{address}/api/v1/rules", timeout=10) as answer:
            groups = json.load(answer)["data"]["groups"]
        assert {rule["health"] for group in groups for rule in group["rules"]} == {"ok"}


@pytest.mark.parametrize(
    "arguments", ["check rules alerts.yml", "check config prometheus.yml", "test rules alerts_test.yml"]
)
def test_promtool_accepts_the_rules(arguments: str) -> None:
    done = subprocess.run(
        [tool("promtool"), *arguments.split()], cwd=MONITORING, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_rules_and_dashboard_name_metrics_that_there_are(stack: Stack) -> None:
    """The controller exports every metric that rules and dashboard name. The test needs no Prometheus."""
    with stack.losing(0), stack.ranks(STEADY, job="named", at=stack.names[1:], repeat=True, local="off") as ranks:
        ranks.wait_for("done")
        wanted = set(re.findall(r"p4reduce_\w+", (MONITORING / "alerts.yml").read_text()))
        wanted |= {name for _, expression in expressions() for name in re.findall(r"p4reduce_\w+", expression)}
        wanted -= {"p4reduce_switch_rpc_errors_total"}  # nothing has failed
        wanted -= {"p4reduce_certificate_expiry_timestamp_seconds"}  # nothing is over TLS

        def missing() -> set[str]:
            with NO_PROXY.open(f"http://{stack.served['metrics']}/metrics", timeout=10) as answer:
                return wanted - set(re.findall(r"^(p4reduce_\w+)[{ ]", answer.read().decode(), re.MULTILINE))

        wait_until(lambda: not missing(), missing, DEADLINE_S)
