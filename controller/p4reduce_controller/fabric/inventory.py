# SPDX-License-Identifier: Apache-2.0
"""The inventory of present switches by number. A removed switch's number is never given again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.fabric import ports
from p4reduce_controller.jobs.admission import DEFAULT_SLOTS
from p4reduce_controller.jobs.switches import Switches
from p4reduce_controller.p4runtime.switch_config import SwitchConfig, addresses_of, check_addresses
from p4reduce_controller.settings.settings import checked_trees
from p4reduce_controller.switches.aggregator import Aggregator
from p4reduce_controller.switches.availability import SwitchState, Unavailable
from p4reduce_controller.switches.site import Site
from p4reduce_controller.switches.trees import NamedUplink, Trees


@dataclass
class Member:
    """A switch and what operators have ordered for it.

    `leaving`: it is removed as soon as no job has slots there.
    `now`: its jobs were ended, so that they do not delay the removal.
    `replaced`: another switch has its name.
    """

    config: SwitchConfig
    draining: bool = False
    leaving: bool = False
    now: bool = False
    replaced: bool = False

    @property
    def name(self) -> str:
        return self.config.name


class Inventory(Switches):
    """The present switches. `switches` and `members` are by number."""

    def __init__(
        self,
        switches: Sequence[Aggregator],
        trees: Trees | None = None,
        nodes: Sequence[int] = (),
        *,
        default_slots: int = DEFAULT_SLOTS,
    ) -> None:
        """Begin with these switches. `trees`, `nodes`: as in `Switches`."""
        addresses = [switch.address for switch in switches]
        super().__init__(switches[0].layout, addresses, trees, nodes, default_slots=default_slots)
        self.switches: dict[int, Aggregator] = dict(enumerate(switches))
        names = dict(zip(self.numbers, self.site.trees.names, strict=True))
        self.members = {
            number: Member(
                SwitchConfig(
                    switch.target,
                    switch.address,
                    name=names[number],
                    uplinks=tuple((port, names[parent]) for parent, port in self.uplinks(number).items()),
                    spare=not self.site.trees.spares.isdisjoint(self.site.nodes_of(number)),
                )
            )
            for number, switch in self.switches.items()
        }
        self._next = len(self.members)
        self.silent: set[tuple[int, int]] = set()
        """Pairs of child and parent whose HELLOs no longer arrive."""
        self.unanswered: set[tuple[int, int]] = set()
        """Pairs of child and parent whose HELLOs arrive, while the answers do not."""

    def enter(self, config: SwitchConfig, switch: Aggregator) -> int:
        """Enter a switch and return its number. The site does not include it until the site is changed."""
        number, self._next = self._next, self._next + 1
        self.members[number] = Member(config)
        self.switches[number] = switch
        return number

    async def close(self, keep: Callable[[], bool]) -> None:
        ends = [switch.close(keep=keep()) for switch in reversed(self.switches.values())]
        for error in await asyncio.gather(*ends, return_exceptions=True):
            if isinstance(error, BaseException):
                raise error

    def name(self, number: int) -> str:
        return self.members[number].name

    def uplinks(self, number: int) -> dict[int, int]:
        """Return the ports toward the parents of the switch, by their numbers; {} if the switch is gone."""
        site = self.site
        found = (site.trees.uplinks.get(at) for at in site.nodes_of(number))
        return {site.number(up.parent): up.port for up in found if up}

    def conditions(self, number: int) -> Iterator[Unavailable]:
        switch, member = self.switches.get(number), self.members.get(number)
        if switch is None or member is None:
            yield Unavailable("it was removed")
            return
        yield from filter(None, (switch.unavailable, ports.all_down(switch)))
        troubles = (self.uplink_trouble(self.site, at) for at in self.site.nodes_of(number))
        yield from dict.fromkeys(filter(None, troubles))
        if member.leaving or member.draining:
            why = "it is being removed" if member.leaving else "it is being drained"
            yield Unavailable(why, SwitchState.DRAINING)

    def uplink_trouble(self, site: Site, at: int) -> Unavailable | None:
        up = site.trees.uplinks.get(at)
        if up is None:
            return None
        pair = site.number(at), site.number(up.parent)
        own = self.members.get(pair[0])
        own_ports = (own.config.lag_of(up.port) if own is not None else ()) or (up.port,)
        if down := ports.uplink_down(site, at, own_ports, self.children.get(pair), self.switches):
            return down
        child, parent = site.trees.names[at], site.trees.names[up.parent]
        if pair in self.silent:
            why = f"{parent} no longer hears {child}; check the cable at its port {up.port}"
        elif pair in self.unanswered:
            why = f"{child} does not hear {parent}; check the cable at port {up.port} of {child}"
        else:
            return None
        return Unavailable(why, SwitchState.UPLINK_DOWN)

    def excluded(self, number: int) -> Unavailable | None:
        """Return the reason if the switch works, but new jobs would also need a switch that cannot be used."""
        site, new = self.site, self.for_new()
        own, path = site.nodes_of(number), site.trees.path
        if not own or new.nodes_of(number):
            return None
        needed = [
            other
            for other in range(site.nodes)
            if other not in own and any(at in path(other) or other in path(at) for at in own)
        ]
        return Unavailable("; ".join(self.unavailable(site, needed, new=True)), SwitchState.UNSCHEDULABLE)

    def retained(self) -> dict[int, tuple[str, tuple[NamedUplink, ...]]]:
        """Return the names and uplinks of switches outside the site, which no new job uses."""
        outside = [(number, one) for number, one in self.members.items() if not self.site.nodes_of(number)]
        return {number: (one.name, one.config.uplinks) for number, one in outside}

    def named(self, name: str) -> int | None:
        """Return the number of the switch with that name, which may be leaving; None if there is none."""
        return next((number for number, one in self.members.items() if one.name == name and not one.replaced), None)

    def must(self, name: str) -> int:
        """Return the number of the switch with that name. Raises SettingsError if there is none."""
        number = self.named(name)
        if number is None:
            names = ", ".join(one.name for one in self.members.values() if not one.replaced)
            raise SettingsError(f"there is no switch {name[:200]!r}; the switches are {names}")
        return number

    def shares(self, number: int, config: SwitchConfig) -> bool:
        """Return whether the switch has the same P4Runtime server, or the same address for workers, as `config`."""
        own = self.members[number].config
        return self.switches[number].target == config.target or own.address == config.address

    def site_of(self, more: Sequence[SwitchConfig] = (), less: Collection[int] = ()) -> Site:
        """Return the site of all switches that are not replaced. Raises SettingsError.

        A switch that has lost all of its parents is included only if it is leaving; without some, it has the others.

        `more`: configurations of switches that may be added.
        `less`: numbers of switches that may be removed.
        """
        coming = [config.name for config in more]
        every = {
            number: one.config
            for number, one in self.members.items()
            if not one.replaced and number not in less and one.name not in coming
        } | dict(enumerate(more, self._next))
        leaving = {number for number, one in self.members.items() if one.leaving}
        addresses = addresses_of(every.values())
        check_addresses([one for number, one in every.items() if number not in leaving], addresses)
        while orphans := [number for number, one in every.items() if one.uplinks and not one.uplinks_among(addresses)]:
            for number in orphans:
                one = every.pop(number)
                if number not in leaving:
                    raise SettingsError(f"the switch {one.name}: its parent {one.uplinks[0][1]} is not a switch")
            addresses = addresses_of(every.values())
        if not every:
            raise SettingsError("no switch would be left, and jobs need one")
        order = sorted(every)
        uplinks = {every[number].name: every[number].uplinks_among(addresses) for number in order}
        trees, switches = checked_trees(uplinks, {one.name for one in every.values() if one.spare})
        numbers = tuple(order[switch] for switch in switches)
        return Site(self.site.layout, tuple(every[number].address for number in numbers), trees, numbers=numbers)
