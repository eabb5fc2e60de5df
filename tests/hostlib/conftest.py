# SPDX-License-Identifier: Apache-2.0
"""What the host library's tests share. Helpers of other folders' tests are imported from there."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "protocol"))  # for model_switch

from fake_session import FakeController
from in_process import join
from udp_switch import UdpSwitch, udp_switch

from p4reduce import Communicator
from tests.own_network import OwnNetwork, own_network


@pytest.fixture
def network() -> Iterator[OwnNetwork]:
    """A network namespace of the test's own, with a veth pair."""
    with own_network() as network:
        yield network


@pytest.fixture
def switch() -> Iterator[UdpSwitch]:
    with udp_switch() as switch:
        yield switch


@pytest.fixture
def controller(switch: UdpSwitch, monkeypatch: pytest.MonkeyPatch) -> FakeController:
    """What communicators join from now on."""
    controller = FakeController(switch)
    monkeypatch.setattr("p4reduce.join.joining.Session", controller)
    return controller


@pytest.fixture
def pair(controller: FakeController) -> Iterator[list[Communicator]]:
    """The two ranks of a job."""
    assert controller is not None
    communicators = join(2)
    yield communicators
    for communicator in communicators:
        communicator.close()


@pytest.fixture(params=["c", "python"])
def each_pair(
    request: pytest.FixtureRequest, controller: FakeController, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Communicator]]:
    """The two ranks of a job, on each engine."""
    assert controller is not None
    monkeypatch.setenv("P4REDUCE_BACKEND", request.param)
    communicators = join(2)
    yield communicators
    for communicator in communicators:
        communicator.close()
