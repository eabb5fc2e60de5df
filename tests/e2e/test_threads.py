# SPDX-License-Identifier: Apache-2.0
"""Ranks with several engine threads: every sum is held against the reference, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.support.cluster import c_program
from tests.support.cluster.calls import SHAPES
from tests.support.cluster.rank import Call
from tests.support.cluster.stack import (
    REPEATED,
    Stack,
    go_on,
    job,
    kept,
    over_udp,
    place,
    slots_used,
    wait_until,
    wait_until_back,
)

LARGE = [
    Call((70_001,), density=density, seed=seed, dtype=dtype, wire=wire)
    for seed, (dtype, wire, density) in enumerate(
        [("float32", "auto", 0.3), ("float32", "int8", 1.0), ("float16", "auto", 0.5), ("int32", "auto", 0.1)]
    )
]
NETWORKS: Mapping[str, Mapping[str, int]] = {
    "one switch": {},
    "two switches": {"aggregators": 2},
    "tree": {"leaves": 2},
}


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with over_udp(target="native") as stack:
        yield stack


@pytest.mark.parametrize(
    ("network", "threads"),
    [
        pytest.param("one switch", 2, marks=pytest.mark.slow),
        pytest.param("one switch", 3, marks=pytest.mark.slow),
        ("two switches", 3),
        pytest.param("two switches", 2, marks=pytest.mark.slow),
        pytest.param("tree", 2, marks=pytest.mark.slow),
    ],
)
def test_every_shape_and_dtype(network: str, threads: int) -> None:
    shape = NETWORKS[network]
    with over_udp(target="native", **shape) as stack:
        calls = SHAPES + LARGE
        at = stack.names[1:] if network == "tree" else ()
        with stack.ranks(calls, job="shapes", world_size=4, threads=threads, slots=13, at=at) as ranks:
            lasts = ranks.end_well(120)
        assert lasts[0]["stats"]["operations"] == sum(call.operations for call in calls) + 1  # the last is a barrier
        assert lasts[0]["stats"]["threads"] == threads
        wait_until(lambda: slots_used(stack) == 0, "the slots to be free")


@pytest.mark.slow
def test_on_sim() -> None:
    with over_udp(target="sim") as stack, stack.ranks(SHAPES, job="sim", world_size=2, threads=2) as ranks:
        ranks.end_well(120)


def test_each_thread_has_a_pool(stack: Stack) -> None:
    with stack.ranks([Call(pause=0.1)], job="pools", world_size=2, threads=3, slots=10, repeat=True) as ranks:
        ranks.wait_for("done")
        known = job(stack, "pools")
        assert known["threads"] == 3
        assert [(pool["switch"], pool["count"]) for pool in known["pools"]] == [(0, 3), (0, 3), (0, 4)]


@pytest.mark.slow
def test_loss_changes_nothing(stack: Stack) -> None:
    with stack.losing(0.05), stack.ranks(SHAPES + LARGE[:2], job="lossy", world_size=3, threads=2) as ranks:
        ranks.end_well(150, loss=True)


def test_a_killed_rank_ends_the_job_for_the_others(stack: Stack) -> None:
    with stack.ranks(REPEATED, job="killed", world_size=3, repeat=True, threads=2) as ranks:
        ranks.wait_for("done")
        ranks.kill_and_end(1)
    with stack.ranks([Call()], job="killed", world_size=3, threads=2) as ranks:  # the name and its slots are free again
        ranks.end_well()


def test_ranks_that_differ_are_told(stack: Stack) -> None:
    calls = {0: [Call((100_000,))], 1: [Call((200,))]}
    with stack.ranks([], calls_of=calls, job="mismatch", world_size=2, threads=2) as ranks:
        errors = {last["error"] for last in ranks.wait_for_ends().values()}
        # Who is slow to read may learn that the other rank has left before it reads why.
        assert "MismatchError" in errors
        assert errors <= {"MismatchError", "JobAborted"}


@pytest.mark.slow
def test_a_rank_that_does_not_call_is_named(stack: Stack) -> None:
    calls = {0: [Call((100_000,), timeout=2.0)], 1: [Call((100_000,), pause=4.0)]}
    with stack.ranks([], calls_of=calls, job="timeout", world_size=2, threads=2) as ranks:
        last = ranks.wait_for_ends()[0]
        assert last["error"] == "CollectiveTimeout", last
        assert last["awaited"] == [1]
        assert "waiting for rank 1" in last["message"]


def test_ranks_have_to_agree_on_how_many(stack: Stack) -> None:
    one = stack.ranks([Call()], job="agree", world_size=2, present=[0], threads=2)
    other = stack.ranks([Call()], job="agree", world_size=2, present=[1], threads=3)
    with one, other:
        messages = {rank: last["message"] for each in (one, other) for rank, last in each.wait_for_ends().items()}
    refused = [text for text in messages.values() if "is refused: it has threads=" in text]
    assert len(refused) == 2, messages  # the first one is told of the other


def test_more_threads_than_slots_are_refused(stack: Stack) -> None:
    with stack.ranks([Call()], job="few", world_size=1, threads=4, slots=3) as ranks:
        assert "threads=4 of 3 slots, and each needs one of its own" in ranks.wait_for_ends()[0]["message"]


def test_programs_in_c(stack: Stack, program: Path) -> None:
    ranks = [c_program.start(stack, "C", rank, program, "100000", threads=2) for rank in range(2)]
    for rank in ranks:
        output, errors = rank.communicate(timeout=60)
        assert (rank.returncode, c_program.complaints(errors)) == (0, [])
        assert output.startswith("sum 1, wrong 0, packets ")


@pytest.mark.slow
@pytest.mark.parametrize("network", ["one switch", "tree"])
def test_a_controller_that_is_started_again(tmp_path: Path, network: str) -> None:
    shape = NETWORKS[network]
    steps = [Call((40_000,), seed=seed, pause=0.02) for seed in range(5)]
    with kept(tmp_path, target="native", **shape) as stack:
        at = stack.names[1:] if network == "tree" else ()
        with stack.ranks(steps, job="one", world_size=2, repeat=True, at=at, threads=3) as one:
            go_on(one)
            before = place(stack, "one")
            stack.stop_controller()
            go_on(one)
            stack.start_controller()
            wait_until_back(stack, "one")
            assert place(stack, "one") == before
            with stack.ranks([Call()], job="two", world_size=2, at=at, threads=2) as two:  # of other numbers
                two.end_well()
            go_on(one)
            one.kill(1)
            one.wait_for("error", timeout=5)
        wait_until(lambda: slots_used(stack) == 0, "the slots to be free")
