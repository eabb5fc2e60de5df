# SPDX-License-Identifier: Apache-2.0
"""A BF Runtime server with our program, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.bfrt import programs
from tests.support.bfrt.device import Device
from tests.support.bfrt.plain_client import PlainClient
from tests.support.bfrt.server import Server
from tests.support.dataplane.targets import Unavailable

from .entries import (
    PROFILE,
    connect,
)


@pytest.fixture(scope="module")
def device() -> Device:
    try:
        return programs.device(PROFILE)
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture
def server(device: Device) -> Iterator[Server]:
    device.restart(programs.device_config(PROFILE))
    device.limits.clear()
    with Server(device) as server:
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[PlainClient]:
    """Return a client that is subscribed and bound."""
    with connect(server) as client:
        client.subscribe()
        client.bind()
        yield client
