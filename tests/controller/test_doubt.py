# SPDX-License-Identifier: Apache-2.0
"""A service whose store cannot say whether another controller serves by now: it blames nobody, and admits nobody."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from p4reduce.control import jobs_pb2 as pb
from p4reduce.control import rpc
from p4reduce.control.grpc_channels import open_grpc_channel
from p4reduce_controller.switches.availability import Unavailable
from tests.support.controller.ranks import Rank, ready
from tests.support.controller.running import Loop, Running
from tests.support.waiting import wait_until


@pytest.fixture
def running(loop: Loop, tmp_path: Path) -> Iterator[Running]:
    running = Running(loop, state=tmp_path / "state")
    yield running
    assert running.state is not None
    running.state.maybe_lost_leadership, running.state.shared = None, False
    running.close()


def in_doubt(running: Running, why: str) -> None:
    assert running.state is not None
    running.loop.call(setattr, running.state, "maybe_lost_leadership", Unavailable(why) if why else None)


def job(running: Running) -> list[Rank]:
    ranks = [running.rank(rank, 2) for rank in range(2)]
    ready(ranks)
    return ranks


class Asked:
    """Instead of the store's word on whether it is ours, which it has in the end."""

    def __init__(self, running: Running) -> None:
        self.answer: asyncio.Future[bool] = asyncio.Future(loop=running.loop.loop)
        self.times = 0
        assert running.state is not None
        running.state.shared = True
        running.state.is_ours = self  # type: ignore[assignment]

    async def __call__(self) -> bool:
        self.times += 1
        return await self.answer


@pytest.mark.parametrize("ours", [True, False])
def test_nobody_is_lost_before_it_is_known_that_the_store_was_ours_then(running: Running, ours: bool) -> None:
    """Else another controller has taken over, and the rank is there."""
    ranks = job(running)
    asked = Asked(running)
    ranks[1].session.close()
    wait_until(lambda: asked.times, "the question")
    assert ranks[0].session.aborted is None
    running.loop.call(asked.answer.set_result, ours)
    if ours:
        wait_until(lambda: ranks[0].aborted_at, "the abort")
    else:
        end = time.monotonic() + 0.5
        wait_until(lambda: time.monotonic() > end, "time to pass")
        assert ranks[0].session.aborted is None


@pytest.mark.parametrize("first", [pb.ClientMessage(join=pb.Join(job="j", world_size=1)), pb.ClientMessage(rejoin={})])
def test_nobody_is_let_in_meanwhile(running: Running, first: pb.ClientMessage) -> None:
    """Neither a rank of this one's jobs, which may be back with another controller."""
    in_doubt(running, "etcd is away")
    with open_grpc_channel(running.address) as channel, pytest.raises(grpc.RpcError) as error:
        list(rpc.JobsStub(channel).Session(iter([first]), timeout=10))
    assert isinstance(error.value, grpc.Call)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE
    assert error.value.details() == "this controller stands by: etcd is away"
