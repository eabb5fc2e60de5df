# SPDX-License-Identifier: Apache-2.0
"""The ports that entries send to. Of the ports of a link group (LAG, equal paths), any that is up will do.

An entry keeps its port until that one is down, and does not return to it afterwards. So it stays with the other end:
a bond in mode active-backup only receives at the link to which it has moved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import finsy as fy

from p4reduce_controller.switches.aggregator import DOWN

Forwarding = fy.P4TableEntry | fy.P4MulticastGroupEntry


class EgressPorts:
    """The ports of one switch. `lag_of`: returns the group that has a port, or ()."""

    def __init__(self, lag_of: Callable[[int], tuple[int, ...]]) -> None:
        self._lag_of = lag_of
        self._down: frozenset[int] = frozenset()

    def update(self, states: Mapping[int, str]) -> None:
        """Replace the states of all ports. If they are unknown ({}), those that were down still count as down."""
        if states:
            self._down = frozenset(port for port, state in states.items() if state in DOWN)

    def live(self, port: int) -> int:
        """Return the port, or if it is down, the next one of its group that is not."""
        group = self._lag_of(port) if port in self._down else ()
        at = group.index(port) if group else 0
        return next((one for one in (*group[at:], *group[:at]) if one not in self._down), port)

    def first(self, port: int) -> int:
        """Return the first port of the port's group, which stands for all of them."""
        return (self._lag_of(port) or (port,))[0]


def with_ports(entry: Forwarding, choose: Callable[[int], int]) -> Forwarding:
    """Return the entry with each port that it sends to replaced by another one; the same object if none changes."""
    if isinstance(entry, fy.P4MulticastGroupEntry):
        ports = [_port_and_instance(one) for one in entry.replicas]
        chosen = [(choose(port), instance) for port, instance in ports]
        return entry if chosen == ports else replace(entry, replicas=list(dict.fromkeys(chosen)))
    action = entry.action
    if not isinstance(action, fy.Action) or "port" not in action.args:
        return entry
    port = choose(action.args["port"])
    same = port == action.args["port"]
    return entry if same else replace(entry, action=fy.Action(action.name, **{**action.args, "port": port}))


def with_ports_of(entry: Forwarding, other: Forwarding) -> Forwarding:
    """Return the entry with the ports of another one that is equal otherwise."""
    if isinstance(entry, fy.P4TableEntry) and isinstance(other, fy.P4TableEntry):
        return replace(entry, action=other.action)
    assert isinstance(entry, fy.P4MulticastGroupEntry)
    assert isinstance(other, fy.P4MulticastGroupEntry)
    return replace(entry, replicas=other.replicas)


def _port_and_instance(replica: Any) -> tuple[int, int]:
    """Return a replica's port and instance: finsy accepts a port alone, a pair, or its own type."""
    if isinstance(replica, int):
        return replica, 0
    return replica if isinstance(replica, tuple) else (replica.port, replica.instance)
