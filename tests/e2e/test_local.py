# SPDX-License-Identifier: Apache-2.0
"""Real processes that reduce in their host's memory: every result is held against the reference, bit for bit."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from p4reduce.local.host import _MOST_BYTES, digest
from p4reduce.protocol.numbers import WIRES

from . import test_stack
from .conftest import Setting
from .rank import Call
from .stack import Ranks, Stack

CALLS = [
    *test_stack.SHAPES,
    *(Call((700, 1001), density=density, seed=seed) for seed, density in enumerate((1.0, 0.6, 0.2, 0.01, 0.0), 40)),
    *(Call((300_001,), dtype="float16", wire=wire, density=0.4, seed=seed) for seed, wire in enumerate(WIRES, 50)),
    Call((400_000,), dtype="int32", density=0.9, seed=60),
    Call((3_000_000,), op="average", density=1.0, seed=61),
    Call((3_000_000,), wire="int8", density=0.05, seed=62),
]


@pytest.fixture
def here(udp_stack: Stack) -> Setting:
    if not digest():
        pytest.skip("this machine does not let processes share memory")
    return Setting(udp_stack, {"local": "auto"})


def without_packets(ranks: Ranks) -> None:
    for rank, last in ranks.wait_for_ends(120).items():
        assert "stats" in last, f"rank {rank}: {last}"
        assert last["stats"]["local"], last
        assert last["stats"]["packets_sent"] == 0, last


@pytest.mark.parametrize("world_size", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_results_are_those_of_a_switch(here: Setting, world_size: int) -> None:
    calls = CALLS if world_size == 3 else CALLS[::3]
    with here.stack.ranks(calls, job="local", world_size=world_size, **here.options) as ranks:
        without_packets(ranks)


@pytest.mark.slow
def test_by_copies(here: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_LOCAL_COPIES", "1")
    with here.stack.ranks(CALLS, job="copies", world_size=3, **here.options) as ranks:
        without_packets(ranks)


@pytest.mark.slow
def test_every_form_of_every_dtype(here: Setting) -> None:
    pytest.importorskip("torch", reason="needs torch, for bfloat16")
    with here.stack.ranks(test_stack.FORMS, job="forms", world_size=3, **here.options) as ranks:
        without_packets(ranks)


def test_where_one_rank_does_not_share_none_does(here: Setting) -> None:
    """Python's backend has no such way."""
    backends = {0: "c", 1: "python"}
    with here.stack.ranks([Call()], job="partly", world_size=2, backends=backends, **here.options) as ranks:
        for last in ranks.wait_for_ends(60).values():
            assert not last["stats"]["local"]
            assert last["stats"]["packets_sent"] > 0


@pytest.mark.parametrize(("limit", "value"), [("RLIMIT_FSIZE", 1 << 20), ("RLIMIT_NOFILE", 30)])
def test_a_rank_whose_limits_let_it_share_no_memory_uses_the_network(here: Setting, limit: str, value: int) -> None:
    limits = {1: {limit: value}}
    with here.stack.ranks([Call()], job=limit, world_size=2, limits=limits, **here.options) as ranks:
        for last in ranks.wait_for_ends(60).values():
            assert not last["stats"]["local"]
            assert last["stats"]["packets_sent"] > 0


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_limit_that_suffices(here: Setting, world_size: int) -> None:
    """What a process may have by this limit is what the ranks make, at most."""
    limits = {rank: {"RLIMIT_FSIZE": world_size * _MOST_BYTES} for rank in range(world_size)}
    calls = [Call((3_000_000,), density=1.0), Call()]
    with here.stack.ranks(calls, job="enough", world_size=world_size, limits=limits, **here.options) as ranks:
        without_packets(ranks)


def test_a_rank_that_is_killed_while_it_reduces(here: Setting) -> None:
    """It is named at once, and nothing of it is left."""
    before = set(Path("/dev/shm").iterdir())
    calls = [Call((1_000_000,), density=1.0)]
    with here.stack.ranks(calls, job="killed", world_size=3, repeat=True, **here.options) as ranks:
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


@pytest.mark.slow
def test_a_killed_rank_ends_the_job_for_the_others(here: Setting) -> None:
    test_stack.test_a_killed_rank_ends_the_job_for_the_others(here)


def test_ranks_that_differ_are_told(here: Setting) -> None:
    test_stack.test_ranks_that_differ_are_told(here)


def test_a_rank_that_does_not_call_is_named(here: Setting) -> None:
    test_stack.test_a_rank_that_does_not_call_is_named(here)
