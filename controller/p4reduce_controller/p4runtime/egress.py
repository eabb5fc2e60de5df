# SPDX-License-Identifier: Apache-2.0
"""The ports that entries send to. Of the ports of a link group (LAG, equal paths), any that is up will do.

An entry keeps its port until that one is down, and does not return to it afterwards. So it stays with the other end:
a bond in mode active-backup only receives at the link to which it has moved.

Between two switches, frames must be flooded over the same cable of a group in both directions: over two cables, they
would go round forever. The leaf chooses the cable and sends its HELLOs there, and the parent floods to the port at
which it hears them.
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
        self._up: frozenset[int] = frozenset()
        self._pinned: dict[int, int] = {}  # by the first port of the group

    def update(self, states: Mapping[int, str]) -> None:
        """Replace the states of all ports. If they are unknown ({}), those that were down still count as down."""
        if states:
            self._down = frozenset(port for port, state in states.items() if state in DOWN)
            self._up = frozenset(states) - self._down

    def live(self, port: int) -> int:
        """Return the port, or if it is down, the next one of its group that is up.

        A port that the switch does not report may not exist, so it is not chosen.
        """
        group = self._lag_of(port) if port in self._down else ()
        at = group.index(port) if group else 0
        return next((one for one in (*group[at:], *group[:at]) if one in self._up), port)

    def pin(self, port: int) -> None:
        """Let frames for the port's group be flooded to this port, whatever its state."""
        self._pinned[self.first(port)] = port

    def flooded(self, port: int) -> int:
        """Return the port of the port's group that frames are flooded to, if they are flooded to `port` now."""
        first = self.first(port)
        return self._pinned[first] if first in self._pinned else self.live(port)

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


def ports_of(group: fy.P4MulticastGroupEntry) -> list[int]:
    """Return the ports that the group sends to."""
    return [_port_and_instance(one)[0] for one in group.replicas]


def _port_and_instance(replica: Any) -> tuple[int, int]:
    """Return a replica's port and instance: finsy accepts a port alone, a pair, or its own type."""
    if isinstance(replica, int):
        return replica, 0
    return replica if isinstance(replica, tuple) else (replica.port, replica.instance)
