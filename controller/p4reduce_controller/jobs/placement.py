# SPDX-License-Identifier: Apache-2.0
"""Where a job has its place: of what is asked and what is free, without changing either.

First come the slots of switches that every job needs, when the first rank joins; then, when all ranks have been heard,
those of the others on their way, and what each switch and each rank is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from p4reduce.control import jobs_pb2 as pb
from p4reduce_controller.jobs.job import Job, Member, list_ranks
from p4reduce_controller.jobs.reports import interval
from p4reduce_controller.switches.aggregator import Heard, Parent, Placement
from p4reduce_controller.switches.hosts import Hosts
from p4reduce_controller.switches.pools import PoolFull, SlotPool, SlotRange
from p4reduce_controller.switches.site import Site
from p4reduce_controller.switches.trees import Misplaced, Node

_MOST_RANKS_NAMED = 8


def find_slots(site: Site, slots: int, pools: Mapping[int, SlotPool], switches: Iterable[int]) -> dict[int, SlotRange]:
    """Return a free range at each of these places for a job of so many slots. Raises PoolFull, which names the
    switch."""
    wanted: dict[int, list[int]] = {}
    for place in switches:
        wanted.setdefault(place % site.switches, []).append(place)
    ranges: dict[int, SlotRange] = {}
    for switch, places in wanted.items():
        counts = [site.pool_at(place, slots) for place in places]
        try:
            first = pools[site.number(switch)].find(sum(counts)).first  # in a row
        except PoolFull as error:
            where = f" at the switch {site.addresses[switch]}" if site.switches > 1 else ""
            raise PoolFull(f"{error}{where}") from None
        for place, count in zip(places, counts, strict=True):
            ranges[place] = SlotRange(first, count)
            first += count
    return ranges


def check_room(site: Site, slots: int, pools: Mapping[int, SlotPool]) -> None:
    """Raise PoolFull where in some tree no switch has room for a job of so many slots."""
    for tree in range(len(site.trees.roots) // site.threads):
        among = site.trees.among(range(site.switches), tree)
        roomiest = max(among, key=lambda switch: pools[site.number(switch)].longest)
        find_slots(site, slots, pools, site.places(roomiest))


def on_the_way(site: Site, job: Job) -> list[int]:
    """Return the switches that take part, when all ranks have been heard. Raises Misplaced."""
    return [node.switch for tree in range(len(site.trees.roots)) for node in _nodes(site, job, tree)]


def below(site: Site, job: Job, at: int) -> list[str]:
    """Names of the switches that send to this one, each in its place after the ranks there."""
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
    """Raise ValueError or Misplaced for a job that cannot have been placed at this site."""
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


def place(site: Site, job: Job, children: Mapping[int, Heard], hosts: Mapping[int, Hosts]) -> dict[int, Placement]:
    """What each switch that takes part is told, by its place. Raises Misplaced.

    `children`: where each switch with a parent was heard by it. `hosts`: by the controller's numbers of switches; the
    job's are claimed, and so are its slots.
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
                    f"cable at its port {site.trees.uplinks[silent[0]].port}, and that both switches run"
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
                (*hosts[site.number(switch)].learned_for(number), *((child.sender.mac, child.port) for child in below)),
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


def how_to_be_fewer(job: Job) -> str:
    """For a job of which all ranks have been heard, and that has more workers than a switch can add up: on how many
    hosts they are, and which ranks send for themselves beside others of their host."""
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
    more = f" and {len(ranks) - _MOST_RANKS_NAMED} more" if len(ranks) > _MOST_RANKS_NAMED else ""
    return list_ranks(sorted(ranks)[:_MOST_RANKS_NAMED]) + more


def _host(member: Member) -> str:
    return next(iter(member.heard.values())).sender.ip
