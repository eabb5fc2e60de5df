# SPDX-License-Identifier: Apache-2.0
"""The control network: a bridge that connects the controller with every host, apart from the links of the topology.

Its links have no rate limit and no impairments.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from p4reduce_bench.processes.network import run
from p4reduce_topos.emulation.leftovers import mark

CONTROLLER = "10.255.255.254:7700"
_BRIDGE = "control"
_END = "ctl-"  # the prefix of an interface: the bridge's end of a host's link


def make(hosts: Mapping[str, int]) -> None:
    """Create the bridge and its links.

    hosts: for each host's name, the id of a process in its network namespace.
    """
    run("ip", "link", "add", _BRIDGE, "type", "bridge")
    mark(_BRIDGE)
    run("ip", "address", "add", f"{CONTROLLER.partition(':')[0]}/16", "dev", _BRIDGE)
    run("ip", "link", "set", _BRIDGE, "up")
    for index, (host, pid) in enumerate(hosts.items()):
        inside = ["nsenter", f"--net=/proc/{pid}/ns/net"]
        end, name = f"{_END}{host}", f"{host}-ctl"
        run("ip", "link", "add", end, "type", "veth", "peer", "name", name, "netns", str(pid))
        mark(end)
        run("ip", "link", "set", end, "master", _BRIDGE, "up")
        run(*inside, "ip", "address", "add", f"10.255.0.{index + 1}/16", "dev", name)
        run(*inside, "ip", "link", "set", name, "up")


def partition(hosts: Iterable[str], *, cut: bool) -> None:
    """Disconnect hosts from the control network, or connect them again."""
    for host in hosts:
        run("ip", "link", "set", f"{_END}{host}", "down" if cut else "up")
