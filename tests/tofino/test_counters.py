# SPDX-License-Identifier: Apache-2.0
"""Byte counters say the same as on other targets, though a chip counts check sequence and bridge header as well."""

from __future__ import annotations

import pytest

from tests.support.dataplane import frames
from tests.support.dataplane.frames import Host
from tests.support.dataplane.switch import LOSS_OUT, LOSSES_OUT, Switch
from tests.support.dataplane.targets import Unavailable
from tests.support.tofino.builds import PROFILES, TofinoSwitch

pytestmark = pytest.mark.p4c

ALL = 2**32 - 1
HERE = Host("02:00:00:00:00:01", "10.0.0.1", 1111)
THERE = Host("02:00:00:00:00:02", "10.0.0.2", 2222)


def lost_at_egress(switch: Switch) -> dict[int, tuple[int, int]]:
    """Return the packets and bytes lost by port, of three frames and of those that prove that no frame comes out."""
    switch.own_address()
    switch.forward(THERE.mac, 2)
    switch.set_loss(LOSS_OUT, 2, ALL)
    switch.deaf_ports = {2}
    switch.exchange(*[(1, frames.udp_frame(HERE, THERE, b"a frame"))] * 3).expect()
    return switch.client.read_counters(LOSSES_OUT)


@pytest.mark.parametrize("profile", [PROFILES[0], pytest.param(PROFILES[2], marks=pytest.mark.slow)])
def test_bytes_that_are_lost_at_egress(profile: str) -> None:
    """The counters are those of sim, since frames leave as they came. test_fuzz.py compares the counters of ingress."""
    try:
        with TofinoSwitch(profile) as ours, Switch("sim") as others:
            counted = lost_at_egress(ours)
            assert counted[2][0] > 3
            assert counted == lost_at_egress(others)
    except Unavailable as missing:
        pytest.skip(str(missing))
