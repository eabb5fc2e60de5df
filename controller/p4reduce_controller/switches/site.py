# SPDX-License-Identifier: Apache-2.0
"""The site of a job: the switches that it can use, and their trees."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from p4reduce.protocol.aggregators import slots_at_each, slots_of, to_aggregator, to_thread
from p4reduce_controller.switches.aggregator import Heard, Layout
from p4reduce_controller.switches.frames import Endpoint
from p4reduce_controller.switches.trees import Trees, Uplink

GONE = -1


@dataclass(frozen=True)
class Site:
    """The switches as some jobs see them: their layout, the addresses that workers send to, and their trees.

    A site is immutable: a job keeps the site that it began with. A site index is an index into `addresses`. It stands
    for one switch and one thread: thread t of switch s has the site index t * `switches` + s.

    `numbers`: the controller's number of each switch, or () if these are the site indices. A switch that no job of this
    site needs any more has `GONE`.
    """

    layout: Layout
    addresses: tuple[Endpoint, ...]
    trees: Trees
    threads: int = 1
    numbers: tuple[int, ...] = ()

    def for_threads(self, threads: int) -> Site:
        """Return the site of jobs with so many threads per rank.

        Every switch and every tree occurs once for each thread; those of the first thread come first.
        """
        if threads == self.threads:
            return self
        count = len(self.addresses)
        uplinks = {
            switch + thread * count: Uplink(up.port, up.parent + thread * count)
            for thread in range(threads)
            for switch, up in self.trees.uplinks.items()
        }
        return Site(
            self.layout, self.addresses * threads, Trees([*self.trees.names] * threads, uplinks), threads, self.numbers
        )

    @property
    def switches(self) -> int:
        """The number of switches."""
        return len(self.addresses) // self.threads

    def number(self, index: int) -> int:
        """Return the controller's number of the switch at that site index."""
        return self.numbers[index % self.switches] if self.numbers else index % self.switches

    def index_of(self, number: int) -> int | None:
        """Return the first site index of the switch with the controller's number; None if it is not in the site."""
        numbers = self.numbers or range(self.switches)
        return numbers.index(number) if number in numbers else None

    def without(self, unusable: Collection[int]) -> Site:
        """Return the site of one thread without these switches, as far as others remain.

        A tree is left out if its root is unusable and another tree's root is not. A leaf is left out if it is unusable
        and has no remaining switch below it. Unusable switches that remain are ones that some jobs do not need.
        """
        trees, every = self.trees, range(self.switches)
        alive = [root for root in trees.roots if root not in unusable]
        kept = {switch for switch in every if not alive or trees.path(switch)[-1] in alive}
        while more := {one for one in kept & set(unusable) if one in trees.uplinks and not trees.children(one) & kept}:
            kept -= more
        order = sorted(kept)
        uplinks = {
            order.index(switch): Uplink(up.port, order.index(up.parent))
            for switch, up in trees.uplinks.items()
            if switch in kept
        }
        return Site(
            self.layout,
            tuple(self.addresses[switch] for switch in order),
            Trees([trees.names[switch] for switch in order], uplinks),
            numbers=tuple(map(self.number, order)),
        )

    def indices(self, switch: int) -> list[int]:
        """Return the site indices of one switch, thread after thread."""
        return list(range(switch, len(self.addresses), self.switches))

    def slot_at(self, half: int, slots: int) -> tuple[int, int]:
        """Return the tree with this half of a job of so many slots, and the number of the half there."""
        thread, own = to_thread(half, slots, self.threads)
        trees = len(self.trees.roots) // self.threads
        tree, tree_half = to_aggregator(own, trees)
        return thread * trees + tree, tree_half

    def pool_at(self, index: int, slots: int) -> int:
        """Return how many of a job's slots are at that site index, if its tree uses that switch."""
        own = slots_of(index // self.switches, slots, self.threads)
        return slots_at_each(own, len(self.trees.roots) // self.threads)

    def pools_at(self, switch: int, slots: int) -> int:
        """Return how many of a job's slots are at all site indices of that switch."""
        return sum(self.pool_at(index, slots) for index in self.indices(switch))

    @property
    def capacity(self) -> int:
        """The most slots that one job can have."""
        return len(self.trees.roots) // self.threads * self.layout.slots

    @property
    def always_needed(self) -> list[int]:
        """The roots without children: such a switch is a whole tree, and has some of the slots of every job."""
        return [root for root in self.trees.roots if not self.trees.children(root)]

    def within_reach(self, named: str) -> list[int]:
        """Return the switches that a rank sends HELLOs to, tree after tree.

        In each tree, it is the switch that the rank has named, or else all switches.
        """
        switches: list[int] = []
        for tree in range(len(self.trees.roots)):
            every = self.trees.among(range(len(self.addresses)), tree)
            switches += [switch for switch in every if self.trees.names[switch] == named] or every
        return switches

    def heard_everywhere(self, heard: Mapping[int, Heard]) -> bool:
        return len(heard) == len(self.trees.roots)

    def leads_to_a_switch(self, switch: int, port: int, children: Mapping[int, Heard]) -> bool:
        """Return whether the port leads to a parent or a child.

        `children`: where each switch was heard by its parent.
        """
        uplinks = self.trees.uplinks
        below = (children[child] for child, up in uplinks.items() if up.parent == switch and child in children)
        return (switch in uplinks and uplinks[switch].port == port) or any(child.port == port for child in below)
