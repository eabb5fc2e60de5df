# SPDX-License-Identifier: Apache-2.0
"""A simulation in which aggregators are lost while operations run, and their slots go on at other switches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import Any

from hypothesis import strategies as st

from p4reduce.errors import P4ReduceError
from p4reduce.protocol import Membership, Operation
from p4reduce.protocol.aggregators import (
    first_slot,
    from_aggregator,
    slots_at_each,
    slots_of,
    to_aggregator,
    to_thread,
)
from p4reduce.protocol.constants import PARENT
from tests.support.protocol.dealt_switch import with_half
from tests.support.protocol.model_switch import ModelSwitch
from tests.support.protocol.scenarios import (
    check_end,
    random_calls,
    random_membership,
    random_network,
    random_racks,
    reduce_calls,
)
from tests.support.protocol.simulator import Simulation
from tests.support.protocol.threaded_worker import ThreadedWorker


@dataclass(frozen=True)
class Loss:
    """The loss of an aggregator.

    after: the number of packets transmitted before it. late: whether it also waits until a rank has ended all of its
    operations and another one has not. dies: whether its switches answer nothing more; otherwise they
    go on for ranks that do not know of the move. spread: seconds within which ranks hear of each step. abandoned: the
    ranks that do not hear where the slots went, because the next move comes first.
    """

    aggregator: int
    after: int
    dies: bool = True
    spread: float = 0.0
    late: bool = False
    abandoned: frozenset[int] = frozenset()


class Switches:
    """The switches of an aggregator at one time: a root, and leaves if there are racks."""

    def __init__(self, membership: Membership, racks: Sequence[Sequence[int]]) -> None:
        self.root = ModelSwitch(membership, len(racks) or None)
        self.leaves = [ModelSwitch(membership, len(rack), index) for index, rack in enumerate(racks)]
        self.dead = False

    def reset(self, rounds: Sequence[int]) -> None:
        """Reset the halves to rounds before those in which the slots go on. They have sums of another job."""
        for switch in (self.root, *self.leaves):
            for slot, seq in enumerate(rounds):
                for before in (1, 2):
                    switch.reset(slot << 1 | seq - before & 1, (seq - before) % 2**32)
                    switch.halves[slot << 1 | seq - before & 1].sums[...] = 12345


class MovingSimulation(Simulation):
    """A simulation of a job whose slots are striped over aggregators, which are lost as `losses` say, in this order.

    threads: threads of a rank, each of which has a share of the slots.
    """

    def __init__(
        self,
        membership: Membership,
        *,
        aggregators: int,
        losses: Sequence[Loss],
        threads: int = 1,
        racks: Sequence[Any] = (),
        **how: Any,
    ) -> None:
        super().__init__(membership, racks=racks, **how)
        self.aggregators, self.threads = aggregators, threads
        if threads > 1:
            self.workers = [ThreadedWorker(worker.membership, threads) for worker in self.workers]
        for worker in self.workers:
            worker.set_aggregators(aggregators)
        self._membership = membership
        self._slots = [slots_of(thread, membership.slots, threads) for thread in range(threads)]
        self.places = [[self._new_place()] for _ in range(aggregators)]
        self._at = [[0] * aggregators for _ in self.workers]  # the place of each aggregator, as each rank knows
        self._losses = list(losses)
        self._under_way = False
        self._transmitted = 0
        self._operations = 0
        self.lost_late = 0
        """Losses when some ranks had ended all operations and others had not."""
        self.repeated = 0
        """Slots of ranks that have sent the packet of an earlier round again."""

    def _new_place(self) -> list[Switches]:
        """Return the switches of an aggregator, thread after thread: each thread's slots are a job of their own."""
        each = [replace(self._membership, slots=slots_at_each(slots, self.aggregators)) for slots in self._slots]
        return [Switches(membership, self.racks) for membership in each]

    def reduce(self, operations: Sequence[Sequence[Operation]], limit: float = 1000.0, skew: float = 0.0) -> None:
        self._operations += len(operations[0])
        super().reduce(operations, limit, skew)

    def _some_have_ended(self) -> bool:
        return len({worker.stats.operations == self._operations for worker in self.workers}) == 2

    def to_switch(self, rank: int, payload: bytes) -> None:
        thread, own = to_thread(int.from_bytes(payload[8:10], "big"), self._membership.slots, self.threads)
        aggregator, half = to_aggregator(own, self.aggregators)
        where = aggregator, self._at[rank][aggregator], thread
        leaf = next((index for index, rack in enumerate(self.racks) if rank in rack), None)
        worker = self.workers[rank].membership.worker
        self._transmit(partial(self._at_place, where, leaf, worker, with_half(payload, half)))

    def _at_place(self, where: tuple[int, int, int], leaf: int | None, sender: int, payload: bytes) -> None:
        aggregator, number, thread = where
        place = self.places[aggregator][number][thread]
        if place.dead:
            return
        switch = place.root if leaf is None else place.leaves[leaf]
        receivers, answer = switch.receive(sender, payload) or ((), b"")
        for receiver in receivers:
            if leaf is None and self.racks:
                self._transmit(partial(self._at_place, where, receiver, PARENT, answer))
            elif leaf is not None and receiver == PARENT:
                self._transmit(partial(self._at_place, where, None, leaf, answer))
            else:
                rank = receiver if leaf is None else self.racks[leaf][receiver]
                self._transmit(partial(self._at_rank, where, rank, answer))

    def _at_rank(self, where: tuple[int, int, int], rank: int, payload: bytes) -> None:
        aggregator, place, thread = where
        if self._at[rank][aggregator] != place:
            return  # of an earlier generation
        half = from_aggregator(int.from_bytes(payload[8:10], "big"), aggregator, self.aggregators)
        first = first_slot(thread, self._membership.slots, self.threads)
        self._receive(rank, with_half(payload, half + 2 * first))
        self._lose_next()

    def _transmit(self, arrive: Any) -> None:
        super()._transmit(arrive)
        self._transmitted += 1
        self._lose_next()

    def _lose_next(self) -> None:
        if not self._losses or self._under_way or self._transmitted < self._losses[0].after:
            return
        if self._some_have_ended() or not self._losses[0].late:
            self._lose(self._losses.pop(0))

    def _lose(self, loss: Loss) -> None:
        self._under_way = True
        self.lost_late += self._some_have_ended()
        for switches in self.places[loss.aggregator][-1]:
            switches.dead = loss.dies
        rounds: list[list[int]] = []
        for rank in range(len(self.workers)):
            self.at(self._soon(loss), partial(self._suspend, loss, rank, rounds))

    def _soon(self, loss: Loss) -> float:
        return self.now + self.random.random() * loss.spread

    def _suspend(self, loss: Loss, rank: int, rounds: list[list[int]]) -> None:
        worker = self.workers[rank]
        rounds.append(self._told(rank, worker.suspend(loss.aggregator)))
        self._after(rank)
        if len(rounds) < len(self.workers):
            return
        least = [min(each, key=lambda seq: (seq - each[0] + 2**31) % 2**32) for each in zip(*rounds, strict=True)]
        for own in rounds:
            if any((seq - first) % 2**32 > 1 for seq, first in zip(own, least, strict=True)):
                raise ValueError("ranks are too far apart")
            self.repeated += own != least
        place, left = self._new_place(), list(least)
        for switches, slots in zip(place, self._slots, strict=True):
            count = len(range(loss.aggregator, slots, self.aggregators))
            switches.reset(left[:count])
            del left[:count]
        places = self.places[loss.aggregator]
        places.append(place)
        abandoned = loss.abandoned if self._losses else frozenset()
        others = {rank for rank in range(len(self.workers)) if rank not in abandoned}
        for rank in others:
            self.at(self._soon(loss), partial(self._rewind, loss.aggregator, rank, least, len(places) - 1))
        self.at(self.now + loss.spread, self._moved)

    def _told(self, rank: int, rounds: list[int]) -> list[int]:  # noqa: ARG002
        """Return the rounds that a rank tells the controller."""
        return rounds

    def _rewind(self, aggregator: int, rank: int, rounds: list[int], place: int) -> None:
        self.workers[rank].rewind(aggregator, rounds, self.now)
        self._at[rank][aggregator] = place
        self._after(rank)

    def _moved(self) -> None:
        self._under_way = False
        self._lose_next()


class LyingSimulation(MovingSimulation):
    """A simulation in which the last rank tells false rounds, but otherwise does as it should.

    The job ends when the controller or a rank notices.
    """

    def _told(self, rank: int, rounds: list[int]) -> list[int]:
        if rank < len(self.workers) - 1:
            return rounds
        return [(seq + self.random.choice([-1, 0, 0, 1])) % 2**32 for seq in rounds]

    def _suspend(self, loss: Loss, rank: int, rounds: list[list[int]]) -> None:
        try:
            super()._suspend(loss, rank, rounds)
        except ValueError as error:
            self._end(error)

    def _rewind(self, aggregator: int, rank: int, rounds: list[int], place: int) -> None:
        try:
            super()._rewind(aggregator, rank, rounds, place)
        except ValueError as error:
            self._end(error)

    def _end(self, error: Exception) -> None:
        for worker in self.workers:
            worker.fail(P4ReduceError(str(error)))


def run_losses(
    seed: int, aggregators: int, losses: list[Loss], *, tree: bool = False, threads: int = 1
) -> MovingSimulation:
    """Run random operations while aggregators are lost, check the results, and return the simulation."""
    random = Random(seed)
    membership = random_membership(random)
    membership = replace(membership, slots=max(membership.slots, threads))
    racks = random_racks(random, membership) if tree else ()
    losses = [replace(loss, aggregator=loss.aggregator % aggregators) for loss in losses]
    for index in range(1, len(losses)):
        if losses[index - 1].abandoned:  # the next move is that of the same aggregator, and all ranks hear of the last
            losses[index] = replace(losses[index], aggregator=losses[index - 1].aggregator, after=0, late=False)
    losses[-1] = replace(losses[-1], abandoned=frozenset())
    simulation = MovingSimulation(
        membership,
        aggregators=aggregators,
        losses=losses,
        threads=threads,
        racks=racks,
        seed=seed,
        network=random_network(random),
    )
    calls = random_calls(random, membership)
    reduce_calls(simulation, calls, limit=10_000, skew=random.choice([0, 0.001, 1.0]))
    check_end(simulation, calls)
    return simulation


LOSSES = st.lists(
    st.builds(
        Loss,
        aggregator=st.integers(0, 3),
        after=st.integers(0, 300),
        dies=st.booleans(),
        spread=st.sampled_from([0.0, 0.0005, 0.02, 1.0]),
        late=st.booleans(),
        abandoned=st.frozensets(st.integers(0, 4), max_size=2),
    ),
    min_size=1,
    max_size=4,
)
