# SPDX-License-Identifier: Apache-2.0
"""Addition and removal of switches while jobs run."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from p4reduce_controller.base.schema import SettingsError
from p4reduce_controller.base.tasks import Tasks
from p4reduce_controller.fabric.changes import Changes, InitialSwitches
from p4reduce_controller.fabric.inventory import Inventory
from p4reduce_controller.jobs.jobs import Jobs
from p4reduce_controller.p4runtime.switch_config import SwitchConfig
from p4reduce_controller.switches.aggregator import Aggregator, Listener, SwitchError, SwitchUnavailable

log = logging.getLogger(__name__)

ADD_TIMEOUT = 3.0  # seconds for a new switch; one that answers later is used from then on


@dataclass(frozen=True)
class Dependencies:
    """The functions that changes of switches need.

    `make`: connects to a switch.
    `check`: raises SettingsError if the program of the switches does not suit a new one.
    `listener`: makes the listener to a switch's events.
    `find_child`: has a switch send HELLOs to its parents.
    """

    make: Callable[[SwitchConfig], Aggregator]
    listener: Callable[[int], Listener]
    find_child: Callable[[int], None]
    tasks: Tasks
    check: Callable[[SwitchConfig], None] = lambda _: None


class Fabric:
    """The switches of the controller, which it changes in the inventory that the jobs use too.

    The caller makes one change at a time. Only `add` and `reload` await, and `sweep` may run meanwhile.
    """

    def __init__(self, inventory: Inventory, jobs: Jobs) -> None:
        self.inventory = inventory
        self._members = inventory.members
        self._jobs = jobs
        self._dependencies: Dependencies | None = None
        self._configured: dict[str, SwitchConfig] = {}
        self._waiting: list[SwitchConfig] = []  # each until another has left its address, or its parent has been added

    def retain(self, initial: InitialSwitches, switches: Sequence[Aggregator]) -> None:
        """Enter the switches that `initial` retains, before jobs of an earlier run are restored.

        `switches`: the connections to them, in the same order.
        """
        for spec, switch in zip(initial.retained, switches, strict=True):
            member = self._members[self._number(spec, switch)]
            member.leaving, member.replaced = True, spec in initial.replaced

    def open(self, dependencies: Dependencies, initial: InitialSwitches) -> None:
        """Allow changes from now on. `initial`: contains the switches that exist."""
        self._dependencies = dependencies
        self._configured = {spec.name: spec for spec in initial.configured}
        self._waiting = list(initial.waiting)
        specs = {spec.name: spec for spec in initial.specs}
        for member in [one for one in self._members.values() if not one.leaving]:  # the others are retained
            member.config = specs.get(member.name, member.config)
            member.draining = member.name in initial.draining
            member.leaving = member.config in initial.leaving

    @property
    def is_open(self) -> bool:
        return self._dependencies is not None

    # Changes to keep.

    def changes(self) -> Changes:
        """Return what a later controller does not find in its settings."""
        named = [one for one in self._members.values() if not one.replaced]
        configured = self._configured.values()
        staying = [*(one.config for one in named if not one.leaving), *self._waiting]
        existing = [*(one.config for one in named), *self._waiting]
        return Changes(
            tuple(spec for spec in staying if spec not in configured),
            tuple(spec for spec in configured if spec not in existing),
            tuple(one.config for one in named if one.leaving),
            frozenset(one.name for one in named if one.draining),
            tuple(one.config for one in self._members.values() if one.replaced),
        )

    # Changes by operators. They return texts about what was done, and raise SettingsError.

    async def add(self, spec: SwitchConfig) -> list[str]:
        """Add a switch. Raise Superseded if another controller is its primary; then nothing has changed."""
        dependencies = self._open()
        dependencies.check(spec)
        if awaited := self._awaited_by(spec):
            self._waiting.append(spec)
            return [f"the switch {spec.name} will be added {awaited}"]
        switch = dependencies.make(spec)
        unreachable = ""
        try:
            await switch.look(ADD_TIMEOUT)
        except SwitchUnavailable as error:
            unreachable = str(error)
        if self._awaited_by(spec):  # `sweep` may have added or removed others during `look`
            raise SettingsError(f"the switch {spec.name}: another switch was added or removed meanwhile; try again")
        number = self._enter(spec, switch)
        self._change_site()
        try:
            await switch.start(dependencies.listener(number), 0.0 if unreachable else ADD_TIMEOUT)
        except SwitchUnavailable as error:
            unreachable = unreachable or str(error)
        later = f", and will be used when it answers: {unreachable}" if unreachable else ""
        return [f"the switch {spec.name} is added{later}"]

    def drain(self, name: str, *, undo: bool = False) -> list[str]:
        number = self.inventory.must(name)
        member = self._members[number]
        if member.leaving:
            raise SettingsError(f"the switch {name} is being removed")
        member.draining = not undo
        if undo:
            return [f"the switch {name} takes new jobs again"]
        return [f"the switch {name} takes no new jobs; {self._jobs_text(number)}"]

    def remove(self, name: str, *, now: bool = False) -> list[str]:
        number = self.inventory.must(name)
        staying = [one.config for one in self._members.values() if not one.leaving]
        others = {one.name for one in staying} - {name}
        if below := [one.name for one in staying if name in one.parents and one.parents.isdisjoint(others)]:
            raise SettingsError(f"the switch {name} has {', '.join(sorted(below))} below it; remove those first")
        if not [one for one in staying if not one.uplinks and one.name != name]:
            raise SettingsError(f"the switch {name} is the last one without a parent, and jobs need one")
        return self._leave(number, now=now)

    async def reload(self, specs: Sequence[SwitchConfig]) -> list[str]:
        """Apply changed settings: add switches that are new, remove those that are gone, and replace those that differ.

        Switches that were never in the settings stay.
        """
        self._open()
        said: list[str] = []
        wanted = {spec.name: spec for spec in specs}
        for name, spec in list(self._configured.items()):
            if wanted.get(name) != spec:
                del self._configured[name]
                self._waiting = [one for one in self._waiting if one.name != name]
                number = self.inventory.named(name)
                if number is not None and not self._members[number].leaving:
                    said += self._leave(number, now=False)
        for spec in sorted(specs, key=lambda spec: _depth(spec, wanted)):  # parents first
            if spec.name not in self._configured:
                try:
                    number = self.inventory.named(spec.name)
                    known = number is not None and self._members[number].config == spec
                    if number is None or not known or self._members[number].leaving:  # else it was added by command
                        said += await self.add(spec)
                    self._configured[spec.name] = spec
                except (SettingsError, SwitchError) as error:
                    said.append(f"the switch {spec.name} is not added: {error}")
        return said + self._drop_orphans()

    def sweep(self) -> list[int]:
        """Remove the leaving switches that no job uses, and return their numbers. Call it about every 0.1 s."""
        free = [number for number, one in self._members.items() if one.leaving and not self._jobs.held_at(number)]
        removed = [number for number in free if self._remove([number])]
        rest = [number for number in free if number not in removed]
        if len(rest) > 1 and self._remove(rest):  # a successor of one may need as its parent the successor of another
            removed += rest
        for number, member in self._members.items():
            held = self._jobs.held_at(number) if member.leaving and member.now else []
            if held and self.inventory.switches[number].unavailable and all(job.over for job in held):
                self.inventory.switches[number].give_up()
        if added := self._addable([]):  # their parents exist now
            with contextlib.suppress(SettingsError):
                self.inventory.site_of(added)
                entered = self._enter_waiting(added)
                self._change_site()
                self._open().tasks.start(self._start_added(entered), "switches that come")
        return removed

    # Parts.

    def _leave(self, number: int, *, now: bool) -> list[str]:
        member = self._members[number]
        member.leaving = True
        member.now = member.now or now
        jobs = self._jobs_text(number)
        if now:
            self._jobs.end_at(number, "was removed by an operator")
            jobs = jobs.replace("run there", "ended")
        return [f"the switch {member.name} will be removed when no job uses it; {jobs}"]

    def _awaited_by(self, spec: SwitchConfig) -> str:
        """Return when the switch can be added, or "" if now. Raises SettingsError if it can never be added.

        It waits until a leaving switch has freed its address, or until its waiting parent has been added.
        """
        if spec.name in {one.name for one in self._waiting}:
            raise SettingsError(f"the switch {spec.name} already waits to take the place of another")
        existing = self.inventory.named(spec.name)
        if existing is not None and not self._members[existing].leaving:
            raise SettingsError(f"the switch {spec.name} exists already; remove it first, or give another name")
        same = [number for number in self._members if self.inventory.shares(number, spec)]
        if staying := [self.inventory.name(number) for number in same if not self._members[number].leaving]:
            raise SettingsError(f"the switch {spec.name} has an address in common with {staying[0]}")
        above = self._waiting_above(spec)
        self.inventory.site_of([spec, *above])
        known = {one.name for one in [*above, *(one.config for one in self._members.values() if not one.replaced)]}
        if strange := sorted(spec.parents - known):
            raise SettingsError(f"the switch {spec.name}: its parent {strange[0]} is not a switch")
        if same:
            return f"when {self.inventory.name(same[0])} has left its address"
        if missing := [one for one in above if one.name in spec.parents and self.inventory.named(one.name) is None]:
            return f"when its parent {missing[0].name} is added"
        return ""

    def _waiting_above(self, spec: SwitchConfig) -> list[SwitchConfig]:
        """Return the ancestors of the switch that wait to be added: its parents first."""
        waiting = {one.name: one for one in self._waiting if one.name != spec.name}
        above: list[SwitchConfig] = []
        level = [spec]
        while level := [waiting.pop(name) for one in level for name in sorted(one.parents) if name in waiting]:
            above += level
        return above

    def _are_awaited_above(self, gone: Collection[int]) -> bool:
        """Return whether a waiting switch would have no parent without these, now or later."""
        others = {one.name for other, one in self._members.items() if other not in gone and not one.replaced}
        others |= {spec.name for spec in self._waiting}
        parents = {name for spec in self._waiting if spec.parents.isdisjoint(others) for name in spec.parents}
        return any(self.inventory.name(number) in parents for number in gone)

    def _drop_orphans(self) -> list[str]:
        """Drop waiting switches whose parents will not be added. Return a text for each."""
        said = []
        names = {one.name for one in self._members.values() if not one.replaced}
        while orphans := [
            spec
            for spec in self._waiting
            if spec.uplinks and spec.parents.isdisjoint(names | {one.name for one in self._waiting})
        ]:
            for spec in orphans:
                self._waiting.remove(spec)
                self._configured.pop(spec.name, None)  # so that the switch is added when the file is read again
                said.append(f"the switch {spec.name} is not added: its parent {spec.uplinks[0][1]} is not a switch")
        return said

    def _enter(self, spec: SwitchConfig, switch: Aggregator) -> int:
        """Enter the switch and return its number. `_change_site` has to follow."""
        predecessor = self.inventory.named(spec.name)
        if predecessor is not None:
            self._members[predecessor].replaced = True
        return self._number(spec, switch)

    def _number(self, spec: SwitchConfig, switch: Aggregator) -> int:
        number = self.inventory.enter(spec, switch)
        self._jobs.switch_comes(number, spec.address, spec.fixed)
        return number

    def _addable(self, gone: Collection[int]) -> list[SwitchConfig]:
        """Return the waiting switches that can be added once `gone` are gone, parents first.

        They wait for switches in `gone` alone; if `gone` is empty, they no longer wait for any. Switches whose parent
        is among them are included.
        """

        def awaits(spec: SwitchConfig, other: int) -> bool:
            return self.inventory.shares(other, spec) or self.inventory.name(other) == spec.name

        others = {other: one for other, one in self._members.items() if other not in gone}
        names = {one.name for one in others.values() if not one.replaced}
        free = [spec for spec in self._waiting if not any(awaits(spec, other) for other in others)]
        possible = names | {spec.name for spec in self._waiting}
        added: list[SwitchConfig] = []
        above = names
        candidates = [spec for spec in free if not gone or any(awaits(spec, one) for one in gone)]
        while candidates := [spec for spec in candidates if not spec.uplinks or _fits(spec, possible, above)]:
            added += candidates
            new = {spec.name for spec in added}
            above = names | new
            candidates = [spec for spec in free if spec not in added and not spec.parents.isdisjoint(new)]
        return added

    def _enter_waiting(self, added: Sequence[SwitchConfig]) -> dict[int, Aggregator]:
        """Enter the switches, and return their connections by number. `_change_site` has to follow."""
        assert self._dependencies is not None
        entered = {}
        for spec in added:
            self._waiting.remove(spec)
            switch = self._dependencies.make(spec)
            entered[self._enter(spec, switch)] = switch
        return entered

    def _remove(self, gone: Sequence[int]) -> bool:
        """Remove these switches, and add those that have waited for it.

        Return False if one of them is the last root, or if waiting switches need one of them as their parent.
        """
        try:
            self.inventory.site_of(self._addable(gone), less=gone)
        except SettingsError:
            return False
        if self._are_awaited_above(gone):
            return False
        added = self._enter_waiting(self._addable(gone))
        ends = [(self._members.pop(number).name, self.inventory.switches.pop(number)) for number in gone]
        self._change_site()
        for number in gone:
            self._jobs.switch_goes(number)
        names = ", ".join(name for name, _ in ends)
        self._open().tasks.start(self._hand_over(ends, added), f"the end of the switch {names}")
        return True

    async def _hand_over(self, ends: Sequence[tuple[str, Aggregator]], added: Mapping[int, Aggregator]) -> None:
        for name, switch in ends:
            try:
                await switch.close()
            except Exception:
                log.exception("closing the connection to the switch %s", name)
            log.warning("the switch %s at %s is removed", name, switch.target)
        await self._start_added(added)

    async def _start_added(self, added: Mapping[int, Aggregator]) -> None:
        assert self._dependencies is not None
        for number, switch in added.items():
            if number not in self._members:
                continue  # it was removed meanwhile
            log.warning(
                "the switch %s at %s is added, now that its place is free", self.inventory.name(number), switch.target
            )
            with contextlib.suppress(SwitchUnavailable):
                await switch.start(self._dependencies.listener(number), ADD_TIMEOUT)

    def _change_site(self) -> None:
        """Compute the site again after the members have changed."""
        before = {number: self.inventory.uplinks(number) for number in self._members}
        self.inventory.site = self.inventory.site_of()
        assert self._dependencies is not None
        for number in self._members:
            if self.inventory.uplinks(number) != before[number]:
                self._dependencies.find_child(number)

    def _open(self) -> Dependencies:
        if self._dependencies is None:
            raise SettingsError("the controller has not started yet")
        return self._dependencies

    def _jobs_text(self, number: int) -> str:
        """Return a text about the jobs that run at the switch; it names at most 8."""
        names = [job.name for job in self._jobs.held_at(number) if not job.over]
        more = f" and {len(names) - 8} more" if len(names) > 8 else ""
        return f"{', '.join(names[:8])}{more} run there" if names else "no jobs run there"


def _fits(spec: SwitchConfig, possible: Collection[str], above: Collection[str]) -> bool:
    """Return whether the switch has a parent, and all of its parents that are possible are above."""
    parents = spec.parents.intersection(possible)
    return bool(parents) and parents.issubset(above)


def _depth(spec: SwitchConfig, every: Mapping[str, SwitchConfig]) -> int:
    """Return how many switches are above it. The settings contain no cycle."""
    return max((1 + _depth(every[name], every) for name in spec.parents), default=0)
