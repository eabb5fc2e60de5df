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
from p4reduce_controller.p4runtime.switch_config import SwitchConfig
from p4reduce_controller.settings.settings import trees_of
from p4reduce_controller.switches.aggregator import Aggregator
from p4reduce_controller.switches.availability import SwitchState, Unavailable
from p4reduce_controller.switches.site import Site
from p4reduce_controller.switches.trees import Trees

NO_UPLINK = (0, -1)


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
        self, switches: Sequence[Aggregator], trees: Trees | None = None, *, default_slots: int = DEFAULT_SLOTS
    ) -> None:
        """Begin with these switches, which are in the order of `trees`."""
        addresses = [switch.address for switch in switches]
        super().__init__(switches[0].layout, addresses, trees, default_slots=default_slots)
        self.switches: dict[int, Aggregator] = dict(enumerate(switches))
        trees = self.site.trees
        uplinks = {index: (up.port, trees.names[up.parent]) for index, up in trees.uplinks.items()}
        self.members = {
            number: Member(SwitchConfig(switch.target, switch.address, name=name, uplink=uplinks.get(number)))
            for (number, switch), name in zip(self.switches.items(), trees.names, strict=True)
        }
        self._next = len(self.members)

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

    def uplink(self, number: int) -> tuple[int, int]:
        """Return the port toward the switch's parent, and the parent's number.

        The number is negative if the switch has no parent, or is gone.
        """
        site = self.site
        at = site.index_of(number)
        found = site.trees.uplinks.get(at) if at is not None else None
        return (found.port, site.number(found.parent)) if found else NO_UPLINK

    def conditions(self, number: int) -> Iterator[Unavailable]:
        switch, member, at = self.switches.get(number), self.members.get(number), self.site.index_of(number)
        if switch is None or member is None:
            yield Unavailable("it was removed")
            return
        yield from filter(None, (switch.unavailable, ports.all_down(switch)))
        if at is not None and (down := ports.uplink_down(self.site, at, self.children, self.switches)):
            yield down
        if member.leaving or member.draining:
            why = "it is being removed" if member.leaving else "it is being drained"
            yield Unavailable(why, SwitchState.DRAINING)

    def excluded(self, number: int) -> Unavailable | None:
        """Return the reason if the switch works, but new jobs would also need a switch that cannot be used."""
        site, new = self.site, self.for_new()
        at = site.index_of(number)
        if at is None or new.index_of(number) is not None:
            return None
        path = site.trees.path
        needed = [other for other in range(site.switches) if other != at and (at in path(other) or other in path(at))]
        return Unavailable("; ".join(self.unavailable(site, needed, new=True)), SwitchState.UNSCHEDULABLE)

    def retained(self) -> dict[int, tuple[str, tuple[int, str] | None]]:
        """Return the names and uplinks of switches outside the site, which no new job uses.

        An uplink is a port and the name of the parent.
        """
        site = self.site
        outside = [(number, one) for number, one in self.members.items() if site.index_of(number) is None]
        return {number: (one.name, one.config.uplink) for number, one in outside}

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

        A leaving switch is included only if it still has its parent.

        `more`: configurations of switches that may be added.
        `less`: numbers of switches that may be removed.
        """
        coming = [config.name for config in more]
        every = {
            number: one.config
            for number, one in self.members.items()
            if not one.replaced and number not in less and one.name not in coming
        } | dict(enumerate(more, self._next))
        while names := {one.name for one in every.values()}:
            orphans = [number for number, one in every.items() if one.uplink and one.uplink[1] not in names]
            for number in orphans:
                one = every.pop(number)
                if number not in self.members or not self.members[number].leaving:
                    raise SettingsError(
                        f"the switch {one.name}: its parent {one.uplink and one.uplink[1]} is not a switch"
                    )
            if not orphans:
                break
        if not every:
            raise SettingsError("no switch would be left, and jobs need one")
        order = sorted(every)
        trees = trees_of({every[number].name: every[number].uplink for number in order})
        addresses = tuple(every[number].address for number in order)
        return Site(self.site.layout, addresses, trees, numbers=tuple(order))
