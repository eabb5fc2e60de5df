# SPDX-License-Identifier: Apache-2.0
"""Web sites whose names point to this host cannot read what is served here without a token."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from p4reduce_controller.base.limits import Rates
from p4reduce_controller.tenants.gate import Peers
from p4reduce_controller.tenants.pace import Pace
from p4reduce_controller.webpage.names import Names
from tests.support.controller.running import Running
from tests.support.controller.web import BEARER, TOKEN, Site


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "127.0.0.1:7702", "localhost", "LocalHost.:80", "[::1]", "[::1]:9", "10.0.0.7:1", "fabric.lab"],
)
def test_addresses_and_names_that_are_given(host: str) -> None:
    assert Names("127.0.0.1", ["Fabric.lab"]).knows(host)


@pytest.mark.parametrize(
    "host",
    [
        *("", ":80", "evil.example", "evil.example:7702", "127.0.0.1.evil.example", "localhost.evil.example", "::1"),
        *("[127.0.0.1]", "127.0.0.1:x", "2130706433", "0x7f.1", "fabric.lab.evil", "[::1", "127.0.0.1:7702:80"),
    ],
)
def test_what_else_a_site_may_be_called(host: str) -> None:
    assert not Names("127.0.0.1", ["fabric.lab"]).knows(host)


@pytest.fixture
def bare(running: Running) -> Iterator[Site]:
    with Site(running, page="127.0.0.1:0", metrics="127.0.0.1:0", page_names=["fabric.lab"]) as site:
        site.look()
        yield site


def test_without_a_token_the_name_has_to_be_known(bare: Site) -> None:
    for path in ("/", "/page.js", "/api/status", "/api/history", "/metrics", "/healthz"):
        assert bare.get(path)[0] == 200
        assert bare.get(path, {"Host": "fabric.lab:7702"})[0] == 200
        code, _, body = bare.get(path, {"Host": "evil.example"})
        assert (code, b"--page-name" in body, b"p4reduce_" in body) == (421, True, False)


def test_metrics_of_this_host_alone_have_names_too(bare: Site) -> None:
    assert bare.get("/metrics", at=bare.web.metrics)[0] == 200
    assert bare.get("/metrics", {"Host": "evil.example"}, at=bare.web.metrics)[0] == 421


def test_metrics_for_other_hosts_are_called_as_these_like(running: Running) -> None:
    with Site(running, metrics="0.0.0.0:0") as site:
        here = site.web.metrics.replace("0.0.0.0", "127.0.0.1")
        assert site.get("/healthz", {"Host": "controller.cluster"}, at=here)[0] == 200


def test_with_a_token_any_name_will_do(running: Running) -> None:
    with Site(running, door=Peers(Rates(), Pace(), TOKEN), page="127.0.0.1:0") as guarded:
        guarded.look()
        for path in ("/api/status", "/metrics"):
            assert guarded.get(path, {"Host": "fabric.example", **BEARER})[0] == 200
