# SPDX-License-Identifier: Apache-2.0
"""Hosts in network namespaces of their own, and their links to the switch and to the controller."""

from __future__ import annotations

from p4reduce_bench.processes.network import without_ipv6
from tests.support.own_network import Namespace, ip

CONTROLLER = "10.8.0.254"


def connect(switches: Namespace, host: Namespace, number: int) -> None:
    """Give a host a way to the controller, beside its links to the switch."""
    with switches.entered():
        ip("link", "add", f"control{number}", "type", "veth", "peer", "name", "control", "netns", host.path)
        ip("address", "add", f"{CONTROLLER}/32", "peer", f"10.8.0.{number}", "dev", f"control{number}")
        ip("link", "set", f"control{number}", "up")
    with host.entered():
        ip("address", "add", f"10.8.0.{number}/32", "peer", CONTROLLER, "dev", "control")
        ip("link", "set", "control", "up")


def cable(switches: Namespace, port: str, host: Namespace, link: str, mac: str) -> None:
    with switches.entered():
        ip("link", "add", port, "type", "veth", "peer", "name", link, "address", mac, "netns", host.path)
    for namespace, end in ((switches, port), (host, link)):
        with namespace.entered():
            without_ipv6(end)
            ip("link", "set", end, "up")
