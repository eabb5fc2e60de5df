# SPDX-License-Identifier: Apache-2.0
"""The effect of ports that are down: on switches, on new jobs, and on running jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from p4reduce.errors import list_ranks
from p4reduce_controller.jobs.job import Job
from p4reduce_controller.switches.aggregator import DOWN, Aggregator, Heard
from p4reduce_controller.switches.availability import SwitchState, Unavailable
from p4reduce_controller.switches.site import Site


def all_down(switch: Aggregator) -> Unavailable | None:
    """Return the reason if all ports of the switch are down, so that nobody reaches it."""
    ports = switch.ports
    down = ports and set(ports.values()) <= set(DOWN)
    return Unavailable(f"all its {len(ports)} ports are down") if down else None


def uplink_down(
    site: Site, at: int, own_ports: Sequence[int], heard: Heard | None, switches: Mapping[int, Aggregator]
) -> Unavailable | None:
    """Return why the node's switch does not reach its parent; None if its ports are not known to be down.

    `own_ports`: those that lead to the parent.
    `heard`: where the parent has heard it.
    `switches`: by the controller's numbers.
    """
    parent = site.trees.uplinks[at].parent
    for one, other, ports in ((at, parent, own_ports), (parent, at, heard.ports if heard is not None else ())):
        if ports and _are_down(switches, site.number(one), ports):
            names = site.trees.names
            why = f"{_are(ports, f' of {names[one]} toward {names[other]}')} down"
            return Unavailable(why, SwitchState.UPLINK_DOWN)
    return None


def uplink_moved(site: Site, at: int, before: Heard, now: Heard) -> str:
    """Return a text if a job's parent hears the node elsewhere than when the job began; otherwise ""."""
    if not now.has_moved(before):
        return ""
    up, names = site.trees.uplinks[at], site.trees.names
    return (
        f"{names[up.parent]} hears {names[at]} at {now.where}, and the job needs it at {before.where}; put the cable "
        "back, or start the job again"
    )


def troubles_of(
    job: Job,
    children: Mapping[int, Heard],
    switches: Mapping[int, Aggregator],
    uplink_trouble: Callable[[Site, int], Unavailable | None],
) -> list[str]:
    """Return a text for each port that the job needs and that is down, and for each of its uplinks that does not work.

    `children`: where each node of the job's site is heard by its parent now.
    `uplink_trouble`: returns why a node does not reach its parent.
    """
    site, used = job.site, {at % job.site.nodes for at in job.ranges}  # nodes where the job has slots
    found = []
    for at in sorted(used):
        number = site.number(at)
        up = site.trees.uplinks.get(at)
        if up is not None and up.parent in used:
            why = uplink_trouble(site, at)
            moved = at in children and at in job.children and uplink_moved(site, at, job.children[at], children[at])
            found += [str(text) for text in (why, moved) if text]
        ranks: dict[tuple[int, ...], list[int]] = {}
        for member in job.members.values():
            if at in member.heard and _are_down(switches, number, member.heard[at].ports):
                ranks.setdefault(member.heard[at].ports, []).append(member.rank)
        found += [
            f"{_are(ports, f' of {site.trees.names[at]}')} down, where {list_ranks(behind)} "
            f"{'is' if len(behind) == 1 else 'are'}"
            for ports, behind in sorted(ranks.items())
        ]
    return list(dict.fromkeys(found))


def _are_down(switches: Mapping[int, Aggregator], number: int, ports: Sequence[int]) -> bool:
    """Return whether all these ports of the switch are down. Ports that it does not report do not count."""
    states = switch.ports if (switch := switches.get(number)) is not None else {}
    known = [states[port] for port in ports if port in states]
    return bool(known) and set(known) <= set(DOWN)


def _are(ports: Sequence[int], where: str) -> str:
    """Return the beginning of a sentence about the ports."""
    return f"port {ports[0]}{where} is" if len(ports) == 1 else f"ports {', '.join(map(str, ports))}{where} are"
