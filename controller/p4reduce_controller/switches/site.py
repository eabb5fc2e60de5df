# SPDX-License-Identifier: Apache-2.0
"""Which switches there are for a job, and how they hang together."""

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
    """The switches as they are for some jobs: the layout of every one, where workers send to, and how they hang
    together. It does not change: a job keeps the one that it began with, and its places are of that.

    `numbers`: what the controller calls each of them, or () for their places; `GONE` for one that no job of this site
    needs any more.
    """

    layout: Layout
    addresses: tuple[Endpoint, ...]
    trees: Trees
    threads: int = 1
    numbers: tuple[int, ...] = ()

    def for_threads(self, threads: int) -> Site:
        """As jobs see it of which each rank has so many: every switch, and every tree, has as many places, one for each
        thread, and those of the first thread come first."""
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
        """How many there are."""
        return len(self.addresses) // self.threads

    def number(self, place: int) -> int:
        """Return the controller's, of the switch there."""
        return self.numbers[place % self.switches] if self.numbers else place % self.switches

    def place_of(self, number: int) -> int | None:
        """Return the first of the switch that the controller calls so, or None where it is not here."""
        numbers = self.numbers or range(self.switches)
        return numbers.index(number) if number in numbers else None

    def without(self, unusable: Collection[int]) -> Site:
        """For one thread: without these of its switches, as far as there are others.

        A tree goes whose root is unusable, where another's is not, and a leaf that has no other below it. What is left
        and unusable are switches that some jobs do not need.
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

    def places(self, switch: int) -> list[int]:
        """Those of one switch, thread after thread."""
        return list(range(switch, len(self.addresses), self.switches))

    def slot_at(self, half: int, slots: int) -> tuple[int, int]:
        """Return the tree that has this half of a job of so many slots, and which it is there."""
        thread, own = to_thread(half, slots, self.threads)
        trees = len(self.trees.roots) // self.threads
        tree, there = to_aggregator(own, trees)
        return thread * trees + tree, there

    def pool_at(self, place: int, slots: int) -> int:
        """How many slots a job of so many has at that place, or would have if it were on the way."""
        own = slots_of(place // self.switches, slots, self.threads)
        return slots_at_each(own, len(self.trees.roots) // self.threads)

    def pools_at(self, switch: int, slots: int) -> int:
        """Return the same at all places of that switch."""
        return sum(self.pool_at(place, slots) for place in self.places(switch))

    @property
    def capacity(self) -> int:
        """Slots that one job can have at most."""
        return len(self.trees.roots) // self.threads * self.layout.slots

    @property
    def always_needed(self) -> list[int]:
        """Switches that are a whole tree: each has some of the slots of every job."""
        return [root for root in self.trees.roots if not self.trees.children(root)]

    def within_reach(self, named: str) -> list[int]:
        """Return the switches that a rank says HELLO to, tree after tree: all, or of a tree the one that it has
        named."""
        switches: list[int] = []
        for tree in range(len(self.trees.roots)):
            every = self.trees.among(range(len(self.addresses)), tree)
            switches += [switch for switch in every if self.trees.names[switch] == named] or every
        return switches

    def heard_everywhere(self, heard: Mapping[int, Heard]) -> bool:
        return len(heard) == len(self.trees.roots)

    def leads_to_a_switch(self, switch: int, port: int, children: Mapping[int, Heard]) -> bool:
        """`children`: where each switch with a parent was heard by it."""
        uplinks = self.trees.uplinks
        below = (children[child] for child, up in uplinks.items() if up.parent == switch and child in children)
        return (switch in uplinks and uplinks[switch].port == port) or any(child.port == port for child in below)
