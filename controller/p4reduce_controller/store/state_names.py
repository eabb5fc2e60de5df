# SPDX-License-Identifier: Apache-2.0
"""The names of switches in the stored state, which remain valid when other switches are added or removed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

from p4reduce_controller.switches.aggregator import Aggregator
from p4reduce_controller.switches.frames import Endpoint, format_mac, parse_mac
from p4reduce_controller.switches.site import GONE, Site
from p4reduce_controller.switches.trees import Trees, Uplink


class StateError(Exception):
    """An error: the state cannot be used. The message says why, and what to do."""


@dataclass(frozen=True)
class Setup:
    """The present switches, by the controller's numbers, and their site. Both change.

    `retained`: names and uplinks of switches outside the site, which only running jobs need. An uplink is a port and
    the name of the parent.
    """

    switches: Mapping[int, Aggregator]
    site: Callable[[], Site]
    retained: Callable[[], Mapping[int, tuple[str, tuple[int, str] | None]]] = dict

    def names(self) -> dict[int, str]:
        """Return the names of the site's switches by the controller's numbers."""
        site = self.site()
        return {site.number(at): name for at, name in enumerate(site.trees.names)}

    def described(self, site: Site, at: int) -> str:
        """Return a text of everything about a switch that must not change while jobs run there."""
        uplink, names = site.trees.uplinks.get(at), site.trees.names
        way = (uplink.port, names[uplink.parent]) if uplink else None
        return self._described(site.number(at), names[at], way)

    def called(self, name: str) -> dict[int, str]:
        """Return the switches of that name, as `described`, by the controller's numbers.

        The one of the site is first.
        """
        site = self.site()
        here = [at for at, one in enumerate(site.trees.names) if one == name]
        retained = {number: way for number, (one, way) in self.retained().items() if one == name}
        return {site.number(at): self.described(site, at) for at in here} | {
            number: self._described(number, name, way) for number, way in retained.items()
        }

    def _described(self, number: int, name: str, way: tuple[int, str] | None) -> str:
        switch = self.switches[number]
        layout, address = switch.layout, switch.address
        below = f", below {way[1]} by port {way[0]}" if way else ""
        return (
            f"{name} at {switch.target}, aggregator {address} ({address.mac}), {layout.lanes} lanes of "
            f"{layout.block_size} values, {layout.slots} slots{below}"
        )


def format_index(site: Site, at: int) -> str:
    """Return a thread and the name of a switch, as in "0:leaf1"."""
    return f"{at // site.switches}:{site.trees.names[at % site.switches]}"


def parse_index(text: str, site: Site, threads: int) -> int:
    """Return the site index of a text that `format_index` returned. Raise StateError."""
    thread, _, name = text.partition(":")
    if not (thread.isascii() and thread.isdigit() and int(thread) < threads and name in site.trees.names):
        names = ", ".join(site.trees.names)
        raise StateError(
            f"switch {text[:60]!r}: must be THREAD:NAME, with a thread from 0 to {threads - 1} and a switch of {names}"
        )
    return int(thread) * site.switches + list(site.trees.names).index(name)


def site_to_json(site: Site, setup: Setup, held: Collection[int]) -> list[dict[str, Any]]:
    """Return the site as JSON values.

    `held`: the controller's numbers of switches with slots, which must not change.
    """
    parts: list[dict[str, Any]] = []
    for at, (name, address) in enumerate(zip(site.trees.names, site.addresses, strict=True)):
        part: dict[str, Any] = {"name": name, **vars(address)}
        if uplink := site.trees.uplinks.get(at):
            part["uplink"] = {"port": uplink.port, "to": site.trees.names[uplink.parent]}
        if site.number(at) in held:
            part["described"] = setup.described(site, at)
        parts.append(part)
    return parts


def site_from_json(parts: list[Any], setup: Setup) -> Site:
    """Return the site from JSON values.

    Raise StateError or ValueError if a switch with slots has changed or is gone.
    """
    try:
        names = [str(part["name"]) for part in parts]
        addresses = tuple(_address(part) for part in parts)
        uplinks = {
            at: Uplink(int(part["uplink"]["port"]), names.index(part["uplink"]["to"]))
            for at, part in enumerate(parts)
            if "uplink" in part
        }
        wanted = [str(part.get("described", "")) for part in parts]
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise StateError(f"site: {type(error).__name__} {error}; name, mac, ip and udp_port are needed") from None
    if len(set(names)) != len(names) or not names:
        raise StateError(f"site: {', '.join(names) or 'no switch'}: must have at least one switch, and no name twice")
    numbers = [_number_of(*one, setup) for one in zip(names, addresses, wanted, strict=True)]
    return Site(setup.site().layout, addresses, Trees(names, uplinks), numbers=tuple(numbers))


def _number_of(name: str, address: Endpoint, described: str, setup: Setup) -> int:
    """Return the controller's number of the switch that had this name, or `GONE`. Raises StateError.

    `described`: "" if no slots are held there.
    """
    there = setup.called(name)
    if not described:
        return next((at for at in there if setup.switches[at].address == address), next(iter(there), GONE))
    for number, text in there.items():
        if text == described:
            return number
    raise StateError(
        f"it has jobs on switches that this controller does not have. Its switch was {described}; now there is "
        f"{'; '.join(there.values()) or 'none of that name'}. Start the controller with the same switches"
    )


def _address(part: Any) -> Endpoint:
    mac, ip, port = format_mac(parse_mac(part["mac"])), str(IPv4Address(part["ip"])), part["udp_port"]
    if type(port) is not int or not 0 < port < 65536 or not isinstance(part["ip"], str):
        raise StateError(f"site: {ip}:{port} is not the address of a switch")
    return Endpoint(mac, ip, port)


def with_names(root: Any, setup: Setup) -> dict[str, Any]:
    """Return a state of version 3 in the form of version 4. Raises StateError.

    In version 3, a switch is identified by its index among all switches.
    """
    site = setup.site()
    now = [setup.described(site, at) for at in range(site.switches)]
    then = root.get("switches")
    if then != now:
        gone = [str(one) for one in then if one not in now] if isinstance(then, list) else [repr(then)[:60]]
        new = [one for one in now if not isinstance(then, list) or one not in then]
        raise StateError(
            "it has jobs on switches that this controller does not have. Its switch was "
            f"{'; '.join(gone) or 'no other'}; now there is {'; '.join(new) or 'no other'}. Start the controller with "
            "the same switches"
        )
    every = range(site.switches)
    parts = site_to_json(site, setup, [site.number(at) for at in every])
    try:
        return {
            "version": 4,
            "children": {_named(at, site).partition(":")[2]: heard for at, heard in root["children"].items()},
            "jobs": [
                {
                    **job,
                    "site": parts,
                    "first_slots": {_named(at, site): first for at, first in job["first_slots"].items()},
                    "slots_elsewhere": {
                        _named(at, site): count for at, count in job.get("slots_elsewhere", {}).items()
                    },
                    "members": [
                        {**member, "heard": {_named(at, site): heard for at, heard in member["heard"].items()}}
                        for member in job["members"]
                    ],
                }
                for job in root["jobs"]
            ],
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise StateError(f"{type(error).__name__}: {error}") from None


def _named(at: Any, site: Site) -> str:
    if not (isinstance(at, str) and at.isascii() and at.isdigit()):
        raise StateError(f"switch {at!r}: must be a number")
    return format_index(site, int(at))
