# SPDX-License-Identifier: Apache-2.0
"""Real processes that reduce in their host's memory: every result is held against the reference, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from p4reduce.local.host import _MOST_BYTES
from p4reduce.protocol.numbers import WIRES
from tests.support.cluster.calls import FORMS, SHAPES
from tests.support.cluster.rank import Call
from tests.support.cluster.stack import Ranks, Setting
from tests.support.waiting import wait_until

CALLS = [
    *SHAPES,
    *(Call((700, 1001), density=density, seed=seed) for seed, density in enumerate((1.0, 0.6, 0.2, 0.01, 0.0), 40)),
    *(Call((300_001,), dtype="float16", wire=wire, density=0.4, seed=seed) for seed, wire in enumerate(WIRES, 50)),
    Call((400_000,), dtype="int32", density=0.9, seed=60),
    Call((3_000_000,), op="average", density=1.0, seed=61),
    Call((3_000_000,), wire="int8", density=0.05, seed=62),
]


pytestmark = pytest.mark.parametrize("setting", ["memory"], indirect=True)


def without_packets(ranks: Ranks) -> None:
    for rank, last in ranks.wait_for_ends(120).items():
        assert "stats" in last, f"rank {rank}: {last}"
        assert last["stats"]["local"], last
        assert last["stats"]["packets_sent"] == 0, last


@pytest.mark.parametrize("world_size", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_results_are_those_of_a_switch(setting: Setting, world_size: int) -> None:
    calls = CALLS if world_size == 3 else CALLS[::3]
    with setting.ranks(calls, job="local", world_size=world_size) as ranks:
        without_packets(ranks)


@pytest.mark.slow
def test_by_copies(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("P4REDUCE_LOCAL_COPIES", "1")
    with setting.ranks(CALLS, job="copies", world_size=3) as ranks:
        without_packets(ranks)


@pytest.mark.slow
def test_every_form_of_every_dtype(setting: Setting) -> None:
    pytest.importorskip("torch", reason="needs torch, for bfloat16")
    with setting.ranks(FORMS, job="forms", world_size=3) as ranks:
        without_packets(ranks)


@pytest.mark.parametrize(
    "why",
    [
        pytest.param({"backends": {0: "c", 1: "python"}}, id="Python's backend has no such way"),
        *(
            pytest.param({"limits": {1: {name: value}}}, id=name)
            for name, value in (("RLIMIT_FSIZE", 1 << 20), ("RLIMIT_NOFILE", 30))
        ),
    ],
)
def test_where_one_rank_does_not_share_all_use_the_network(setting: Setting, why: dict[str, Any]) -> None:
    with setting.ranks([Call()], job="partly", world_size=2, **why) as ranks:
        for last in ranks.wait_for_ends(60).values():
            assert not last["stats"]["local"]
            assert last["stats"]["packets_sent"] > 0


@pytest.mark.parametrize("world_size", [2, 3])
def test_the_limit_that_suffices(setting: Setting, world_size: int) -> None:
    """Ranks can share memory under the least RLIMIT_FSIZE that allows the largest file which they make."""
    limits = {rank: {"RLIMIT_FSIZE": world_size * _MOST_BYTES} for rank in range(world_size)}
    calls = [Call((3_000_000,), density=1.0), Call()]
    with setting.ranks(calls, job="enough", world_size=world_size, limits=limits) as ranks:
        without_packets(ranks)


def test_a_rank_that_is_killed_while_it_reduces(setting: Setting) -> None:
    """The other ranks name it at once, and nothing of it is left in /dev/shm."""
    before = set(Path("/dev/shm").iterdir())
    with setting.ranks([Call((1_000_000,), density=1.0)], job="killed", world_size=3, repeat=True) as ranks:
        ranks.wait_for("done")
        ranks.kill_and_end(1, within=10)
    left = set(Path("/dev/shm").iterdir()) - before  # or files of other tests' processes, which will end
    wait_until(lambda: not any(file.exists() for file in left), lambda: [file for file in left if file.exists()], 60)
