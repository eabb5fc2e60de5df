# SPDX-License-Identifier: Apache-2.0
"""Switches for jobs that are made by hand."""

from __future__ import annotations

from p4reduce_controller.switches.aggregator import Layout
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.site import Site
from p4reduce_controller.switches.trees import Trees


def site_of(switches: int) -> Site:
    """So many trees of one switch each."""
    addresses = tuple(
        Endpoint(f"02:00:00:00:01:{number:02x}", f"10.0.255.{number}", 31314) for number in range(switches)
    )
    return Site(Layout(4, 64, 512), addresses, Trees([f"switch{number}" for number in range(switches)]))
