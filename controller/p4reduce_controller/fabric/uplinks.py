# SPDX-License-Identifier: Apache-2.0
"""HELLOs from each switch to its parent: they test the cables, and the parent learns its children's ports."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable

from p4reduce_controller.base.tasks import Interrupted, Tasks, isolate_cancellation
from p4reduce_controller.fabric.inventory import Inventory
from p4reduce_controller.switches.aggregator import Heard, SwitchError
from p4reduce_controller.switches.hosts import problem_of

log = logging.getLogger(__name__)

HELLO_INTERVAL = 0.1  # seconds between two HELLOs of a switch to its parent


class Uplinks:
    """The search for switches below others.

    `expected`: the switches that their parents have not heard yet, by the nonces of their HELLOs.
    """

    def __init__(self, inventory: Inventory, tasks: Tasks, clock: Callable[[], float]) -> None:
        self.expected: dict[int, int] = {}
        self._inventory = inventory
        self._tasks = tasks
        self._clock = clock

    async def find_all(self, timeout: float) -> None:
        """Wait until all parents have heard their children, at most `timeout` seconds.

        The rest is logged, and its HELLOs go on. Jobs that need one of these switches are refused meanwhile.
        """
        site = self._inventory.site
        for child in site.trees.uplinks:
            self.find(site.number(child))
        deadline = self._clock() + timeout
        while any(map(self._can_be_heard, self.expected.values())) and self._clock() < deadline:
            await asyncio.sleep(HELLO_INTERVAL)
        for child in filter(self._can_be_heard, self.expected.values()):
            port, parent = self._inventory.uplink(child)
            log.warning(
                "the switch %s has sent HELLOs out of its port %d for %g s, and none has reached its parent %s at %s",
                *(self._inventory.name(child), port, timeout),
                *(self._inventory.name(parent), self._inventory.switches[parent].address),
            )

    def find(self, child: int) -> None:
        """Send HELLOs from the switch to its parent, which is new or another one, until the parent has heard it."""
        self._inventory.children.pop(child, None)
        self.expected = {nonce: other for nonce, other in self.expected.items() if other != child}
        if not self.expected:
            self._tasks.start(self._say_hellos(), "uplinks")
        self.expected[secrets.randbits(64)] = child

    def on_hello(self, switch: int, hello: Heard) -> bool:
        """Handle a HELLO, and return whether it is one of a switch below this one."""
        child = self.expected.get(hello.nonce)
        if hello.job or child is None or self._inventory.uplink(child)[1] != switch:
            return False
        if problem := problem_of(hello.sender):
            log.warning("refused a HELLO of the switch %s: %s", self._inventory.name(child), problem)
        else:
            del self.expected[hello.nonce]
            self._inventory.children[child] = hello
        return True

    async def _say_hellos(self) -> None:
        switches = self._inventory.switches
        while self.expected:
            for nonce, child in list(self.expected.items()):
                port, parent = self._inventory.uplink(child)
                if parent < 0:  # it was removed, or no longer has a parent
                    self.expected.pop(nonce, None)
                elif self._can_be_heard(child):
                    try:
                        await isolate_cancellation(
                            switches[child].say_hello(port, switches[parent].address, child % 256, nonce)
                        )
                    except (SwitchError, Interrupted) as error:
                        log.info("cannot send a switch's HELLO to its parent: %s", error)
            await asyncio.sleep(HELLO_INTERVAL)

    def _can_be_heard(self, child: int) -> bool:
        """Return whether the switch and its parent are both available."""
        _, parent = self._inventory.uplink(child)
        switches = self._inventory.switches
        return parent >= 0 and not (switches[child].unavailable or switches[parent].unavailable)
