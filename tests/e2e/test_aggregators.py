# SPDX-License-Identifier: Apache-2.0
"""Jobs whose slots are dealt over several aggregators: every sum is held against the reference, bit for bit."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from p4reduce_bench.processes import network
from tests.support.cluster import c_program
from tests.support.cluster.calls import SHAPES
from tests.support.cluster.rank import Call
from tests.support.cluster.stack import REPEATED, Stack, added, over_udp
from tests.support.own_network import Namespace
from tests.support.waiting import wait_until

DEADLINE_S = 4.0


@pytest.fixture(
    scope="module",
    params=[
        pytest.param("sim-2", marks=pytest.mark.slow),
        pytest.param("sim-3", marks=pytest.mark.slow),
        pytest.param("native-2", marks=pytest.mark.slow),
        "native-3",
    ],
)
def stack(request: pytest.FixtureRequest) -> Iterator[Stack]:
    target, aggregators = request.param.split("-")
    with over_udp(target=target, aggregators=int(aggregators)) as stack:
        yield stack


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("slots", [0, 7, 1])
def test_every_shape_and_dtype(stack: Stack, slots: int) -> None:
    """Also where the slots cannot be dealt evenly, and where there are fewer than aggregators."""
    before = added(stack)
    with stack.ranks(SHAPES, job="shapes", world_size=2, slots=slots) as ranks:
        for rank, last in ranks.wait_for_ends(120).items():
            assert "stats" in last, f"rank {rank} of shapes: {last}"
            assert last["stats"]["operations"] == sum(call.operations for call in SHAPES) + 1  # the last is a barrier
    worked = [now - then for then, now in zip(before, added(stack), strict=True)]
    assert all(worked) if slots != 1 else worked[0] > 0 == sum(worked[1:]), worked


def test_ranks_may_be_of_either_kind(stack: Stack) -> None:
    """C and Python deal the slots alike, or the sums would be wrong."""
    calls = {0: SHAPES, 1: SHAPES}
    with stack.ranks([], calls_of=calls, job="mixed", world_size=2, backends={0: "c", 1: "python"}) as ranks:
        ranks.end_well(120)


def test_programs_in_c(stack: Stack, program: Path) -> None:
    ranks = [c_program.start(stack, "C", rank, program, "100000") for rank in range(2)]
    for rank in ranks:
        output, errors = rank.communicate(timeout=60)
        assert (rank.returncode, c_program.complaints(errors)) == (0, [])
        assert output.startswith("sum 1, wrong 0, packets ")


def test_more_slots_than_one_could_hold(stack: Stack) -> None:
    """A switch of this program has 512."""
    slots = 513
    with stack.ranks([Call((200_000,), density=0.5)], job="large", world_size=2, slots=slots) as ranks:
        ranks.end_well(120)
    more = 512 * len(stack.switches) + 1
    with stack.ranks([Call()], job="too large", world_size=1, slots=more) as ranks:
        last = ranks.wait_for_ends()[0]
    assert last["error"] == "JoinError"
    assert f"slots={more}, and the {len(stack.switches)} switches have {more - 1}" in last["message"]


def test_two_jobs_at_once(stack: Stack) -> None:
    calls = [[Call((3000,), seed=seed) for seed in range(start, start + 5)] for start in (10, 20)]
    with (
        stack.ranks(calls[0], job="one", world_size=2) as one,
        stack.ranks(calls[1], job="two", world_size=2) as two,
    ):
        for ranks in (one, two):
            ranks.end_well(120)


@pytest.mark.usefixtures("backend")
def test_loss_changes_nothing(stack: Stack) -> None:
    with stack.losing(0.05), stack.ranks(SHAPES, job="lossy", world_size=3) as ranks:
        ranks.end_well(150, loss=True)


def test_a_killed_rank_ends_the_job_for_the_others(stack: Stack) -> None:
    with stack.ranks(REPEATED, job="killed", world_size=3, repeat=True) as ranks:
        ranks.wait_for("done")
        ranks.kill_and_end(1)
    with stack.ranks([Call()], job="killed", world_size=3) as ranks:  # the name and its slots are free again
        ranks.end_well()


@pytest.mark.usefixtures("backend")
def test_ranks_that_differ_are_told(stack: Stack) -> None:
    calls = {0: [Call((100,))], 1: [Call((200,))]}
    with stack.ranks([], calls_of=calls, job="mismatch", world_size=2) as ranks:
        errors = {last["error"] for last in ranks.wait_for_ends().values()}
        # Who is slow to read may learn from one switch that the other rank has left before it reads from another why.
        assert "MismatchError" in errors
        assert errors <= {"MismatchError", "JobAborted"}


@pytest.mark.usefixtures("backend")
def test_a_rank_that_does_not_call_is_named(stack: Stack) -> None:
    calls = {0: [Call((20_000,), timeout=2.0)], 1: [Call((20_000,), pause=4.0)]}
    with stack.ranks([], calls_of=calls, job="timeout", world_size=2) as ranks:
        last = ranks.wait_for_ends()[0]
        assert last["error"] == "CollectiveTimeout", last
        assert last["awaited"] == [1]
        assert "waiting for rank 1" in last["message"]


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("target", [pytest.param("sim", marks=pytest.mark.slow), "native"])
def test_a_killed_aggregator_is_named_by_every_rank(target: str) -> None:
    with over_udp(target=target, aggregators=2) as stack:
        with stack.ranks(REPEATED, job="killed", world_size=2, repeat=True, timeout=DEADLINE_S) as ranks:
            ranks.wait_for("done")
            stack.switches[1].process.kill()
            killed_at = time.monotonic()
            ranks.wait_for("error", timeout=DEADLINE_S + 5)
            # The time limit is an operation's, and the operation under way at the kill may have just begun.
            assert time.monotonic() - killed_at < DEADLINE_S + 3
            lasts = [events[-1] for events in ranks.events.values()]
            assert "CollectiveTimeout" in {last["error"] for last in lasts}
            for last in lasts:  # the other rank may have given up first
                what = "has not answered|is away"
                assert re.search(rf"the switch at {re.escape(stack.addresses[1])} ({what})", last["message"]), last
        # Jobs that begin do without it, once that is no break of a moment.
        wait_until(
            lambda: re.match(r"unreachable for ([3-9]|\d\d)", stack.status()["switches"][1]["problem"]),
            "the switch to be away",
        )
        with stack.ranks([Call()], job="next", world_size=1) as ranks:
            assert "stats" in ranks.wait_for_ends()[0]
        first, second = stack.status()["switches"]  # type: ignore[misc]
        assert (first["connected"], second["connected"]) == (True, False)  # type: ignore[index]
        assert first["slots_used"] == 0 or second["problem"]  # type: ignore[index]


@pytest.mark.root
@pytest.mark.parametrize("transport", ["raw", pytest.param("scapy", marks=pytest.mark.slow)])
@pytest.mark.parametrize("target", [pytest.param("sim", marks=pytest.mark.slow), "native"])
def test_frames_on_a_common_network(target: str, transport: str) -> None:
    """Ranks and switches behind one bridge: each frame is for the MAC of its aggregator."""
    if transport == "scapy":
        pytest.importorskip("scapy", reason="needs scapy")
    with contextlib.closing(Namespace()) as namespace:
        with namespace.entered():
            network.run("ip", "link", "set", "lo", "up")
            network.run("ip", "link", "add", "bridge", "type", "bridge")
            network.run("ip", "link", "set", "bridge", "up")
            for number in (1, 2):
                for end, name in ((f"worker{number - 1}", f"cable{number}"), (f"switch{number}", f"trunk{number}")):
                    network.cable(end, name)
                    network.run("ip", "link", "set", name, "master", "bridge")
                network.run("ip", "address", "add", f"10.0.0.{number}/24", "dev", f"worker{number - 1}")
        with (
            Stack(target, ["1=eth:switch{}"], "10.0.0.25{}:31314", enter=namespace.entered, aggregators=2) as stack,
            stack.ranks(SHAPES, job="raw", world_size=2, transport=transport, interfaces="worker") as ranks,
        ):
            ranks.end_well(120)
