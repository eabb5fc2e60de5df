# SPDX-License-Identifier: Apache-2.0
"""A member that goes ahead of the others: the switch answers none of them, and the controller can tell who it was."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from p4reduce.join.joining import JoinedJob, join_job
from p4reduce.join.options import JoinOptions
from p4reduce.protocol import Membership
from p4reduce.protocol.constants import NO_KEY, Op
from p4reduce.protocol.packet import Codec, Packet
from tests.support.cluster.rank import Call
from tests.support.cluster.stack import Stack, over_udp

CULPRIT = 2


@pytest.fixture(scope="module", params=["one switch", "tree"])
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    with over_udp(target="native", leaves=2 if request.param == "tree" else 0) as stack:
        yield stack


def ahead(membership: Membership) -> bytes:
    """Return a packet of slot 0 for the round after the next one."""
    m = membership
    packet = Packet(Op.DATA, m.job, m.generation, m.worker, keys=[NO_KEY] * m.lanes, seq=(m.first_seq + 2) % 2**32)
    return Codec(m.lanes, m.block_size).encode(packet)


@contextlib.contextmanager
def culprit(stack: Stack, job: str, at: str) -> Iterator[None]:
    """Join as any rank does, and then send nothing but packets of a round that is ahead."""
    over = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        options = JoinOptions(stack.controller, job, CULPRIT, 4, slots=2, timeout=60.0, switch=at)
        joining = pool.submit(join_job, options, on_abort=lambda _: over.set())
        yield
        joined: JoinedJob = joining.result(60)
        joined.transport.send([ahead(joined.membership)])
        over.wait(60)
        joined.leave("it has gone ahead")


@pytest.mark.parametrize("backend", ["c", pytest.param("python", marks=pytest.mark.slow)])
def test_who_goes_ahead_is_named(stack: Stack, backend: str) -> None:
    others = [rank for rank in range(4) if rank != CULPRIT]
    at = stack.names[1:]
    job = f"ahead {backend}"
    with stack.ranks(
        [Call((200,))], job=job, present=others, at=at, slots=2, backends=dict.fromkeys(others, backend), timeout=120.0
    ) as ranks:
        began = time.monotonic()
        with culprit(stack, job, at[CULPRIT % 2] if at else ""):
            pass
        lasts = ranks.wait_for_ends()
    assert time.monotonic() - began < 60
    told = [last["message"] for last in lasts.values() if last["error"] == "MismatchError"]
    assert told, lasts
    assert all(f"rank {CULPRIT} is ahead of the others" in message for message in told)
    # A rank that receives the error late may learn first that another rank, which received it, has left.
    assert all(last["error"] in ("MismatchError", "JobAborted") for last in lasts.values()), lasts
