# SPDX-License-Identifier: Apache-2.0
"""Sites of switches, for jobs that a test constructs directly."""

from __future__ import annotations

from p4reduce_controller.switches.aggregator import Layout
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.site import Site
from p4reduce_controller.switches.trees import Trees


def site_of(switches: int) -> Site:
    """Return a site of independent switches, each a tree of its own."""
    addresses = tuple(
        Endpoint(f"02:00:00:00:01:{number:02x}", f"10.0.255.{number}", 31314) for number in range(switches)
    )
    return Site(Layout(4, 64, 512), addresses, Trees([f"switch{number}" for number in range(switches)]))
