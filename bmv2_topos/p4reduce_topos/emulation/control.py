# SPDX-License-Identifier: Apache-2.0
"""The network for control, beside the topology's links and not shaped: the controller and every host belong to it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from p4reduce_bench.processes.network import run
from p4reduce_topos.emulation.leftovers import mark

CONTROLLER = "10.255.255.254:7700"
_BRIDGE = "control"
_END = "ctl-"  # and a host: our end of its link


def make(hosts: Mapping[str, int]) -> None:
    """hosts: name -> a process in its network namespace."""
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


def partition(hosts: Iterable[str], *, apart: bool) -> None:
    """Cuts hosts off it, or joins them to it again."""
    for host in hosts:
        run("ip", "link", "set", f"{_END}{host}", "down" if apart else "up")
