# SPDX-License-Identifier: Apache-2.0
"""What ports that are down mean: for switches, for jobs that begin, and for those that run."""

from __future__ import annotations

from collections.abc import Mapping

from p4reduce_controller.jobs.job import Job, list_ranks
from p4reduce_controller.switches.aggregator import Aggregator, Heard
from p4reduce_controller.switches.site import Site
from p4reduce_controller.texts import DOWN


def dead(switch: Aggregator) -> str:
    """Why nobody reaches it, or ""."""
    ports = switch.ports
    return f"all its {len(ports)} ports are down" if ports and set(ports.values()) <= set(DOWN) else ""


def severed(site: Site, at: int, children: Mapping[int, Heard], switches: Mapping[int, Aggregator]) -> str:
    """Why the switch at that place of the site does not reach its parent, or "". `children`: where each was heard by
    its parent, by the controller's numbers of them, as is `switches`."""
    up = site.trees.uplinks.get(at)
    if up is None:
        return ""
    names, own, above = site.trees.names, site.number(at), site.number(up.parent)
    heard = children.get(own)
    if _is_down(switches, own, up.port):
        return f"port {up.port} of {names[at]} toward {names[up.parent]} is down"
    if heard is not None and _is_down(switches, above, heard.port):
        return f"port {heard.port} of {names[up.parent]} toward {names[at]} is down"
    return ""


def troubles_of(job: Job, children: Mapping[int, Heard], switches: Mapping[int, Aggregator]) -> list[str]:
    """The ports that the job needs and that are down, and what is there, for people."""
    site, held = job.site, {at % job.site.switches for at in job.ranges}
    found = []
    for at in sorted(held):
        number = site.number(at)
        up = site.trees.uplinks.get(at)
        if up is not None and up.parent in held and (why := severed(site, at, children, switches)):
            found.append(why)
        ranks: dict[int, list[int]] = {}
        for member in job.members.values():
            if at in member.heard and _is_down(switches, number, member.heard[at].port):
                ranks.setdefault(member.heard[at].port, []).append(member.rank)
        name = site.trees.names[at]
        found += [
            f"port {port} of {name} is down, where {list_ranks(there)} {'is' if len(there) == 1 else 'are'}"
            for port, there in sorted(ranks.items())
        ]
    return found


def _is_down(switches: Mapping[int, Aggregator], number: int, port: int) -> bool:
    switch = switches.get(number)
    return switch is not None and switch.ports.get(port) in DOWN
