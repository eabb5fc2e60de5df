# SPDX-License-Identifier: Apache-2.0
"""Simulated jobs in which one admitted member sends wrong packets. A seed determines each job."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from random import Random
from typing import Any, Protocol

import numpy as np

from p4reduce.errors import MismatchError
from p4reduce.protocol import Membership, Operation
from p4reduce.protocol.constants import NO_KEY, PARENT, Op, Outcome
from p4reduce.protocol.packet import LANES_OF, NO_VALUES, Codec, Packet, ProtocolError

from .scenarios import random_array
from .simulator import Network, Simulation

LIMIT_S = 30.0
AGAIN_S = 5.0  # the time in which workers retransmit unanswered packets
FAULTS = int(os.environ.get("P4REDUCE_FAULTS", "0"))  # the faults in each test; 0 means as many as take seconds
ONE_SEED = os.environ.get("P4REDUCE_SEED", "")
ALL = 0xFFFFFFFF


class Aggregator(Protocol):
    """A switch of one job: the model or a data plane.

    outcomes: the number of packets with each outcome.
    """

    outcomes: Any

    def query(self, half: int) -> tuple[int, int]:
        """Return the seq and the bitmap of a half."""
        ...

    def receive(self, sender: int, payload: bytes) -> tuple[tuple[int, ...], bytes] | None: ...


class Witness:
    """A switch, with a record of the packets that it counted: for each round, the packet of each rank."""

    def __init__(self, switch: Aggregator, ranks: Sequence[int], codec: Codec) -> None:
        self._switch, self._ranks, self._codec = switch, ranks, codec
        self.said: dict[tuple[int, int], dict[int, Packet]] = {}

    def receive(self, sender: int, payload: bytes) -> tuple[tuple[int, ...], bytes] | None:
        before = self._counted()
        answer = self._switch.receive(sender, payload)
        if sender != PARENT and self._counted() > before:
            packet = self._codec.decode(payload)
            self.said.setdefault((packet.slot, packet.seq), {})[self._ranks[sender]] = packet
        return answer

    def counted(self, half: int) -> tuple[int, list[int]]:
        """Return the round of a half and the ranks that are counted in it, as the controller queries them."""
        seq, bitmap = self._switch.query(half)
        return seq, [rank for worker, rank in enumerate(self._ranks) if bitmap >> worker & 1]

    def _counted(self) -> int:
        outcomes = self._switch.outcomes
        return int(outcomes[Outcome.STARTED]) + int(outcomes[Outcome.ADDED])


class FaultyMember(Simulation):
    """A simulation in which packets of rank `culprit` are changed, dropped, repeated or delayed.

    No other packet is lost or changed.
    """

    def __init__(
        self,
        membership: Membership,
        culprit: int,
        random: Random,
        switch: Aggregator | None = None,
        *,
        racks: Sequence[Sequence[int]] = (),
        leaves: Sequence[Aggregator] = (),
    ) -> None:
        given: Any = {"switch": switch, "leaves": leaves}
        super().__init__(membership, seed=random.getrandbits(32), network=Network(), racks=racks, **given)
        self.culprit, self.faults = culprit, random
        self.codec = Codec(membership.lanes, membership.block_size)
        self.rate = random.choice([0.02, 0.1, 0.5])
        self.changes: list[str] = []
        self.operations: list[Operation] = []  # the operations of honest ranks
        self.outcome = ""
        self.witnesses: list[Witness] = []
        below: Any = [(self.leaves[index], rack) for index, rack in enumerate(racks)]
        for one, ranks in below or [(self.switch, range(membership.world_size))]:
            self.witnesses.append(Witness(one, ranks, self.codec))
        if racks:
            self.leaves = list(self.witnesses)  # type: ignore[arg-type]
        else:
            self.switch = self.witnesses[0]  # type: ignore[assignment]
        for rank, worker in enumerate(self.workers):
            if rank != culprit:
                self._check_results(worker._rounds)

    def _check_results(self, rounds: Any) -> None:
        take = rounds.take_result

        def take_result(slot: Any, task: Any, packet: Packet) -> bytes | None:
            self.check_result(slot.active, packet)
            result: bytes | None = take(slot, task, packet)
            return result

        rounds.take_result = take_result

    def check_result(self, active: int, packet: Packet) -> None:
        """Assert that a result is the sum of the packets of all members, with the smallest of their keys."""
        said = [one for witness in self.witnesses for one in witness.said[packet.slot, packet.seq].values()]
        assert len(said) == len(self.workers)
        assert list(packet.keys) == [min(keys) for keys in zip(*(one.keys for one in said), strict=True)]
        sums = np.zeros((self.codec.lanes, self.codec.block_size), np.int32)
        for one in said:
            sums[list(LANES_OF[one.present])] += one.values.reshape(-1, self.codec.block_size)
        assert np.array_equal(packet.values.reshape(-1, self.codec.block_size), sums[list(LANES_OF[active])])

    def to_switch(self, rank: int, payload: bytes) -> None:
        if rank != self.culprit or self.faults.random() >= self.rate:
            super().to_switch(rank, payload)
            return
        kind = self.faults.choice(["leave out", "late", "repeat", "old", "bytes", "length", *["field"] * 12])
        self.changes.append(kind)
        if kind == "late":
            self.at(self.now + self.faults.random(), lambda: Simulation.to_switch(self, rank, payload))
        elif kind == "repeat":
            for _ in range(self.faults.randint(2, 4)):
                super().to_switch(rank, payload)
        elif kind == "old":
            super().to_switch(rank, self.faults.choice(self.sent[rank]))
        elif kind == "bytes":
            super().to_switch(rank, self.faults.randbytes(self.faults.randint(0, 200)))
        elif kind == "length":
            super().to_switch(rank, (payload + bytes(300))[: self.faults.randint(0, len(payload) + 300)])
        elif kind == "field":
            super().to_switch(rank, self._changed(payload))

    def _changed(self, payload: bytes) -> bytes:
        packet, random = self.codec.decode(payload), self.faults
        packet.keys = list(packet.keys)
        field = random.choice(["active", "present", "keys", "values", "operation", "seq", "slot", "op", "member"])
        self.changes[-1] = field
        if field == "active":
            self._set_lanes(packet, random.getrandbits(self.codec.lanes), packet.present)
        elif field == "present":
            self._set_lanes(packet, packet.active, packet.active & random.getrandbits(self.codec.lanes))
        elif field == "keys":
            lane = random.randrange(self.codec.lanes)
            key = packet.keys[lane]
            packet.keys[lane] = random.choice([key + 256, key - 256, key - 1, NO_KEY, 0, random.getrandbits(32)]) & ALL
        elif field == "values":
            packet.values = packet.values + random.getrandbits(20)
        elif field == "operation":
            packet.fingerprint ^= 256 << random.randrange(24)
        elif field == "seq":
            packet.seq = packet.seq + random.choice([1, 2, 2, 3, 4, -1, -2, 2**31 - 1, 2**31]) & ALL
            packet.slot = packet.slot & ~1 | packet.seq & 1
        elif field == "slot":
            packet.slot = random.choice([packet.slot ^ 1, packet.slot ^ 2, packet.slot + 2, random.getrandbits(16)])
            packet.slot &= 0xFFFF
        elif field == "op":
            packet.op = random.choice(list(Op))
        else:
            setattr(packet, random.choice(["worker", "job", "generation"]), random.getrandbits(8))
        changed = self.codec.encode(packet)
        return changed if random.random() < 0.95 else bytes([random.getrandbits(8)]) + changed[1:]

    def _set_lanes(self, packet: Packet, active: int, present: int) -> None:
        """Change the lanes of a packet, as if the member had other lanes in the round.

        At random, the fingerprint changes accordingly or not.
        """
        held = dict(zip(LANES_OF[packet.present], packet.values, strict=True))
        present &= active
        rows = [held.get(lane, np.ones(self.codec.block_size, np.int32)) for lane in LANES_OF[present]]
        packet.values = np.array(rows, np.int32) if rows else NO_VALUES
        packet.active, packet.present = active, present
        if self.faults.random() < 0.5:
            packet.fingerprint = packet.fingerprint & ~0xFF | active

    def gone_ahead(self, worker: Any) -> set[int]:
        """Return the ranks that a worker accuses, after a query of the halves in which it waits for an answer."""
        halves = [slot.index << 1 | slot.seq & 1 for slot in worker._slots if slot.in_network]
        counted = [(half, *witness.counted(half)) for half in halves for witness in self.witnesses]
        return {other for half, seq, others in counted for other in others if worker.is_impossible(half, seq)}

    def end(self) -> str:
        """Run until an honest rank has an error, all have completed, or time is up. Return how the case ended."""
        outcome = self._end(LIMIT_S)
        if not outcome:
            # The culprit's last packet may have replaced a round. Ranks learn that only when they retransmit.
            self.rate = 0.0
            outcome = self._end(LIMIT_S + AGAIN_S)
        assert outcome, f"honest ranks wait for nothing after {self.changes}"
        return outcome

    def _end(self, limit: float) -> str:
        """Run until the end or until the time `limit`, and return the outcome.

        | outcome | meaning |
        |---|---|
        | told | an honest rank has an error |
        | ended | all honest ranks have completed |
        | gone ahead | time is up, and a query of the switch shows that the culprit is in an impossible round |
        | awaited | time is up, and the honest ranks know that they wait for the culprit |
        | "" | time is up, and no honest rank suspects the culprit |
        """
        honest = [worker for rank, worker in enumerate(self.workers) if rank != self.culprit]

        def over() -> bool:
            failed = any(worker.failure is not None for worker in honest)
            return failed or all(one.done for one in self.operations) or self.now > limit or not self._events

        self.run(over, limit=2 * limit)
        failures = [worker.failure for worker in honest if worker.failure is not None]
        for error in failures:
            self._check_error(error)
        if failures:
            return "told"
        waiting = [worker for worker in honest if not worker.idle]
        if not waiting:
            return "ended"
        accused = set().union(*map(self.gone_ahead, waiting))
        assert accused <= {self.culprit}
        awaited = any(self.culprit in worker.awaited() for worker in waiting)
        return "gone ahead" if accused else "awaited" if awaited else ""

    def _check_error(self, error: BaseException | None) -> None:
        assert isinstance(error, MismatchError)
        message = str(error)
        if "This rank agrees" not in message and "So this rank" not in message and "no packet says" not in message:
            return  # the rank was not in that round, so it accuses nobody
        named = re.findall(r"\d+", " ".join(re.findall(r"ranks? (\d+(?:, \d+)*)", message)))
        assert (
            str(self.culprit) in named or "number is not known" in message or "packets do not tell which" in message
        ), message


def run_case(
    seed: int,
    membership: Membership,
    switch: Aggregator | None = None,
    *,
    racks: Sequence[Sequence[int]] = (),
    leaves: Sequence[Aggregator] = (),
) -> FaultyMember:
    """Run the job of a seed, with one faulty member, to its end, and return the simulation."""
    random = Random(seed)
    culprit = random.randrange(membership.world_size)
    simulation = FaultyMember(membership, culprit, random, switch, racks=racks, leaves=leaves)
    try:
        for index in range(random.choice([1, 2, 3])):
            size = random.choice([1, random.randint(0, 12 * membership.block_size * membership.lanes)])
            kind = random.choice([np.float32, np.int32])
            for rank in range(membership.world_size):
                array = random_array(random, size, membership.block_size, kind)
                operation = Operation(array)
                simulation.submit(rank, operation, (index + random.random()) * 0.001)
                if rank != culprit:
                    simulation.operations.append(operation)
        simulation.outcome = simulation.end()
    except (AssertionError, ProtocolError) as error:
        raise AssertionError(f"seed {seed}: {error}; rank {culprit}: {simulation.changes}") from error
    return simulation


def run_cases(case: Callable[[int], FaultyMember], faults: int, first: int = 0, step: int = 1) -> Counter[str]:
    """Run cases until they have had enough faults. Return the number of faults, and of each outcome.

    If P4REDUCE_SEED is set, only the case of this seed runs.

    first, step: the seeds are `first`, `first + step` and so on.
    """
    ends: Counter[str] = Counter()
    for seed in [int(ONE_SEED)] if ONE_SEED else count(first, step):
        if seed % step == first:
            simulation = case(seed)
            ends.update([simulation.outcome])
            ends["faults"] += len(simulation.changes)
        if ends["faults"] >= faults:
            break
    return ends


def check_ends(ends: Counter[str]) -> None:
    """Print the outcomes. Given many faults, assert that every outcome has occurred."""
    print(", ".join(f"{what}: {number}" for what, number in ends.items()))
    assert ends["faults"] < 5000 or ends.keys() >= {"ended", "told", "awaited", "gone ahead"}


def membership_of(world_size: int, lanes: int, block_size: int, slots: int) -> Membership:
    return replace(
        Membership(7, 1, 0, world_size, slots=slots, lanes=lanes, block_size=block_size, first_seq=2), rank=0
    )
