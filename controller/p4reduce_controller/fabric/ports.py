# SPDX-License-Identifier: Apache-2.0
"""The effect of ports that are down: on switches, on new jobs, and on running jobs."""

from __future__ import annotations

from collections.abc import Mapping

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
    site: Site, at: int, children: Mapping[int, Heard], switches: Mapping[int, Aggregator]
) -> Unavailable | None:
    """Return why the switch at that site index does not reach its parent; None if its ports are not known to be down.

    `children`: where each switch was heard by its parent, by the controller's numbers, as is `switches`.
    """
    up = site.trees.uplinks.get(at)
    if up is None:
        return None
    names, own, above = site.trees.names, site.number(at), site.number(up.parent)
    heard = children.get(own)
    if _is_down(switches, own, up.port):
        return Unavailable(f"port {up.port} of {names[at]} toward {names[up.parent]} is down", SwitchState.UPLINK_DOWN)
    if heard is not None and _is_down(switches, above, heard.port):
        return Unavailable(
            f"port {heard.port} of {names[up.parent]} toward {names[at]} is down", SwitchState.UPLINK_DOWN
        )
    return None


def troubles_of(job: Job, children: Mapping[int, Heard], switches: Mapping[int, Aggregator]) -> list[str]:
    """Return a text for each port that the job needs and that is down, with what is connected there."""
    site, used = job.site, {at % job.site.switches for at in job.ranges}  # switches where the job has slots
    found = []
    for at in sorted(used):
        number = site.number(at)
        up = site.trees.uplinks.get(at)
        if up is not None and up.parent in used and (why := uplink_down(site, at, children, switches)):
            found.append(str(why))
        ranks: dict[int, list[int]] = {}
        for member in job.members.values():
            if at in member.heard and _is_down(switches, number, member.heard[at].port):
                ranks.setdefault(member.heard[at].port, []).append(member.rank)
        name = site.trees.names[at]
        found += [
            f"port {port} of {name} is down, where {list_ranks(behind)} {'is' if len(behind) == 1 else 'are'}"
            for port, behind in sorted(ranks.items())
        ]
    return found


def _is_down(switches: Mapping[int, Aggregator], number: int, port: int) -> bool:
    switch = switches.get(number)
    return switch is not None and switch.ports.get(port) in DOWN
