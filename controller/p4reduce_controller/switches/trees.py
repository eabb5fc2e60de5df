# SPDX-License-Identifier: Apache-2.0
"""The trees of switches: each job's slots are striped over the trees, and a tree is a root with leaves below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from p4reduce.protocol.constants import MAX_WORKERS, PARENT


class Misplaced(Exception):
    """An error: the ranks of a job cannot be served where they are. The message says why."""


@dataclass(frozen=True)
class Uplink:
    """The `port` of a switch that leads to its parent, the switch at index `parent`."""

    port: int
    parent: int


@dataclass(frozen=True)
class Node:
    """A switch in a job's tree, and the ranks and switches that are its workers, in this order."""

    switch: int
    ranks: tuple[int, ...]
    children: tuple[int, ...]
    parent: int | None


@dataclass(frozen=True)
class Trees:
    """The switches' names, and the uplink of each switch that is not a root, by its index.

    Raises ValueError if the uplinks form a cycle.
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
                    break  # a cycle that does not contain this switch

    @property
    def roots(self) -> tuple[int, ...]:
        return tuple(switch for switch in range(len(self.names)) if switch not in self.uplinks)

    def path(self, switch: int) -> list[int]:
        """Return the path from a switch to its root, both included."""
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
        """Return the switches of one tree that have something to add for a job, root first.

        Raises Misplaced if a switch would have more workers than it can count.

        `places`: the switch of each rank that sends.
        """
        paths = [self.path(switch) for switch in places.values()]
        used = {switch for path in paths for switch in path}
        # The lowest switch that all paths have in common is the job's root.
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
