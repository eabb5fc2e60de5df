# SPDX-License-Identifier: Apache-2.0
"""Configuration files of a topology's controllers, in TOML."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from p4reduce_topos.model import Topology


def settings(topology: Topology, grpc: Callable[[str], str]) -> str:
    """Return the configuration of the job controller: every aggregating switch with its ports, addresses and uplink.

    A single root has an aggregation tree below it. Several roots share the slots of each job, and the other switches
    only forward packets to them.
    """
    parents = topology.tree(topology.roots[0]).parents if len(topology.roots) == 1 else {}
    parts = []
    for switch in topology.aggregating:
        table = {"name": switch, **_switch(topology, switch, grpc(switch))}
        if switch in parents:
            table["uplink"] = {"port": topology.port(switch, parents[switch]), "to": parents[switch]}
        parts.append(f"[[switches]]\n{_toml(table)}")
    return "\n".join(parts)


def forwarding_settings(topology: Topology, switch: str, grpc: str) -> str:
    """Return the configuration of the controller of a switch that only forwards."""
    return _toml(_switch(topology, switch, grpc))


def _switch(topology: Topology, switch: str, grpc: str) -> dict[str, Any]:
    return {
        "switch": [grpc],
        "address": [topology.ip(switch)],
        "mac": [topology.mac(switch)],
        "ports": list(topology.flood_ports(switch)),
        "hosts": topology.forwarding(switch),
    }


def _toml(table: Mapping[str, Any]) -> str:
    """Return the lines of a TOML table, in which strings, numbers and lists look as in JSON."""
    lines = []
    for key, value in table.items():
        if isinstance(value, dict):
            inner = ", ".join(f"{json.dumps(name)} = {json.dumps(one)}" for name, one in value.items())
            lines.append(f"{key} = {{ {inner} }}\n")
        else:
            lines.append(f"{key} = {json.dumps(value)}\n")
    return "".join(lines)
