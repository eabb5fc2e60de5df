# SPDX-License-Identifier: Apache-2.0
"""Where a job has its place: of what is asked and what is free, without changing either.

First come the slots of switches that every job needs, when the first rank joins; then, when all ranks have been heard,
those of the others on their way, and what each switch and each rank is told.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from p4reduce.control import jobs_pb2 as pb
from p4reduce.protocol.aggregators import slots_at_each, slots_of, to_aggregator, to_thread
from p4reduce_controller.aggregator import Heard, Layout, Parent, Placement
from p4reduce_controller.frames import Endpoint
from p4reduce_controller.hosts import Hosts
from p4reduce_controller.job import Job, Member
from p4reduce_controller.pools import PoolFull, SlotPool, SlotRange
from p4reduce_controller.reports import interval
from p4reduce_controller.sharing import how_to_be_fewer
from p4reduce_controller.trees import Misplaced, Node, Trees, Uplink


@dataclass(frozen=True)
class Site:
    """The switches: the layout of every one, where workers send to, and how they hang together."""

    layout: Layout
    addresses: tuple[Endpoint, ...]
    trees: Trees
    threads: int = 1

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
        return Site(self.layout, self.addresses * threads, Trees([*self.trees.names] * threads, uplinks), threads)

    @property
    def switches(self) -> int:
        """How many there are."""
        return len(self.addresses) // self.threads

    def places(self, switch: int) -> list[int]:
        """Those of one switch, thread after thread."""
        return list(range(switch, len(self.addresses), self.switches))

    def slot_at(self, half: int, slots: int) -> tuple[int, int]:
        """The tree that has this half of a job of so many slots, and which it is there."""
        thread, own = to_thread(half, slots, self.threads)
        trees = len(self.trees.roots) // self.threads
        tree, there = to_aggregator(own, trees)
        return thread * trees + tree, there

    def pool_at(self, place: int, slots: int) -> int:
        """How many slots a job of so many has at that place, or would have if it were on the way."""
        own = slots_of(place // self.switches, slots, self.threads)
        return slots_at_each(own, len(self.trees.roots) // self.threads)

    def pools_at(self, switch: int, slots: int) -> int:
        """The same at all places of that switch."""
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
        """The switches that a rank says HELLO to, tree after tree: all, or of a tree the one that it has named."""
        switches: list[int] = []
        for tree in range(len(self.trees.roots)):
            every = self.trees.among(range(len(self.addresses)), tree)
            switches += [switch for switch in every if self.trees.names[switch] == named] or every
        return switches

    def heard_everywhere(self, heard: Mapping[int, Heard]) -> bool:
        """In every tree."""
        return len(heard) == len(self.trees.roots)

    def leads_to_a_switch(self, switch: int, port: int, children: Mapping[int, Heard]) -> bool:
        """`children`: where each switch with a parent was heard by it."""
        uplinks = self.trees.uplinks
        below = (children[child] for child, up in uplinks.items() if up.parent == switch and child in children)
        return (switch in uplinks and uplinks[switch].port == port) or any(child.port == port for child in below)


def find_slots(site: Site, slots: int, pools: Sequence[SlotPool], switches: Iterable[int]) -> dict[int, SlotRange]:
    """A free range at each of these places for a job of so many slots. Raises PoolFull, which names the switch."""
    wanted: dict[int, list[int]] = {}
    for place in switches:
        wanted.setdefault(place % site.switches, []).append(place)
    ranges: dict[int, SlotRange] = {}
    for switch, places in wanted.items():
        counts = [site.pool_at(place, slots) for place in places]
        try:
            first = pools[switch].find(sum(counts)).first  # in a row
        except PoolFull as error:
            where = f" at the switch {site.addresses[switch]}" if len(pools) > 1 else ""
            raise PoolFull(f"{error}{where}") from None
        for place, count in zip(places, counts, strict=True):
            ranges[place] = SlotRange(first, count)
            first += count
    return ranges


def check_room(site: Site, slots: int, pools: Sequence[SlotPool]) -> None:
    """Raises PoolFull where in some tree no switch has room for a job of so many slots."""
    for tree in range(len(site.trees.roots) // site.threads):
        roomiest = max(site.trees.among(range(len(pools)), tree), key=lambda switch: pools[switch].longest)
        find_slots(site, slots, pools, site.places(roomiest))


def on_the_way(site: Site, job: Job) -> list[int]:
    """The switches that take part, when all ranks have been heard. Raises Misplaced."""
    return [node.switch for tree in range(len(site.trees.roots)) for node in _nodes(site, job, tree)]


def _nodes(site: Site, job: Job, tree: int) -> list[Node]:
    try:
        return site.trees.nodes(
            {rank: site.trees.among(list(job.members[rank].heard), tree)[0] for rank in job.workers}
        )
    except Misplaced as error:
        raise Misplaced(f"{error}; {how_to_be_fewer(job)}") from None


def check_kept(site: Site, job: Job) -> None:
    """Raises ValueError or Misplaced for a job that cannot have been placed at this site."""
    roots = len(site.trees.roots)
    for rank, member in job.members.items():
        at = sorted(map(site.trees.tree, member.heard))
        if at != list(range(roots)) or not set(member.heard) <= set(site.within_reach(member.switch)):
            raise ValueError(f"rank {rank} is not at one switch of each of the {roots} trees")
    if job.ranges.keys() != set(on_the_way(site, job)):
        raise ValueError("it has slots at other switches than those that its ranks need")
    for switch, taken in job.ranges.items():
        if taken.count != site.pool_at(switch, job.slots):
            raise ValueError(f"slots={job.slots}, of which {taken.count} at each switch")


def place(site: Site, job: Job, children: Mapping[int, Heard], hosts: Sequence[Hosts]) -> dict[int, Placement]:
    """What each switch that takes part is told, by its number. Raises Misplaced.

    `children`: where each switch with a parent was heard by it. `hosts`: of each switch; the job's are claimed,
    and so are its slots.
    """
    children = {place: heard for switch, heard in children.items() for place in site.places(switch)}
    placements = {}
    groups = set()
    for tree in range(len(site.trees.roots)):
        nodes = _nodes(site, job, tree)
        groups.add(frozenset(node.ranks for node in nodes if node.ranks))
        by_switch = {node.switch: node for node in nodes}
        for node in nodes:
            if silent := [child for child in node.children if child not in children]:
                names = site.trees.names
                raise Misplaced(
                    f"the switch {names[silent[0]]} has not been heard by its parent {names[node.switch]}; check the "
                    f"cable at its port {site.trees.uplinks[silent[0]].port}, and that both are there"
                )
            thread, switch = divmod(node.switch, site.switches)
            number, generation = job.numbers[thread]
            workers = [job.members[rank].heard[node.switch] for rank in node.ranks]
            below = [children[child] for child in node.children]
            placements[node.switch] = Placement(
                number,
                generation,
                job.ranges[node.switch],
                job.first_seq,
                (*workers, *below),
                len(node.children),
                _parent(site, node, by_switch),
                (*hosts[switch].learned_for(number), *((child.sender.mac, child.port) for child in below)),
                job.abort_secret,
            )
    if len(groups) > 1:
        raise Misplaced("ranks that share a switch in one tree do not in another, and they must in all or in none")
    return placements


def _parent(site: Site, node: Node, by_switch: Mapping[int, Node]) -> Parent | None:
    if node.parent is None:
        return None
    above = by_switch[node.parent]
    index = len(above.ranks) + above.children.index(node.switch)
    return Parent(site.trees.uplinks[node.switch].port, site.addresses[node.parent], index)


def told_when_ready(site: Site, job: Job, member: Member) -> pb.Ready:
    """What that rank is told then. Where every rank sends for itself to every switch, no places are."""
    told = pb.Ready(hosts=job.hosts, answers=True, report_s=interval(job.world_size))
    shared = len(job.workers) < job.world_size
    if shared:
        told.leaders.extend(job.leaders.values())
    if site.trees.uplinks:
        could = site.within_reach(member.switch)
        told.aggregators.extend(sorted(could.index(at) for at in member.heard))
    if shared or site.trees.uplinks:
        told.peers.extend(job.workers_at(next(iter(member.heard))))
    return told
