# SPDX-License-Identifier: Apache-2.0
"""Ranks that share a stream, their leaders, and the worker numbers by which a switch knows them."""

from __future__ import annotations

import random
import secrets
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from p4reduce.errors import list_ranks
from p4reduce.fastpath import structures as c
from p4reduce.fastpath.library import to_c, to_exception
from p4reduce.protocol import Membership, Operation
from p4reduce.protocol.constants import Op
from p4reduce.protocol.packet import Codec, pack
from tests.support.c_library import whole_library
from tests.support.protocol import worker_pair

HOSTS = (7, 3, 7, 3, 5, 7)


def member(rank: int, **fields: Any) -> Membership:
    usual = {"job": 1, "generation": 1, "slots": 4, "lanes": 4, "block_size": 64, "first_seq": 0}
    return Membership(rank=rank, **{**usual, "world_size": len(HOSTS), "hosts": HOSTS, **fields})


def test_the_lowest_rank_of_a_host_leads_it() -> None:
    assert member(0).leaders == (0, 1, 4)
    assert [member(rank).leader for rank in range(6)] == [0, 1, 0, 1, 4, 0]
    assert member(5).colocated == (0, 2, 5)
    assert [member(rank).worker for rank in range(6)] == [0, 1, 0, 1, 2, 0]
    assert member(3).ranks(0b101) == (0, 2, 4, 5)
    assert member(0).elsewhere == ()


def test_peers_are_leaders() -> None:
    placed = member(3, peers=(4, 1))
    assert placed.worker == 1
    assert placed.ranks(0b11) == (1, 3, 4)
    assert placed.elsewhere == (0, 2, 5)


def test_each_rank_leads_itself_where_none_share() -> None:
    alone = member(2, hosts=())
    assert alone.leaders == tuple(range(6))
    assert alone.colocated == (2,)
    assert alone.leader == alone.worker == 2
    assert member(2, hosts=(), peers=(3, 2)).elsewhere == (0, 1, 4, 5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"peers": (0, 3)}, "peers are"),  # 3 leads nobody
        ({"peers": (1, 4)}, "peers are"),
        ({"peers": (0, 0)}, "peers are"),
        ({"hosts": (0, 0, 0, 0, 0, 4096)}, r"hosts"),
        ({"world_size": 80, "hosts": tuple(range(40)) * 2}, "40 of 40 hosts are at one switch: accepted are up to 32"),
    ],
)
def test_others_are_refused_in_python_and_in_c(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        member(0, **fields)
    good = to_c(member(0))
    fields = {"peer_count": len(fields.get("peers", ())), **fields}
    for name, value in fields.items():
        setattr(good, name, type(getattr(good, name))(*value) if isinstance(value, tuple) else value)
    error = c.Error.make()
    assert not whole_library().p4reduce_worker_new(good, None, error)
    assert message.split(":")[0] in str(to_exception(error))


def test_hosts_are_of_all_ranks() -> None:
    with pytest.raises(ValueError, match="hosts are"):
        member(0, hosts=(0, 0))
    with pytest.raises(ValueError, match="hosts are"):
        member(0, hosts=(0, 0, 0, 0, 0, 4096))


def test_thousands_of_ranks_on_many_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python and C agree on whom a worker waits for among 4,096 ranks on 1,024 hosts, of which 31 are at its switch."""
    hosts = tuple(rank * 7 % 1024 for rank in range(4096))
    peers = (*random.Random(3).sample(range(6, 1024), 30), 5)
    placed = member(3 * 1024 + 5, world_size=4096, hosts=hosts, peers=peers)
    assert (placed.leader, placed.worker, len(placed.leaders)) == (5, 30, 1024)
    everyone = placed.ranks(2**31 - 1)
    assert sorted(everyone) == sorted(peer + 1024 * beside for peer in peers for beside in range(4))
    assert set(placed.elsewhere) == set(range(4096)) - set(everyone)
    monkeypatch.setattr(worker_pair, "both", True)
    worker = worker_pair.new_worker(placed)
    worker.submit(Operation(np.ones(4, np.float32)), 0.0)
    codec = Codec(placed.lanes, placed.block_size)
    (sent,) = map(codec.decode, worker.take_packets())
    for counted, awaited in (1 << 30, placed.ranks(2**30 - 1)), (2**31 - 1, placed.elsewhere):
        keys = [counted, *[0] * (placed.lanes - 1)]
        worker.receive(pack(replace(sent, op=Op.STATUS, active=0, present=0, keys=keys)), 0.001)
        worker.take_packets()
        assert worker.awaited() == awaited


def test_the_ranks_of_a_host_that_share_memory() -> None:
    def refusal(ranks: int) -> str:
        membership, error = to_c(member(0, world_size=ranks, hosts=(0,) * ranks)), c.Error.make()
        options = c.LocalOptions.make(rendezvous=secrets.token_hex(8).encode(), timeout=0.02)
        assert not whole_library().p4reduce_open_local(membership, options, error)
        return str(to_exception(error))

    assert "256 ranks of the job are on this host: accepted are up to 255 that share memory" in refusal(256)
    assert f"{list_ranks(range(1, 255))} have not" in refusal(255)
    assert f"{list_ranks(range(1, 33))} have not" in refusal(33)
    assert list_ranks(range(1, 255)).endswith(", 32 and 222 more")
