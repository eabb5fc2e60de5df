# SPDX-License-Identifier: Apache-2.0
"""Every test runs against our server, in front of two data planes, and against BMv2's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .client import Client
from .servers import bmv2, fake, sim

SERVERS = {"fake": fake, "sim": sim, "bmv2": bmv2}
PARAMS = [pytest.param("fake"), pytest.param("sim"), pytest.param("bmv2", marks=pytest.mark.bmv2)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Take out what the P4Runtime specification asks for and BMv2 does otherwise: a difference is no skipped test."""
    here = Path(__file__).parent
    differing = [
        item
        for item in items
        if item.get_closest_marker("bmv2_differs")
        and here in item.path.parents
        and item.callspec.params.get("kind") == "bmv2"  # type: ignore[attr-defined]
    ]
    if differing:
        config.hook.pytest_deselected(items=differing)
        items[:] = [item for item in items if item not in differing]


@pytest.fixture(scope="session", params=PARAMS)
def kind(request: pytest.FixtureRequest) -> str:
    """Return the kind of server: "fake", "sim" or "bmv2"."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def address(kind: str) -> Iterator[str]:
    """Yield the address of a server that all tests share. Each test installs its pipeline anew."""
    with SERVERS[kind]() as where:
        yield where


@pytest.fixture
def fresh_address(kind: str) -> Iterator[str]:
    """Yield the address of a new server, which has had no client yet."""
    with SERVERS[kind]() as where:
        yield where


@pytest.fixture
def primary(address: str) -> Iterator[Client]:
    """Yield the only client, which is primary and has just installed the pipeline."""
    with Client(address) as client:
        client.become_primary().configure()
        yield client
