# SPDX-License-Identifier: Apache-2.0
"""An engine of several threads, each with a share of the slots, is to callers what an engine of one is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
import test_engine as python_engine
import test_native_engine as native_engine
from hypothesis import given, settings
from hypothesis import strategies as st
from test_native_engine import SHARED, FaultySocket, FaultySwitch, WorkerOfEngine
from udp_switch import UdpSwitch, members
from waiting import wait_until

from p4reduce.errors import CollectiveTimeout, JobAborted, MismatchError
from p4reduce.fastpath.engine import NativeEngine
from p4reduce.protocol import Membership, Operation
from p4reduce.protocol.numbers import reference_allreduce
from p4reduce.transport import SharedTransport, Transport, open_transport

CLOSED = python_engine.CLOSED
MORE = 100  # job numbers of shares are so far apart


def shared(membership: Membership, threads: int) -> Membership:
    """Of a rank with so many engine threads."""
    jobs = [(membership.job + MORE * thread, membership.generation) for thread in range(1, threads)]
    return replace(membership, more_jobs=tuple(jobs))


class SharedUdpSwitch(UdpSwitch):
    """Has a job for each of three threads, wherever it has one."""

    def admit(self, membership: Membership) -> None:
        for thread in range(3):
            super().admit(replace(membership, job=membership.job + MORE * thread, more_jobs=()))


class FaultySharedSwitch(SharedUdpSwitch, FaultySwitch):
    pass


class Parts(SharedTransport):
    """Says HELLO for all threads."""

    def send(self, payloads: Sequence[bytes]) -> int:
        for thread, part in enumerate(self.parts):
            for payload in payloads:
                job = int.from_bytes(payload[4:6], "big") + MORE * thread
                part.send([payload[:4] + job.to_bytes(2, "big") + payload[6:]])
        return len(payloads)


class SharedRank(python_engine.Rank):
    """A rank with so many threads."""

    threads = 2

    def __init__(self, switch: UdpSwitch, membership: Membership, transport: Transport | None = None) -> None:
        assert transport is None
        own = Parts([open_transport("udp", switch.place) for _ in range(self.threads)])
        shares = shared(membership, self.threads)
        self.engine = NativeEngine(own, shares, switch=str(switch.place))  # type: ignore[assignment]
        self.worker = WorkerOfEngine(membership, self.engine)  # type: ignore[assignment, arg-type]
        self.ended: list[tuple[str, BaseException | None]] = []


class RankOfThree(SharedRank):
    threads = 3


@pytest.fixture
def switch() -> Iterator[UdpSwitch]:
    switch = SharedUdpSwitch()
    try:
        yield switch
    finally:
        switch.close()


@pytest.mark.parametrize("kind", [SharedRank, RankOfThree], ids=["2", "3"])
@pytest.mark.parametrize("name", SHARED, ids=lambda name: name.removeprefix("test_"))
def test_as_with_one(name: str, kind: type, switch: UdpSwitch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_engine, "Rank", kind)
    getattr(python_engine, name)(switch)
