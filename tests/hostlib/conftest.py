# SPDX-License-Identifier: Apache-2.0
"""Fixtures that the host library's tests share."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from p4reduce import Communicator
from p4reduce.backends import NAMES
from tests.support.c_library import needs_c_library
from tests.support.hostlib import engines, in_process
from tests.support.hostlib.fake_session import FakeController
from tests.support.hostlib.in_process import Join
from tests.support.hostlib.udp_switch import UdpSwitch, loopback, switch, switches
from tests.support.own_network import either_network, network

__all__ = ["either_network", "loopback", "network", "switch", "switches"]  # fixtures


@pytest.fixture
def controller(switch: UdpSwitch, monkeypatch: pytest.MonkeyPatch) -> FakeController:
    """Return the fake controller that communicators join from now on."""
    controller = FakeController(switch)
    monkeypatch.setattr("p4reduce.join.joining.Session", controller)
    return controller


@pytest.fixture
def join(controller: FakeController) -> Iterator[Join]:
    """Yield a function that makes the communicators of a new job's ranks. All are closed after the test."""
    assert controller is not None
    with contextlib.ExitStack() as stack:

        def join_and_close(world_size: int, **options: Any) -> list[Communicator]:
            communicators = in_process.join(world_size, **options)
            for communicator in communicators:
                stack.callback(communicator.close)
            return communicators

        yield join_and_close


@pytest.fixture(params=NAMES)
def each_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let communicators use this engine from now on."""
    if request.param == "c":
        needs_c_library()
    monkeypatch.setenv("P4REDUCE_BACKEND", request.param)


@pytest.fixture
def pair(join: Join) -> list[Communicator]:
    """Return the two ranks of a job."""
    return join(2)


@pytest.fixture
def each_pair(each_engine: None, join: Join) -> list[Communicator]:  # noqa: ARG001
    """Return the two ranks of a job, on each engine."""
    return join(2)


@pytest.fixture
def everyone(join: Join) -> list[Communicator]:
    """Return the three ranks of a job."""
    return join(3)


@pytest.fixture
def trio(each_engine: None, join: Join) -> list[Communicator]:  # noqa: ARG001
    """Return the three ranks of a job, on each engine."""
    return join(3)


@pytest.fixture(params=["python", "c", "2 threads", pytest.param("3 threads", marks=pytest.mark.slow)])
def kind(request: pytest.FixtureRequest) -> type[engines.Rank]:
    """Return each kind of engine."""
    return engines.kind_of(request.param)


@pytest.fixture
def ranks(kind: type[engines.Rank]) -> engines.Ranks:
    """Return `engines.ranks` for that kind."""
    return partial(engines.ranks, kind)
