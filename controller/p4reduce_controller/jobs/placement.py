# SPDX-License-Identifier: Apache-2.0
"""Placement of jobs on switches, computed from what is asked and what is free. Nothing is changed here.

When the first rank joins, the job gets slots of the switches that every job needs. When all ranks have been heard, it
gets those of the other switches on their paths. Then each switch and each rank is told its part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from p4reduce.control import jobs_pb2 as pb
from p4reduce.errors import list_ranks
from p4reduce_controller.jobs.job import Job, Member
from p4reduce_controller.jobs.reports import interval
from p4reduce_controller.jobs.switches import unheard
from p4reduce_controller.switches.aggregator import Heard, Parent, Placement
from p4reduce_controller.switches.hosts import Hosts
from p4reduce_controller.switches.pools import PoolFull, SlotPool, SlotRange
from p4reduce_controller.switches.site import GONE, Site
from p4reduce_controller.switches.trees import Misplaced, Node

_MOST_RANKS_NAMED = 8


def find_slots(site: Site, slots: int, pools: Mapping[int, SlotPool], switches: Iterable[int]) -> dict[int, SlotRange]:
    """Return a free range at each of these site indices for a job of so many slots.

    Raises PoolFull, which names the switch.
    """
    wanted: dict[int, list[int]] = {}
    for index in switches:
        wanted.setdefault(site.number(index), []).append(index)
    ranges: dict[int, SlotRange] = {}
    for number, indices in wanted.items():
        counts = [site.pool_at(index, slots) for index in indices]
        try:
            first = pools[number].find(sum(counts)).first  # contiguous for all threads and trees
        except PoolFull as error:
            where = f" at the switch {site.addresses[indices[0]]}" if site.nodes > 1 else ""
            raise PoolFull(f"{error}{where}") from None
        for index, count in zip(indices, counts, strict=True):
            ranges[index] = SlotRange(first, count)
            first += count
    return ranges


def check_room(site: Site, slots: int, pools: Mapping[int, SlotPool]) -> None:
    """Raise PoolFull if in some tree no switch has room for a job of so many slots."""
    for tree in range(site.stripes):
        among = site.trees.among(range(site.nodes), tree)
        roomiest = max(among, key=lambda node: pools[site.number(node)].longest)
        find_slots(site, slots, pools, site.indices(roomiest))


def on_the_way(site: Site, job: Job) -> list[int]:
    """Return the site indices of the nodes that have slots, once all ranks have been heard. Raises Misplaced."""
    trees = [tree for tree in range(len(site.trees.roots)) if tree not in site.trees.spare_trees]
    return [node.switch for tree in trees for node in _nodes(site, job, tree)]


def spares_on_the_way(site: Site, job: Job) -> tuple[list[int], dict[int, str]]:
    """Return the nodes of spare trees that may take slots over, and for the other spare trees why they cannot.

    All ranks must have been heard.
    """
    if not site.trees.spare_trees:
        return [], {}
    unable = [rank for rank in job.workers if not (job.members[rank].moves and job.members[rank].spares)]
    groups = _groups(_nodes(site, job, 0))
    found, whys = [], {}
    for tree in sorted(site.trees.spare_trees):
        try:
            nodes = _nodes(site, job, tree)
        except Misplaced as error:
            whys[tree] = str(error)
            continue
        if unable:
            whys[tree] = f"{list_ranks(unable, _MOST_RANKS_NAMED)} cannot use a spare"
        elif _groups(nodes) != groups:
            whys[tree] = "ranks that share a switch do not share one there, or the other way round"
        found += [node.switch for node in nodes if tree not in whys]
    return found, whys


def _groups(nodes: Iterable[Node]) -> frozenset[tuple[int, ...]]:
    """Return the ranks that share a switch."""
    return frozenset(node.ranks for node in nodes if node.ranks)


def below(site: Site, job: Job, at: int) -> list[str]:
    """Return the names of the child switches, in the order of their worker numbers, which follow those of the ranks."""
    [node] = [node for node in _nodes(site, job, site.trees.tree(at)) if node.switch == at]
    return [site.trees.names[child] for child in node.children]


def _nodes(site: Site, job: Job, tree: int) -> list[Node]:
    try:
        return site.trees.nodes(
            {rank: site.trees.among(list(job.members[rank].heard), tree)[0] for rank in job.workers}
        )
    except Misplaced as error:
        raise Misplaced(f"{error}; {how_to_be_fewer(job)}") from None


def check_kept(site: Site, job: Job) -> None:
    """Raise ValueError or Misplaced if the restored job cannot have been placed at this site."""
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


def place(site: Site, job: Job, children: Mapping[int, Heard], hosts: Mapping[int, Hosts]) -> None:
    """Set what each switch of the job is told, and what those of spare trees would be. As `placements_of`."""
    every = placements_of(site, job, children, hosts)
    job.placements = {at: one for at, one in every.items() if not site.is_spare(at)}
    job.spares = {at: one for at, one in every.items() if site.is_spare(at)}


def placements_of(
    site: Site, job: Job, children: Mapping[int, Heard], hosts: Mapping[int, Hosts]
) -> dict[int, Placement]:
    """Return what each switch that takes part is told, by site index. Raises Misplaced.

    The job's hosts and slots must have been claimed. Nodes of spare trees have no slots. A tree whose spare is gone is
    left out.

    `children`: where each node with a parent was heard by its parent.
    `hosts`: by the controller's switch numbers.
    """
    children = {index: heard for node, heard in children.items() for index in site.indices(node)}
    placements = {}
    groups = set()
    for tree in range(len(site.trees.roots)):
        nodes = _nodes(site, job, tree)
        if any(site.number(node.switch) == GONE for node in nodes):
            continue
        groups.add(_groups(nodes))
        by_switch = {node.switch: node for node in nodes}
        for node in nodes:
            if silent := [child for child in node.children if child not in children]:
                raise Misplaced(unheard(site, silent[0]))
            number, generation = job.numbers[tree]
            workers = [job.members[rank].heard[node.switch] for rank in node.ranks]
            below = [children[child] for child in node.children]
            placements[node.switch] = Placement(
                number,
                generation,
                job.ranges.get(node.switch, SlotRange(0, 0)),
                job.first_seq,
                (*workers, *below),
                len(node.children),
                _parent(site, node, by_switch),
                (
                    *hosts[site.number(node.switch)].learned_for(number),
                    *((child.sender.mac, child.port) for child in below),
                ),
                job.abort_secret,
            )
    if len(groups) > 1:
        raise Misplaced(
            "some ranks share a switch in one tree and not in another; they must share one in every tree or in none"
        )
    return placements


def _parent(site: Site, node: Node, by_switch: Mapping[int, Node]) -> Parent | None:
    if node.parent is None:
        return None
    above = by_switch[node.parent]
    index = len(above.ranks) + above.children.index(node.switch)
    return Parent(site.trees.uplinks[node.switch].port, site.addresses[node.parent], index)


def ready_message(site: Site, job: Job, member: Member) -> pb.Ready:
    """Build the Ready message of that rank, and of all ranks that the same switches have heard.

    It has no worker numbers if every rank sends for itself to every switch.
    """
    ready = pb.Ready(hosts=job.hosts if job.in_memory else (), answers=True, report_s=interval(job.world_size))
    shared = len(job.workers) < job.world_size  # some ranks share a stream
    if shared:
        ready.leaders.extend(job.leaders.values())
    offered = member.offered or site.within_reach(member.switch)
    ready.spares.extend(sorted(offered.index(at) for at in member.heard if site.is_spare(at)))
    if site.trees.uplinks or len(member.heard) < len(offered) or ready.spares:
        ready.aggregators.extend(sorted(offered.index(at) for at in member.heard if not site.is_spare(at)))
    if shared or site.trees.uplinks:
        ready.peers.extend(job.workers_at(next(iter(member.heard))))
    return ready


def how_to_be_fewer(job: Job) -> str:
    """Return how a job that has too many workers for a switch could have fewer.

    The text says on how many hosts the ranks are, and which ranks send for themselves although others are on their
    host. All ranks must have been heard.
    """
    hosts = Counter(map(_host, job.members.values()))
    followed = Counter(job.leaders.values())
    alone = [rank for rank, one in job.members.items() if followed[rank] == 1 and hosts[_host(one)] > 1]
    unable = [rank for rank, one in job.members.items() if one.stream == pb.UNSAID]
    on = f"its {job.world_size} ranks are on {len(hosts)} host{'s' if len(hosts) > 1 else ''}"
    if job.threads > 1 and len(hosts) < job.world_size:
        return f"{on}, and those of one host are one worker if all of the job have threads=1, not {job.threads}"
    if unable:
        return (
            f"{on}, and those of one host are one worker if all of the job use the C backend and the transport udp; "
            f"this is not so for {_some(unable)}"
        )
    text = f"{on}, and those of one host are one worker if they have local='auto' and are behind one port of the switch"
    return f"{text}; this is not so for {_some(alone)}" if alone else text


def _some(ranks: list[int]) -> str:
    return list_ranks(ranks, _MOST_RANKS_NAMED)


def _host(member: Member) -> str:
    return next(iter(member.heard.values())).sender.ip
