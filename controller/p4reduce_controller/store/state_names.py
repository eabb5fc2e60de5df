# SPDX-License-Identifier: Apache-2.0
"""Switches in the stored state. They have names there, since their numbers differ in the next controller."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, TypeVar

from p4reduce_controller.switches.aggregator import Aggregator
from p4reduce_controller.switches.frames import Endpoint, format_mac, parse_mac
from p4reduce_controller.switches.site import GONE, Site
from p4reduce_controller.switches.trees import NamedUplink, Trees, Uplink

T = TypeVar("T")


class StateError(Exception):
    """An error: the state cannot be used. The message says why, and what to do."""


@dataclass(frozen=True)
class Setup:
    """The present switches, by the controller's numbers, and their site, both as they are when they are read.

    `switches`: a view of the switches, which operators may add and remove.
    `site`: returns the site of new jobs.
    `retained`: returns the names and uplinks of switches outside this site, which only running jobs need.
    """

    switches: Mapping[int, Aggregator]
    site: Callable[[], Site]
    retained: Callable[[], Mapping[int, tuple[str, Sequence[NamedUplink]]]] = dict

    def names(self) -> dict[int, str]:
        """Return the names of the site's switches by the controller's numbers."""
        site = self.site()
        return {site.number(at): name for at, name in enumerate(site.trees.names)}

    def description(self, site: Site, index: int) -> str:
        """Return a text of everything about a node's switch that must not change while jobs run there."""
        found, names = site.trees.uplinks.get(index), site.trees.names
        uplink = (found.port, names[found.parent]) if found else None
        return self._description(site.number(index), names[index], uplink)

    def descriptions(self, name: str) -> list[tuple[int, str]]:
        """Return the descriptions of the nodes of switches with that name, with the controller's numbers.

        The switch in the site comes first. Retained switches of the same name are its predecessors.
        """
        site = self.site()
        indices = [index for index, one in enumerate(site.trees.names) if one == name]
        retained = [(number, uplinks) for number, (one, uplinks) in self.retained().items() if one == name]
        return [(site.number(index), self.description(site, index)) for index in indices] + [
            (number, self._description(number, name, uplink))
            for number, uplinks in retained
            for uplink in uplinks or (None,)
        ]

    def _description(self, number: int, name: str, uplink: NamedUplink | None) -> str:
        switch = self.switches[number]
        layout, address = switch.layout, switch.address
        below = f", below {uplink[1]} by port {uplink[0]}" if uplink else ""
        return (
            f"{name} at {switch.target}, aggregator {address} ({address.mac}), {layout.lanes} lanes of "
            f"{layout.block_size} values, {layout.slots} slots{below}"
        )


def format_index(site: Site, index: int) -> str:
    """Return the text for a site index: its thread and the label of its node, as in "0:leaf1"."""
    return f"{index // site.nodes}:{site.trees.labels[index % site.nodes]}"


def parse_index(text: str, site: Site, threads: int) -> int:
    """Return the site index of a text that `format_index` has returned. Raises StateError."""
    thread, _, label = text.partition(":")
    known = site.trees.labels
    if not (thread.isascii() and thread.isdigit() and int(thread) < threads and label in known):
        names = ", ".join(known)
        raise StateError(
            f"switch {text[:60]!r}: must be THREAD:NAME, with a thread from 0 to {threads - 1} and a switch of {names}"
        )
    return int(thread) * site.nodes + known.index(label)


def children_to_json(children: Mapping[tuple[int, int], T], site: Site) -> dict[str, T]:
    """Return the values by the labels of the children's nodes. `children`: by the numbers of child and parent."""
    known = site.trees.labels
    pairs = {at: (site.number(at), site.number(up.parent)) for at, up in site.trees.uplinks.items()}
    return {known[at]: children[pair] for at, pair in pairs.items() if pair in children}


def children_from_json(kept: Mapping[str, T], site: Site) -> dict[tuple[int, int], T]:
    """Return the values that `children_to_json` has written, as far as their nodes are in the site."""
    return {
        (site.number(at), site.number(site.trees.uplinks[at].parent)): kept[label]
        for at, label in enumerate(site.trees.labels)
        if label in kept and at in site.trees.uplinks
    }


def site_to_json(site: Site, setup: Setup, held: Collection[int]) -> list[dict[str, Any]]:
    """Return the site as JSON values, for the job that has it.

    `held`: the controller's numbers of switches where the job has slots. Their descriptions are stored, so that a later
    controller notices if one of them has changed. In the tree of a spare that has none of them, nothing is described.
    """
    roots = site.trees.roots
    needed = {tree for tree, root in enumerate(roots) if site.number(root) in held or not site.is_spare(root)}
    parts: list[dict[str, Any]] = []
    known = site.trees.labels
    for index, (name, address) in enumerate(zip(site.trees.names, site.addresses, strict=True)):
        part: dict[str, Any] = {"name": name, **vars(address)}
        if known[index] != name:
            part["label"] = known[index]
        if index in site.trees.spares:
            part["spare"] = True
        if uplink := site.trees.uplinks.get(index):
            part["uplink"] = {"port": uplink.port, "to": known[uplink.parent]}
        if site.number(index) in held and site.trees.tree(index) in needed:
            part["described"] = setup.description(site, index)
        parts.append(part)
    return parts


def site_from_json(parts: list[Any], setup: Setup) -> Site:
    """Return the site that `site_to_json` has written.

    Raises StateError if a switch with slots has changed or is gone, and StateError or ValueError if values are not
    valid.
    """
    try:
        names = [str(part["name"]) for part in parts]
        known = [str(part.get("label", part["name"])) for part in parts]
        addresses = tuple(_address(part) for part in parts)
        uplinks = {
            index: Uplink(int(part["uplink"]["port"]), known.index(part["uplink"]["to"]))
            for index, part in enumerate(parts)
            if "uplink" in part
        }
        spares = frozenset(index for index, part in enumerate(parts) if part.get("spare"))
        descriptions = [str(part.get("described", "")) for part in parts]
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise StateError(f"site: {type(error).__name__} {error}; name, mac, ip and udp_port are needed") from None
    if len(set(known)) != len(known) or not names:
        raise StateError(f"site: {', '.join(names) or 'no switch'}: must have at least one switch, and no name twice")
    numbers = [_number_of(*one, setup) for one in zip(names, addresses, descriptions, strict=True)]
    return Site(setup.site().layout, addresses, Trees(names, uplinks, spares), numbers=tuple(numbers))


def _number_of(name: str, address: Endpoint, description: str, setup: Setup) -> int:
    """Return the controller's number of a stored switch.

    `description`: the description of a switch where the job has slots: the switch must still have it. Without slots it
    is "", and the switch may have changed: then the number is that of the switch with the same name, best also with the
    same address, or `GONE`.
    Raises StateError.
    """
    present = setup.descriptions(name)
    if not description:
        same_name = next((number for number, _ in present), GONE)
        return next((number for number, _ in present if setup.switches[number].address == address), same_name)
    for number, text in present:
        if text == description:
            return number
    raise StateError(
        f"it has jobs on switches that this controller does not have. Its switch was {description}; now there is "
        f"{'; '.join(text for _, text in present) or 'none of that name'}. Start the controller with the same switches"
    )


def _address(part: Any) -> Endpoint:
    mac, ip, port = format_mac(parse_mac(part["mac"])), str(ip_address(part["ip"])), part["udp_port"]
    if type(port) is not int or not 0 < port < 65536 or not isinstance(part["ip"], str):
        raise StateError(f"site: {ip} port {port!r} is not the address of a switch")
    return Endpoint(mac, ip, port)


def from_version_3(root: Any, setup: Setup) -> dict[str, Any]:
    """Return a state of version 3 in the form of version 4. Raises StateError.

    In version 3, a switch is identified by its index among all switches, so these must be the same, in the same order.
    """
    site = setup.site()
    present = [setup.description(site, index) for index in range(site.nodes)]
    stored = root.get("switches")
    if stored != present:
        gone = [str(one) for one in stored if one not in present] if isinstance(stored, list) else [repr(stored)[:60]]
        new = [one for one in present if not isinstance(stored, list) or one not in stored]
        raise StateError(
            "it has jobs on switches that this controller does not have. Its switch was "
            f"{'; '.join(gone) or 'no other'}; now there is {'; '.join(new) or 'no other'}. Start the controller with "
            "the same switches"
        )
    parts = site_to_json(site, setup, [site.number(index) for index in range(site.nodes)])
    try:
        return {
            "version": 4,
            "children": {_named(index, site).partition(":")[2]: heard for index, heard in root["children"].items()},
            "jobs": [
                {
                    **job,
                    "site": parts,
                    "first_slots": {_named(index, site): first for index, first in job["first_slots"].items()},
                    "slots_elsewhere": {
                        _named(index, site): count for index, count in job.get("slots_elsewhere", {}).items()
                    },
                    "members": [
                        {**member, "heard": {_named(index, site): heard for index, heard in member["heard"].items()}}
                        for member in job["members"]
                    ],
                }
                for job in root["jobs"]
            ],
        }
    except (KeyError, TypeError, AttributeError) as error:
        raise StateError(f"{type(error).__name__}: {error}") from None


def _named(index: Any, site: Site) -> str:
    """Return the text of version 4 for a site index of version 3, which is the key of a JSON object, thus a text."""
    if not (isinstance(index, str) and index.isascii() and index.isdigit()):
        raise StateError(f"switch {index!r}: must be a number")
    return format_index(site, int(index))
