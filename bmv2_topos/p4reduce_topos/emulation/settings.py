# SPDX-License-Identifier: Apache-2.0
"""Configuration files of a topology's controllers, in TOML."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from p4reduce_topos.model import Topology


def settings(topology: Topology, grpc: Callable[[str], str]) -> str:
    """Return the configuration of the job controller: every aggregating switch with its ports, addresses and uplinks.

    Several roots share the slots of each job. The other switches are in their trees, or only forward packets to them.
    """
    trees = [topology.tree(root) for root in topology.roots] if topology.has_trees else []
    parts = []
    for switch in topology.aggregating:
        table = {"name": switch, **_switch(topology, switch, grpc(switch))}
        if parents := dict.fromkeys(tree.parents[switch] for tree in trees if switch in tree.parents):
            table["uplink"] = [{"port": topology.port(switch, parent), "to": parent} for parent in parents]
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
        lines.append(f"{key} = {_value(value)}\n")
    return "".join(lines)


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(name)} = {_value(one)}" for name, one in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return json.dumps(value)
