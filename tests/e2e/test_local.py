# SPDX-License-Identifier: Apache-2.0
"""Real processes that reduce in their host's memory: every result is held against the reference, bit for bit."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from p4reduce.local.host import _MOST_BYTES
from p4reduce.protocol.numbers import WIRES
from tests.support.cluster.calls import FORMS, SHAPES
from tests.support.cluster.rank import Call
from tests.support.cluster.stack import Ranks, Setting

CALLS = [
    *SHAPES,
    *(Call((700, 1001), density=density, seed=seed) for seed, density in enumerate((1.0, 0.6, 0.2, 0.01, 0.0), 40)),
    *(Call((300_001,), dtype="float16", wire=wire, density=0.4, seed=seed) for seed, wire in enumerate(WIRES, 50)),
    Call((400_000,), dtype="int32", density=0.9, seed=60),
    Call((3_000_000,), op="average", density=1.0, seed=61),
    Call((3_000_000,), wire="int8", density=0.05, seed=62),
]


def without_packets(ranks: Ranks) -> None:
    for rank, last in ranks.wait_for_ends(120).items():
        assert "stats" in last, f"rank {rank}: {last}"
        assert last["stats"]["local"], last
        assert last["stats"]["packets_sent"] == 0, last


@pytest.mark.parametrize("world_size", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_results_are_those_of_a_switch(here: Setting, world_size: int) -> None:
    calls = CALLS if world_size == 3 else CALLS[::3]
    with here.ranks(calls, job="local", world_size=world_size) as ranks:
        without_packets(ranks)


@pytest.mark.slow
def test_by_copies(here: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_LOCAL_COPIES", "1")
    with here.ranks(CALLS, job="copies", world_size=3) as ranks:
        without_packets(ranks)


@pytest.mark.slow
def test_every_form_of_every_dtype(here: Setting) -> None:
    pytest.importorskip("torch", reason="needs torch, for bfloat16")
    with here.ranks(FORMS, job="forms", world_size=3) as ranks:
        without_packets(ranks)


def test_where_one_rank_does_not_share_none_does(here: Setting) -> None:
    """Python's backend has no such way."""
    backends = {0: "c", 1: "python"}
    with here.ranks([Call()], job="partly", world_size=2, backends=backends) as ranks:
        for last in ranks.wait_for_ends(60).values():
            assert not last["stats"]["local"]
            assert last["stats"]["packets_sent"] > 0


@pytest.mark.parametrize(("limit", "value"), [("RLIMIT_FSIZE", 1 << 20), ("RLIMIT_NOFILE", 30)])
def test_a_rank_whose_limits_let_it_share_no_memory_uses_the_network(here: Setting, limit: str, value: int) -> None:
    limits = {1: {limit: value}}
    with here.ranks([Call()], job=limit, world_size=2, limits=limits) as ranks:
        for last in ranks.wait_for_ends(60).values():
            assert not last["stats"]["local"]
            assert last["stats"]["packets_sent"] > 0


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_limit_that_suffices(here: Setting, world_size: int) -> None:
    """What a process may have by this limit is what the ranks make, at most."""
    limits = {rank: {"RLIMIT_FSIZE": world_size * _MOST_BYTES} for rank in range(world_size)}
    calls = [Call((3_000_000,), density=1.0), Call()]
    with here.ranks(calls, job="enough", world_size=world_size, limits=limits) as ranks:
        without_packets(ranks)


def test_a_rank_that_is_killed_while_it_reduces(here: Setting) -> None:
    """It is named at once, and nothing of it is left."""
    before = set(Path("/dev/shm").iterdir())
    calls = [Call((1_000_000,), density=1.0)]
    with here.ranks(calls, job="killed", world_size=3, repeat=True) as ranks:
        ranks.wait_for("done", timeout=60)
        ranks.kill(1)
        killed_at = time.monotonic()
        ranks.wait_for("error", timeout=10)
        assert time.monotonic() - killed_at < 10
        for events in (ranks.events[0], ranks.events[2]):
            assert events[-1]["error"] == "JobAborted", events[-1]
            assert events[-1]["rank"] == 1
        ranks.wait_for_ends()
    assert set(Path("/dev/shm").iterdir()) <= before
