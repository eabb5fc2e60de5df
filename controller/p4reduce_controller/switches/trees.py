# SPDX-License-Identifier: Apache-2.0
"""The trees of switches: each job's slots are striped over the trees, and a tree is a root with leaves below it.

A switch with several parents is in several trees. It is a node of each. Trees of spare roots come last, and have no
slots at first: those of lost trees go on there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from graphlib import CycleError, TopologicalSorter

from p4reduce.protocol.constants import MAX_WORKERS, PARENT


class Misplaced(Exception):
    """An error: the ranks of a job cannot be served where they are. The message says why."""


@dataclass(frozen=True)
class Uplink:
    """The `port` of a node's switch that leads to its parent, the node at index `parent`."""

    port: int
    parent: int


@dataclass(frozen=True)
class Node:
    """A node of a job's tree, and the ranks and nodes that are its workers, in this order."""

    switch: int
    ranks: tuple[int, ...]
    children: tuple[int, ...]
    parent: int | None


@dataclass(frozen=True)
class Trees:
    """The name of each node's switch, and the uplink of each node that is not a root, by its index.

    Raises ValueError if the uplinks form a cycle.

    `spares`: the roots that are spares. Those of a thread's trees come last.
    """

    names: Sequence[str]
    uplinks: Mapping[int, Uplink] = field(default_factory=dict)
    spares: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        for switch in self.uplinks:
            path = [switch]
            while path[-1] in self.uplinks:
                path.append(self.uplinks[path[-1]].parent)
                if path[-1] == switch:
                    raise ValueError(f"the uplinks form a cycle: {', '.join(self.names[at] for at in path)}")
                if len(path) > len(self.names):
                    break  # a cycle that does not contain this switch

    @cached_property
    def roots(self) -> tuple[int, ...]:
        return tuple(switch for switch in range(len(self.names)) if switch not in self.uplinks)

    @cached_property
    def spare_trees(self) -> frozenset[int]:
        """The trees that have no slots at first. If all roots are spares, no tree is one."""
        if self.spares.issuperset(self.roots):
            return frozenset()
        return frozenset(map(self.tree, self.spares))

    @cached_property
    def _children(self) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {switch: set() for switch in range(len(self.names))}
        for child, uplink in self.uplinks.items():
            found[uplink.parent].add(child)
        return found

    def path(self, switch: int) -> list[int]:
        """Return the path from a node to its root, both included."""
        path = [switch]
        while path[-1] in self.uplinks:
            path.append(self.uplinks[path[-1]].parent)
        return path

    def children(self, switch: int) -> set[int]:
        return self._children[switch]

    def tree(self, switch: int) -> int:
        """Return the number of the node's tree, which is that of its root among the roots."""
        return self._trees[switch]

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """For each node a text of its own: the switch's name, and the tree as well if the switch has several nodes.

        Names contain no tab.
        """
        times = Counter(self.names)
        return tuple(name if times[name] == 1 else f"{name}\t{self.tree(node)}" for node, name in enumerate(self.names))

    @cached_property
    def _trees(self) -> tuple[int, ...]:
        numbers = {root: number for number, root in enumerate(self.roots)}
        return tuple(numbers[self.path(switch)[-1]] for switch in range(len(self.names)))

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


NamedUplink = tuple[int, str]
"""A switch's port toward a parent, and the parent's name."""


def trees_of(
    parents: Mapping[str, Sequence[NamedUplink]], spares: Collection[str] = ()
) -> tuple[Trees, tuple[int, ...]]:
    """Return the trees of these switches, and for each node the number of its switch among them.

    A root is a switch without parents. Raises ValueError if a switch has several ways to a root, or none, or if a spare
    is not a root.

    `parents`: the uplinks of each switch, by its name.
    `spares`: the names of those that are spares.
    """
    for name in spares:
        if parents[name]:
            raise ValueError(f"the switch {name} is a spare and has a parent: accepted are switches without one")
    given = {name: number for number, name in enumerate(parents)}
    numbers = {name: number for number, name in enumerate(sorted(parents, key=lambda name: name in spares))}
    toward: dict[
        str, dict[str, NamedUplink | None]
    ] = {}  # for each switch and root above it, the uplink that leads there
    for name in _parents_first(parents):
        toward[name] = {} if parents[name] else {name: None}
        for port, parent in parents[name]:
            for root in toward[parent]:
                if other := toward[name].get(root):
                    raise ValueError(
                        f"the switch {name} has two ways to {root}, by {other[1]} and {parent}: give it one"
                    )
                toward[name][root] = port, parent
    _check_alike(parents, toward)
    nodes = [(name, root) for name in numbers for root in sorted(toward[name], key=numbers.__getitem__)]
    indices = {node: index for index, node in enumerate(nodes)}
    uplinks = {}
    for (name, root), index in indices.items():
        if up := toward[name][root]:
            port, parent = up
            uplinks[index] = Uplink(port, indices[parent, root])
    roots = frozenset(index for (name, _), index in indices.items() if name in spares)
    return Trees([name for name, _ in nodes], uplinks, roots), tuple(given[name] for name, _ in nodes)


def _parents_first(parents: Mapping[str, Sequence[NamedUplink]]) -> list[str]:
    try:
        return list(TopologicalSorter({name: [up for _, up in ups] for name, ups in parents.items()}).static_order())
    except CycleError as error:
        raise ValueError(f"the uplinks form a cycle: {', '.join(reversed(error.args[1]))}") from None


def _check_alike(parents: Mapping[str, Sequence[NamedUplink]], toward: Mapping[str, Mapping[str, object]]) -> None:
    """Raise ValueError if trees have a switch in common, but not all that have no switch below them.

    The ranks of such a switch could not be in every tree.
    """
    above = {parent for uplinks in parents.values() for _, parent in uplinks}
    lowest = {name: set(roots) for name, roots in toward.items() if name not in above and parents[name]}
    for name, roots in lowest.items():
        for other, others in lowest.items():
            if roots & others and roots - others:
                root = min(roots - others)
                raise ValueError(
                    f"the switch {name} is below {root} and {other} is not, although both are below "
                    f"{min(roots & others)}: give both the same roots"
                )
