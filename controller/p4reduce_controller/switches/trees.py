# SPDX-License-Identifier: Apache-2.0
"""How switches hang together: each job's slots are dealt over trees, and a tree is a root with leaves below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from p4reduce.protocol.constants import MAX_WORKERS, PARENT


class Misplaced(Exception):
    """The ranks of a job cannot be served where they are; the message says why."""


@dataclass(frozen=True)
class Uplink:
    """The `port` of a switch behind which its parent is: switch number `parent`."""

    port: int
    parent: int


@dataclass(frozen=True)
class Node:
    """A switch in a job's tree: whose packets it adds up, ranks that send first, in the order of their places as
    workers."""

    switch: int
    ranks: tuple[int, ...]
    children: tuple[int, ...]
    parent: int | None


@dataclass(frozen=True)
class Trees:
    """`names` of the switches; `uplinks` by the number of a switch, for all that are not the root of a tree.

    Raises ValueError where following the uplinks leads around in a circle.
    """

    names: Sequence[str]
    uplinks: Mapping[int, Uplink] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for switch in self.uplinks:
            path = [switch]
            while path[-1] in self.uplinks:
                path.append(self.uplinks[path[-1]].parent)
                if path[-1] == switch:
                    raise ValueError(f"the uplinks form a cycle: {', '.join(self.names[at] for at in path)}")
                if len(path) > len(self.names):
                    break  # into a circle that another switch is on

    @property
    def roots(self) -> tuple[int, ...]:
        return tuple(switch for switch in range(len(self.names)) if switch not in self.uplinks)

    def path(self, switch: int) -> list[int]:
        """From a switch to its root, both included."""
        path = [switch]
        while path[-1] in self.uplinks:
            path.append(self.uplinks[path[-1]].parent)
        return path

    def children(self, switch: int) -> set[int]:
        return {child for child, uplink in self.uplinks.items() if uplink.parent == switch}

    def tree(self, switch: int) -> int:
        return self.roots.index(self.path(switch)[-1])

    def among(self, switches: Sequence[int], tree: int) -> tuple[int, ...]:
        return tuple(switch for switch in switches if self.tree(switch) == tree)

    def nodes(self, places: Mapping[int, int]) -> list[Node]:
        """One tree of a job whose sending ranks are at these of its switches: those that have something to add up, root
        first.

        Raises Misplaced where a switch would have more workers than it can count.
        """
        paths = [self.path(switch) for switch in places.values()]
        used = {switch for path in paths for switch in path}
        # Where all come together is root enough.
        root = next(switch for switch in paths[0] if all(switch in path for path in paths))
        used -= set(self.path(root)[1:])
        nodes = []
        for switch in sorted(used, key=lambda switch: len(self.path(switch))):
            parent = None if switch == root else self.uplinks[switch].parent
            children = tuple(other for other in sorted(used - {root}) if self.uplinks[other].parent == switch)
            ranks = tuple(sorted(rank for rank, at in places.items() if at == switch))
            most = MAX_WORKERS if parent is None else PARENT
            if len(ranks) + len(children) > most:
                raise Misplaced(
                    f"{len(ranks)} workers and {len(children)} switches are below {self.names[switch]}, and a switch "
                    f"adds up at most {most} of them"
                )
            nodes.append(Node(switch, ranks, children, parent))
        return nodes
