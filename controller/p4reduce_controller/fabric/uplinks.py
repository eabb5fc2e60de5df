# SPDX-License-Identifier: Apache-2.0
"""HELLOs from each switch to its parents: they test the cables, and parents learn their children's ports.

They go on for as long as the controller runs, so that it notices a cable that was moved or has broken. Each parent
answers with a HELLO, because a fibre may break in one direction only.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from p4reduce_controller.base.tasks import Interrupted, Tasks, isolate_cancellation
from p4reduce_controller.fabric.inventory import Inventory
from p4reduce_controller.switches.aggregator import Heard, SwitchError
from p4reduce_controller.switches.hosts import family_conflict, problem_of

log = logging.getLogger(__name__)

HELLO_INTERVAL = 0.1  # seconds between two HELLOs of a switch to a parent that has not heard it yet
PROBE_INTERVAL = 1.0  # the same once the parent has heard it
RETRY_INTERVAL = 0.25  # the same until a HELLO arrives again
MOST_MISSED = 36  # HELLOs in a row, about 10 s; then the parent no longer hears the switch
MOST_UNANSWERED = 10  # HELLOs in a row that arrived; with more, the switch does not hear the parent


@dataclass
class _Probe:
    """HELLOs from a switch to one of its parents.

    `port`: leads from the switch to the parent.
    `missed`: how many have been sent since the last one arrived.
    `unanswered`: how many have arrived since the last answer did.
    """

    child: int
    parent: int
    port: int
    nonce: int = field(default_factory=lambda: secrets.randbits(64))
    missed: int = 0
    unanswered: int = 0
    due: float = 0.0

    @property
    def pair(self) -> tuple[int, int]:
        return self.child, self.parent


class Uplinks:
    """The links from switches to their parents, as HELLOs find them."""

    def __init__(
        self, inventory: Inventory, tasks: Tasks, clock: Callable[[], float], changed: Callable[[], None] = lambda: None
    ) -> None:
        """Create the links. `changed`: is called when one that was heard is silent, heard again, or at another port."""
        self._probes: dict[int, _Probe] = {}  # by nonce
        self._inventory = inventory
        self._tasks = tasks
        self._clock = clock
        self._changed = changed

    async def find_all(self, timeout: float) -> None:
        """Wait until all parents have heard their children, at most `timeout` seconds.

        The rest is logged, and its HELLOs go on. Jobs that need one of these links are refused meanwhile.
        """
        for child in self._inventory.switches:
            self.find(child)
        deadline = self._clock() + timeout
        while self._unheard() and self._clock() < deadline:
            await asyncio.sleep(HELLO_INTERVAL)
        for probe in self._unheard():
            log.warning(
                "the switch %s has sent HELLOs out of its port %d for %g s, and none has reached its parent %s at %s",
                *(self._inventory.name(probe.child), probe.port, timeout),
                *(self._inventory.name(probe.parent), self._inventory.switches[probe.parent].address),
            )

    def find(self, child: int) -> None:
        """Send HELLOs from the switch to its parents, of which some are new, or no longer its parents."""
        parents = self._inventory.uplinks(child)
        known = [probe for probe in self._probes.values() if probe.child == child]
        for probe in known:
            if probe.parent not in parents:
                self._forget(probe)
            else:
                probe.port = parents[probe.parent]
        for parent in parents.keys() - {probe.parent for probe in known}:
            if not self._probes:
                self._tasks.start(self._say_hellos(), "uplinks")
            probe = _Probe(child, parent, parents[parent])
            self._probes[probe.nonce] = probe
            self._inventory.children.pop(probe.pair, None)

    def awaits(self, nonce: int) -> bool:
        """Return whether the nonce is that of a switch's HELLO to a parent."""
        return nonce in self._probes

    def on_hello(self, switch: int, hello: Heard) -> bool:
        """Handle a HELLO, and return whether it is one of a switch to a parent, or its answer."""
        probe, inventory = self._probes.get(hello.nonce), self._inventory
        if hello.job or probe is None or switch not in probe.pair or not self._exists(probe):
            return False
        if switch == probe.child:
            if probe.port in hello.ports and not hello.vlan:  # a leaf admits its parent only without a tag
                self._answered(probe)
        elif problem := problem_of(hello.sender) or family_conflict(hello.sender, inventory.switches[switch].address):
            log.warning("refused a HELLO of the switch %s: %s", inventory.name(probe.child), problem)
        else:
            self._heard(probe, hello)
        return True

    def _heard(self, probe: _Probe, hello: Heard) -> None:
        inventory, names = self._inventory, self._names(probe)
        before = inventory.children.get(probe.pair)
        was_silent = probe.pair in inventory.silent
        inventory.children[probe.pair] = hello
        inventory.silent.discard(probe.pair)
        probe.missed, probe.due = 0, self._clock() + PROBE_INTERVAL
        if was_silent:
            log.warning("%s hears %s again", *names)
        moved = before is not None and hello.has_moved(before)
        if before is not None and moved:
            log.warning("%s hears %s at %s, and no longer at %s", *names, hello.where, before.where)
        probe.unanswered += 1
        if probe.unanswered > MOST_UNANSWERED and probe.pair not in inventory.unanswered:
            inventory.unanswered.add(probe.pair)
            log.warning("%s does not hear %s", *reversed(names))
            self._changed()
        self._tasks.start(self._answer(probe, hello), "answer")
        if was_silent or moved:
            self._changed()

    def _answered(self, probe: _Probe) -> None:
        probe.unanswered = 0
        if probe.pair in self._inventory.unanswered:
            self._inventory.unanswered.discard(probe.pair)
            log.warning("%s hears %s now", *reversed(self._names(probe)))
            self._changed()

    async def _answer(self, probe: _Probe, hello: Heard) -> None:
        """Let the parent send a HELLO back to the switch, as it sends the results of rounds.

        It then floods frames to the cable by which it hears the switch.
        """
        if (parent := self._inventory.switches.get(probe.parent)) is not None:
            with contextlib.suppress(SwitchError, Interrupted):  # the next HELLO is answered
                answer = parent.say_hello(hello.port, hello.sender, probe.parent % 256, probe.nonce, vlan=hello.vlan)
                await isolate_cancellation(answer)
            with contextlib.suppress(SwitchError, Interrupted):
                await isolate_cancellation(parent.flood_to(hello.port))

    async def _say_hellos(self) -> None:
        while self._probes:
            for probe in list(self._probes.values()):
                if not self._exists(probe):
                    self._forget(probe)
                elif not self._can_be_heard(probe):
                    probe.missed = 0
                elif self._clock() >= probe.due:
                    await self._say_hello(probe)
            await asyncio.sleep(HELLO_INTERVAL)

    async def _say_hello(self, probe: _Probe) -> None:
        inventory = self._inventory
        is_known = probe.pair in inventory.children
        if is_known and probe.missed >= MOST_MISSED and probe.pair not in inventory.silent:
            inventory.silent.add(probe.pair)
            log.warning("%s no longer hears %s", *self._names(probe))
            self._changed()
        probe.due = self._clock() + (RETRY_INTERVAL if is_known else HELLO_INTERVAL)
        probe.missed += 1
        try:
            switch, parent = inventory.switches[probe.child], inventory.switches[probe.parent]
            port = switch.flooded_port(probe.port)
            await isolate_cancellation(switch.say_hello(port, parent.address, probe.child % 256, probe.nonce))
        except (SwitchError, Interrupted) as error:
            log.info("cannot send a switch's HELLO to its parent: %s", error)

    def _forget(self, probe: _Probe) -> None:
        self._probes.pop(probe.nonce, None)
        self._inventory.children.pop(probe.pair, None)
        self._inventory.silent.discard(probe.pair)
        self._inventory.unanswered.discard(probe.pair)

    def _exists(self, probe: _Probe) -> bool:
        """Return whether neither the switch nor its parent was removed."""
        return self._inventory.switches.keys() >= set(probe.pair)

    def _names(self, probe: _Probe) -> tuple[str, str]:
        return self._inventory.name(probe.parent), self._inventory.name(probe.child)

    def _unheard(self) -> list[_Probe]:
        return [
            probe
            for probe in self._probes.values()
            if probe.pair not in self._inventory.children and self._can_be_heard(probe)
        ]

    def _can_be_heard(self, probe: _Probe) -> bool:
        """Return whether the switch and its parent are both available."""
        switches = self._inventory.switches
        return self._exists(probe) and not any(switches[number].unavailable for number in probe.pair)
