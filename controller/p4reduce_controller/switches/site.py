# SPDX-License-Identifier: Apache-2.0
"""The site of a job: the switches that it can use, and their trees."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from p4reduce.protocol.aggregators import slots_at_each, slots_of, to_aggregator, to_thread
from p4reduce_controller.switches.aggregator import Heard, Layout
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.trees import Trees, Uplink

GONE = -1


@dataclass(frozen=True)
class Site:
    """The switches as some jobs see them: their layout, the addresses that workers send to, and their trees.

    A site is immutable: a job keeps the site that it began with. A site index is an index into `addresses`. It stands
    for one node of a tree and one thread: thread t of node n has the site index t * `nodes` + n. A switch that is in
    several trees is a node of each.

    `numbers`: the controller's number of each node's switch, or () if these are the site indices. A switch that no job
    of this site needs any more has `GONE`.
    """

    layout: Layout
    addresses: tuple[Endpoint, ...]
    trees: Trees
    threads: int = 1
    numbers: tuple[int, ...] = ()

    def for_threads(self, threads: int) -> Site:
        """Return the site of jobs with so many threads per rank.

        Every node and every tree occurs once for each thread; those of the first thread come first.
        """
        if threads == self.threads:
            return self
        if threads not in self._by_threads:
            self._by_threads[threads] = self._with_threads(threads)
        return self._by_threads[threads]

    @cached_property
    def _by_threads(self) -> dict[int, Site]:
        return {}

    def _with_threads(self, threads: int) -> Site:
        count = len(self.addresses)
        uplinks = {
            switch + thread * count: Uplink(up.port, up.parent + thread * count)
            for thread in range(threads)
            for switch, up in self.trees.uplinks.items()
        }
        spares = frozenset(root + thread * count for thread in range(threads) for root in self.trees.spares)
        trees = Trees([*self.trees.names] * threads, uplinks, spares)
        return Site(self.layout, self.addresses * threads, trees, threads, self.numbers)

    @property
    def nodes(self) -> int:
        """The number of nodes for each thread."""
        return len(self.addresses) // self.threads

    def number(self, index: int) -> int:
        """Return the controller's number of the switch at that site index."""
        return self.numbers[index % self.nodes] if self.numbers else index % self.nodes

    @cached_property
    def _by_number(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for node in range(self.nodes):
            found.setdefault(self.number(node), []).append(node)
        return found

    def nodes_of(self, number: int) -> list[int]:
        """Return the nodes of the switch with the controller's number; [] if it is not in the site."""
        return self._by_number.get(number, [])

    def index_of(self, number: int) -> int | None:
        """Return the first node of the switch with the controller's number; None if it is not in the site."""
        return next(iter(self.nodes_of(number)), None)

    @property
    def repeats(self) -> int:
        """The most trees that a switch is in."""
        return max(map(len, self._by_number.values()))

    @cached_property
    def shares(self) -> int:
        """The most trees with slots that a switch is in."""
        return max(sum(not self.is_spare(node) for node in nodes) for nodes in self._by_number.values())

    @property
    def stripes(self) -> int:
        """The number of trees over which a thread's slots are striped."""
        return (len(self.trees.roots) - len(self.trees.spare_trees)) // self.threads

    def is_spare(self, index: int) -> bool:
        """Return whether the node is in a tree without slots."""
        return self.trees.tree(index) in self.trees.spare_trees

    def without(self, unusable: Collection[int]) -> Site:
        """Return the site of one thread without these nodes, as far as others remain.

        A tree is left out if its root is unusable and another tree's root is not. A leaf is left out if it is unusable
        and has no remaining node below it. Unusable nodes that remain are ones that some jobs do not need.
        """
        trees, every = self.trees, range(self.nodes)
        alive = [root for root in trees.roots if root not in unusable]
        kept = {switch for switch in every if not alive or trees.path(switch)[-1] in alive}
        while more := {one for one in kept & set(unusable) if one in trees.uplinks and not trees.children(one) & kept}:
            kept -= more
        return self.only(kept)

    def only(self, kept: Collection[int]) -> Site:
        """Return the site of one thread with these nodes, in the same order. They include the parents of each."""
        trees, order = self.trees, sorted(kept)
        uplinks = {
            order.index(switch): Uplink(up.port, order.index(up.parent))
            for switch, up in trees.uplinks.items()
            if switch in kept
        }
        return Site(
            self.layout,
            tuple(self.addresses[switch] for switch in order),
            Trees(
                [trees.names[switch] for switch in order],
                uplinks,
                frozenset(order.index(root) for root in trees.spares if root in kept),
            ),
            numbers=tuple(map(self.number, order)),
        )

    def indices(self, node: int) -> list[int]:
        """Return the site indices of one node, thread after thread."""
        return list(range(node, len(self.addresses), self.nodes))

    def slot_at(self, half: int, slots: int) -> tuple[int, int]:
        """Return the tree with this half of a job of so many slots, and the number of the half there."""
        thread, own = to_thread(half, slots, self.threads)
        tree, tree_half = to_aggregator(own, self.stripes)
        return thread * (len(self.trees.roots) // self.threads) + tree, tree_half

    def pool_at(self, index: int, slots: int) -> int:
        """Return how many of a job's slots are at that site index, if its tree uses that node."""
        own = slots_of(index // self.nodes, slots, self.threads)
        return slots_at_each(own, self.stripes)

    def most_at_a_switch(self, slots: int) -> int:
        """Return how many of a job's slots a switch can have, at all of its site indices."""
        return self.shares * sum(self.pool_at(index, slots) for index in self.indices(0))

    @property
    def capacity(self) -> int:
        """The most slots that one job can have."""
        return self.stripes * (self.layout.slots // self.shares)

    @property
    def always_needed(self) -> list[int]:
        """The roots without children: such a node is a whole tree, and has some of the slots of every job."""
        return [root for root in self.trees.roots if not (self.trees.children(root) or self.is_spare(root))]

    def within_reach(self, named: str) -> Sequence[int]:
        """Return the site indices that a rank sends HELLOs to, tree after tree.

        In each tree, it is that of the switch that the rank has named, or else all.
        """
        if named and named not in self.trees.names:
            named = ""
        if named not in self._within_reach:
            found: list[int] = []
            for tree in range(len(self.trees.roots)):
                every = self.trees.among(range(len(self.addresses)), tree)
                found += [index for index in every if self.trees.names[index] == named] or every
            self._within_reach[named] = found
        return self._within_reach[named]

    @cached_property
    def _within_reach(self) -> dict[str, Sequence[int]]:
        return {}

    def heard_everywhere(self, heard: Mapping[int, Heard]) -> bool:
        return len(heard) == len(self.trees.roots)

    def leads_to_a_switch(self, node: int, ports: Collection[int], children: Mapping[int, Heard]) -> bool:
        """Return whether one of the ports of the node's switch leads to a parent or a child, in any tree.

        `children`: where each node was heard by its parent.
        """
        uplinks, same = self.trees.uplinks, self.nodes_of(self.number(node))
        if any(uplinks[one].port in ports for one in same if one in uplinks):
            return True
        below = (child for one in same for child in self.trees.children(one) if child in children)
        return any(children[child].port in ports for child in below)
