# SPDX-License-Identifier: Apache-2.0
"""Each test runs on every data plane that this machine has; a skip names what is missing for the others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.support.bfrt.target import NAMES, REAL_NAMES, SwitchOverBfRuntime
from tests.support.dataplane.switch import PLANES, Switch
from tests.support.dataplane.targets import Unavailable
from tests.support.tofino.builds import PROFILES, TofinoSwitch

TOFINO = [pytest.param(name, marks=[pytest.mark.p4c, pytest.mark.slow]) for name in (*PROFILES, *NAMES, *REAL_NAMES)]


@pytest.fixture(scope="session", params=[*PLANES, *TOFINO])
def running_switch(request: pytest.FixtureRequest) -> Iterator[Switch]:
    with ExitStack() as running:
        try:
            running.enter_context(switch := _switch(request.param))
        except Unavailable as missing:
            pytest.skip(str(missing))
        yield switch


@pytest.fixture
def switch(running_switch: Switch) -> Iterator[Switch]:
    """Yield a switch with its own address and no other entries."""
    running_switch.own_address()
    yield running_switch
    running_switch.reset()


def _switch(name: str) -> Switch:
    if name in (*NAMES, *REAL_NAMES):
        return SwitchOverBfRuntime(name)
    return TofinoSwitch(name) if name in PROFILES else Switch(name)
