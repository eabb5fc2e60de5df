# SPDX-License-Identifier: Apache-2.0
"""Ranks of a job in one process, each with an engine: Python's, C's, or C's with several threads."""

from __future__ import annotations

import contextlib
import random
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from p4reduce.engine.python_engine import PythonEngine
from p4reduce.errors import P4ReduceError
from p4reduce.fastpath.engine import NativeEngine
from p4reduce.protocol import Membership, Operation, Worker
from p4reduce.protocol.constants import Op
from p4reduce.protocol.numbers import reference_allreduce
from p4reduce.transport import SharedTransport, Transport, open_transport
from tests.support.c_library import needs_c_library
from tests.support.hostlib.udp_switch import UdpSwitch, members
from tests.support.waiting import wait_until

CLOSED = P4ReduceError("closed by the test")


class Rank:
    """A rank's engine, and the ends of its operations."""

    engine: Any

    def __init__(self, switch: UdpSwitch, membership: Membership, transport: Transport | None = None) -> None:
        self.ended: list[tuple[str, BaseException | None]] = []
        self.membership = membership
        self.start(switch, membership, transport)

    def start(self, switch: UdpSwitch, membership: Membership, transport: Transport | None) -> None:
        raise NotImplementedError

    def submit(self, data: npt.NDArray[np.float32], name: str = "sum", timeout: float = 20.0) -> None:
        self.engine.submit(
            Operation(data), name=name, timeout=timeout, on_end=lambda error: self.ended.append((name, error))
        )

    def wait(self, count: int = 1) -> None:
        wait_until(lambda: len(self.ended) >= count, f"{count} operations to end", 30)

    def error(self) -> Any:
        """Wait for the end of the first operation, and return its error, if any."""
        self.wait()
        return self.ended[0][1]


@contextlib.contextmanager
def ranks(
    kind: type[Rank],
    switch: UdpSwitch,
    world_size: int,
    transports: Sequence[Transport] | None = None,
    *,
    heard: bool = True,
    **shape: int,
) -> Iterator[list[Rank]]:
    """Run the ranks of a new job during the block.

    heard: whether ranks first send a HELLO. Without it, a result that precedes a rank's own packet does not reach it.
    """
    memberships = members(world_size, **shape)
    switch.admit(memberships[0])
    chosen = transports or [None] * world_size
    everyone = [kind(switch, membership, chosen[membership.rank]) for membership in memberships]
    try:
        if heard:
            for rank in everyone:
                rank.engine._transport.send([Worker(rank.membership).hello(1)])
            wait_until(lambda: len(switch.ranks_heard(memberships[0])) == world_size, "the switch to hear all ranks")
        yield everyone
    finally:
        for rank in everyone:
            rank.engine.close(CLOSED)


Ranks = Callable[..., contextlib.AbstractContextManager[list[Rank]]]
"""The function `ranks` for a certain kind of rank."""


def sparse(seed: int, size: int = 5000) -> npt.NDArray[np.float32]:
    random = np.random.default_rng(seed)
    values = random.standard_normal(size).astype(np.float32)
    values[random.random(size) < 0.99] = 0
    return values


def reduce(everyone: Sequence[Rank], *calls: Sequence[npt.NDArray[np.float32]]) -> None:
    """Run allreduce operations, and assert that sums equal the reference bit by bit.

    calls: for each operation, the array of each rank. All operations are submitted before the first has ended.
    """
    expected = [reference_allreduce(list(arrays)) for arrays in calls]
    for rank, own in zip(everyone, zip(*calls, strict=True), strict=True):
        rank.ended.clear()
        for array in own:
            rank.submit(array)
    for rank, own in zip(everyone, zip(*calls, strict=True), strict=True):
        rank.wait(len(calls))
        assert rank.ended == [("sum", None)] * len(calls)
        for array, sums in zip(own, expected, strict=True):
            np.testing.assert_array_equal(array.view(np.int32), sums.view(np.int32))


class PythonRank(Rank):
    def start(self, switch: UdpSwitch, membership: Membership, transport: Transport | None) -> None:
        transport = transport or open_transport("udp", switch.endpoint)
        self.worker = Worker(membership)
        self.engine = PythonEngine(transport, self.worker, switch=str(switch.endpoint))


class NativeRank(Rank):
    name = "test"

    def start(self, switch: UdpSwitch, membership: Membership, transport: Transport | None) -> None:
        transport = transport or open_transport("udp", switch.endpoint)
        self.engine = NativeEngine(transport, membership, switch=str(switch.endpoint), name=self.name)


class FaultySocket:
    def __init__(self, sock: socket.socket, seed: int) -> None:
        self._socket, self._random = sock, random.Random(seed)

    def sendto(self, payload: bytes, address: tuple[str, int]) -> None:
        for _ in range(self._random.choice([0, *[1] * 20, 2, 2])):
            self._socket.sendto(payload, address)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


MORE = 100  # the distance between the job numbers of a rank's threads


def shared(membership: Membership, threads: int) -> Membership:
    """Return the membership of a rank with this number of engine threads."""
    jobs = [(membership.job + MORE * thread, membership.generation) for thread in range(1, threads)]
    return replace(membership, more_jobs=tuple(jobs))


class SharedUdpSwitch(UdpSwitch):
    """A switch on which each job exists three times, once for each engine thread."""

    def __init__(self) -> None:
        self.came: Counter[int] = Counter()
        """DATA packets by the thread that sent them. One that comes again does not count."""
        self._seen: set[bytes] = set()
        self.deaf_to: set[tuple[int, int]] = set()
        """Pairs of thread and rank whose packets are dropped."""
        super().__init__()

    def admit(self, membership: Membership) -> None:
        for thread in range(3):
            super().admit(replace(membership, job=membership.job + MORE * thread, more_jobs=()))

    def _take(self, payload: bytes, address: tuple[str, int]) -> None:
        thread = int.from_bytes(payload[4:6], "big") // MORE
        if (thread, payload[3]) not in self.deaf_to:
            self.came[thread] += payload[0] & 0xF == Op.DATA and payload not in self._seen
            self._seen.add(payload)
            super()._take(payload, address)


class FaultySwitch(SharedUdpSwitch):
    """A switch that loses, duplicates and reorders the packets that it receives and sends."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.late: list[tuple[bytes, tuple[str, int]]] = []
        super().__init__()
        self._socket = FaultySocket(self._socket, seed)  # type: ignore[assignment]

    def _take(self, payload: bytes, address: tuple[str, int]) -> None:
        if self.random.random() < 0.1:
            self.late.append((payload, address))
            return
        for _ in range(self.random.choice([0, *[1] * 20, 2, 2])):
            super()._take(payload, address)
        if len(self.late) > 3:
            super()._take(*self.late.pop(self.random.randrange(4)))


class Parts(SharedTransport):
    """A transport that sends each HELLO once for every thread."""

    def send(self, payloads: Sequence[bytes]) -> int:
        for thread, part in enumerate(self.parts):
            for payload in payloads:
                job = int.from_bytes(payload[4:6], "big") + MORE * thread
                part.send([payload[:4] + job.to_bytes(2, "big") + payload[6:]])
        return len(payloads)


class SharedRank(Rank):
    """A rank with several engine threads."""

    threads = 2

    def start(self, switch: UdpSwitch, membership: Membership, transport: Transport | None) -> None:
        assert transport is None
        own = Parts([open_transport("udp", switch.endpoint) for _ in range(self.threads)])
        self.engine = NativeEngine(own, shared(membership, self.threads), switch=str(switch.endpoint))


class RankOfThree(SharedRank):
    threads = 3


KINDS = {"python": PythonRank, "c": NativeRank, "2 threads": SharedRank, "3 threads": RankOfThree}


def kind_of(name: str) -> type[Rank]:
    """Return the kind of rank with this name. Skips the test if the kind needs the C library and there is none."""
    if name != "python":
        needs_c_library()
    return KINDS[name]
