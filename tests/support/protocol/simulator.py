# SPDX-License-Identifier: Apache-2.0
"""A simulator in virtual time: workers, a switch, and a network that loses, duplicates, delays and reorders packets.

One seed determines everything random, so a schedule that fails can be repeated.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from p4reduce.protocol import Membership, Operation
from p4reduce.protocol.constants import PARENT

from .model_switch import ModelSwitch
from .worker_pair import new_worker


@dataclass(frozen=True)
class Network:
    """The behaviour of the network: probabilities for each packet, and times in seconds.

    The delay of a packet is `latency` plus a uniform random number from [0, delay].
    """

    loss: float = 0.0
    duplicates: float = 0.0
    latency: float = 0.0001
    delay: float = 0.0
    duplicate_delay: float = 0.0
    marks: float = 0.0  # share of answers that arrive marked (CE)


class Simulation:
    """A simulation of one job.

    racks: the ranks at each leaf, below one spine. Without racks, one switch has all ranks.
    switch, leaves: objects with the method `receive` of a model switch. By default they are model switches.
    lateness: the least time in seconds before a worker's timer fires.
    """

    def __init__(
        self,
        membership: Membership,
        *,
        seed: int,
        network: Network = Network(),
        switch: ModelSwitch | None = None,
        racks: Sequence[Sequence[int]] = (),
        leaves: Sequence[ModelSwitch] = (),
        lateness: float = 0.0,
    ) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.network = network
        self.lateness = lateness
        self.now = 0.0
        self.switch = switch or ModelSwitch(membership, len(racks) or None)  # the root
        self.leaves = leaves or [ModelSwitch(membership, len(rack), index) for index, rack in enumerate(racks)]
        self.racks = racks
        self.up: list[bytes] = []  # packets from leaves to the spine, whether lost or not
        self.down: list[bytes] = []
        everyone = (tuple(range(membership.world_size)),)
        memberships = {
            rank: replace(membership, rank=rank, peers=tuple(peers)) for peers in racks or everyone for rank in peers
        }
        self.workers = [new_worker(memberships[rank]) for rank in sorted(memberships)]
        self.sent: list[list[bytes]] = [[] for _ in self.workers]  # by worker
        self.received: list[list[bytes]] = [[] for _ in self.workers]
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self._timers: list[float | None] = [None] * len(self.workers)

    @property
    def resent(self) -> float:
        """The share of retransmissions among all packets of workers."""
        sent = sum(worker.stats.packets_sent for worker in self.workers)
        return sum(worker.stats.retransmissions for worker in self.workers) / sent

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._order += 1  # events at the same time run in the order of their creation
        heapq.heappush(self._events, (when, self._order, action))

    def submit(self, rank: int, operation: Operation, when: float = 0.0) -> None:
        def action() -> None:
            self.workers[rank].submit(operation, self.now)
            self._after(rank)

        self.at(when, action)

    def submit_all(self, operations: Sequence[Operation], late: Mapping[int, float] | None = None) -> None:
        """Submit one operation of each rank.

        late: seconds by which ranks submit later than now.
        """
        for rank, operation in enumerate(operations):
            self.submit(rank, operation, self.now + (late or {}).get(rank, 0.0))

    def finish(self, operations: Iterable[Operation], limit: float = 1000.0) -> None:
        """Run until these operations are done."""
        waiting = list(operations)
        self.run(lambda: all(operation.done for operation in waiting), limit)

    def run(self, until: Callable[[], bool], limit: float = 1000.0) -> None:
        """Run until a condition holds. Raises AssertionError if it does not within `limit` virtual seconds."""
        while not until():
            assert self._events, f"nothing left to happen (seed {self.seed})"
            when, _, action = heapq.heappop(self._events)
            self.now = max(self.now, when)
            assert self.now < limit, f"no end after {limit} s (seed {self.seed})"
            action()

    def reduce(self, operations: Sequence[Sequence[Operation]], limit: float = 1000.0, skew: float = 0.0) -> None:
        """Run the operations of each rank until all are done. Ranks begin up to `skew` seconds apart."""
        for rank, own in enumerate(operations):
            when = self.now + self.random.random() * skew
            for operation in own:
                self.submit(rank, operation, when)
        self.finish((operation for own in operations for operation in own), limit)

    def drain(self) -> None:
        """Run until no event is left."""
        self.run(lambda: not self._events, limit=float("inf"))

    def to_worker(self, rank: int, payload: bytes) -> None:
        self._transmit(lambda: self._receive(rank, payload))

    def to_switch(self, rank: int, payload: bytes) -> None:
        worker = self.workers[rank].membership.worker
        leaf = next((index for index, rack in enumerate(self.racks) if rank in rack), None)
        self._transmit(lambda: self._at_switch(leaf, worker, payload))

    def _at_switch(self, leaf: int | None, sender: int, payload: bytes) -> None:
        """Deliver a packet to a leaf, or to the root if `leaf` is None."""
        switch = self.switch if leaf is None else self.leaves[leaf]
        receivers, answer = switch.receive(sender, payload) or ((), b"")
        for receiver in receivers:
            if leaf is None and self.racks:
                self.down.append(answer)
                self._transmit(partial(self._at_switch, receiver, PARENT, answer))
            elif leaf is None:
                self.to_worker(receiver, answer)
            elif receiver == PARENT:
                self.up.append(answer)
                self._transmit(partial(self._at_switch, None, leaf, answer))
            else:
                self.to_worker(self.racks[leaf][receiver], answer)

    def _transmit(self, arrive: Callable[[], None]) -> None:
        network, draw = self.network, self.random.random
        if draw() >= network.loss:
            self.at(self.now + network.latency + draw() * network.delay, arrive)
        if network.duplicates and draw() < network.duplicates:
            self.at(self.now + network.latency + draw() * network.duplicate_delay, arrive)

    def _receive(self, rank: int, payload: bytes) -> None:
        self.received[rank].append(payload)
        marks = self.network.marks
        self.workers[rank].receive(payload, self.now, bool(marks) and self.random.random() < marks)
        self._after(rank)

    def _tick(self, rank: int) -> None:
        if self._timers[rank] == self.now:
            self._timers[rank] = None
        self.workers[rank].tick(self.now)
        self._after(rank)

    def _after(self, rank: int) -> None:
        worker = self.workers[rank]
        for payload in worker.take_packets():
            self.sent[rank].append(payload)
            self.to_switch(rank, payload)
        deadline, timer = worker.next_deadline(), self._timers[rank]
        if deadline is None:
            return
        when = max(deadline, self.now + self.lateness)
        if timer is None or when < timer:
            self._timers[rank] = when
            self.at(when, lambda: self._tick(rank))
