# SPDX-License-Identifier: Apache-2.0
"""Each test runs on every data plane that this machine has; a skip names what is missing for the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.dataplane.switch import PLANES, Switch
from tests.support.dataplane.targets import Unavailable
from tests.support.tofino.builds import PROFILES, TofinoSwitch

TOFINO = [pytest.param(profile, marks=[pytest.mark.p4c, pytest.mark.slow]) for profile in PROFILES]


@pytest.fixture(scope="session", params=[*PLANES, *TOFINO])
def running_switch(request: pytest.FixtureRequest) -> Iterator[Switch]:
    with ExitStack() as running:
        try:
            switch = TofinoSwitch(request.param) if request.param in PROFILES else Switch(request.param)
            running.enter_context(switch)
        except Unavailable as missing:
            pytest.skip(str(missing))
        yield switch


@pytest.fixture
def switch(running_switch: Switch) -> Iterator[Switch]:
    """Yield a switch with its own address and no other entries."""
    running_switch.own_address()
    yield running_switch
    running_switch.reset()
